"""Write `docs/metrics.md` from the catalog of metrics; a test compares the two."""

from collections.abc import Iterable
from pathlib import Path

from kvsim.metrics.catalog import LATENCIES, METRICS, SHARE_METRICS, STATISTICS, latency_metric
from kvsim.metrics.definitions import BATCH, KV, REQUESTS, THROUGHPUT, WAITING, Metric

DOC = Path(__file__).parents[1] / "docs" / "metrics.md"

INTRODUCTION = f"""\
# Metrics

Written by `tools/write_metrics_doc.py` from `kvsim/metrics/definitions.py` and `catalog.py`.

`summary.json` holds, for each variant, three parts:

- `verdict`: `met` (`true`, `false`, or `null` if it can't be judged), a sentence, and the
  targets with `value`, `bound`, `margin` and `met`. The margin is (bound − value) / bound.
- `limits`: what limits the run, in one sentence and in shares of time (last table). If requests
  wait in less than 1 % of the busy time, no queue is called the limit.
- `figures`: the metrics below, `null` where there is no such value.

Arrivals stop at the horizon, then the run drains. Throughput, goodput and utilization are taken
over the window from 0 to the horizon; latencies and limits over the whole run. A run that
`max_simulated_s` cuts off counts until then: of a step in flight its part of time, and no token.
A target of the SLO
is `max_failed_fraction`, or any latency below with `mean`, `max` or any percentile from `p0` to
`p100`: `ttft_p99_s`, `e2e_p99.9_s`. The statistics listed of each latency are
{", ".join(f"`{statistic}`" for statistic in STATISTICS)}.
"""


def main() -> None:
    """Write the page."""
    DOC.write_text(render(), encoding="utf-8")
    print(f"{DOC.name}: {len(METRICS)} figures, {len(SHARE_METRICS)} kinds of shares")


def render() -> str:
    """Return the page as Markdown."""
    latencies = [latency_metric(latency, "p99") for latency in LATENCIES]
    sections = {
        "Requests": REQUESTS,
        "Throughput and cost": THROUGHPUT,
        "Latency": latencies,
        "KV cache": KV,
        "Steps and batch": (*BATCH, *WAITING),
        "Shares of time": tuple(SHARE_METRICS.values()),
    }
    tables = [f"## {title}\n\n{_table(metrics)}" for title, metrics in sections.items()]
    return "\n".join((INTRODUCTION, *tables))


def _table(metrics: Iterable[Metric]) -> str:
    rows = ["| figure | unit | better | formula | description |", "| --- | --- | --- | --- | --- |"]
    rows += [
        f"| `{m.name}` | {m.unit} | {m.better or ''} | {m.formula} | {m.description} |"
        for m in metrics
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
