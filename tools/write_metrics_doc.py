"""Write `docs/metrics.md` from the catalog of metrics; a test compares the two."""

from collections.abc import Iterable
from pathlib import Path

from kvsim.metrics.catalog import (
    LATENCIES,
    METRICS,
    PHASE_METRICS,
    SHARE_METRICS,
    STATISTICS,
    latency_metric,
)
from kvsim.metrics.definitions import BATCH, KV, REQUESTS, THROUGHPUT, WAITING, Metric
from kvsim.metrics.phases import BAND
from kvsim.statistics import BATCHES

DOC = Path(__file__).parents[1] / "docs" / "metrics.md"

INTRODUCTION = f"""\
# Metrics

Written by `tools/write_metrics_doc.py` from `kvsim/metrics/definitions.py` and `catalog.py`.

`summary.json` holds, for each variant, these parts:

- `verdict`: `met` (`true`, `false`, or `null` if it can't be judged), `certain`, a sentence, and
  the targets with `value`, `bound`, `margin`, `met`, and the value's interval `low`, `high`, from
  `count` independent observations. The margin is (bound − value) / bound. The value decides what is
  met, and the exit code; it is `certain` if the interval doesn't span the bound.
- `classes`: verdict and figures of each class of traffic.
- `limits`: what limits the run, in one sentence and in shares of time (last table). If requests
  wait in less than 1 % of the busy time, no queue is called the limit.
- `phases`: where the time of requests goes, for the median (`p50`) and the 95th percentile (`p95`)
  by E2E latency: `requests`, `e2e_s`, and seconds in each phase, which add up to it. Each is the
  mean over the finished, measured requests within {100 * BAND:g} % of their number around that
  rank, and at least the nearest one. Empty if no request finished; `stalled_s` is `null` where
  steps have no price.
- `figures`: the metrics below, `null` where there is no such value; of the first replication.
- `replications`: how many there are.
- `uncertainty`: `mean`, `low`, `high` and `count` of each figure of which it is known.
- `differences`: the same of each variant's difference to the base, where replications tell it.

## Uncertainty

Intervals are of 95 %.

- **Several replications** (`replications: n`, or `kvsim run --replications n`) are independent
  draws. Each figure has the mean over them and Student's t interval; a percentile is the mean of
  the percentiles of the replications. The same replication of two variants faces the same draws, so
  their difference is taken in each of them, and the interval is of its mean (common random
  numbers). The verdict is on the means. `replications.parquet` has the figures of each.
- **Within one run** requests in the order of their arrival are a correlated series. A mean latency
  and `failed_fraction` have their interval from the means of {BATCHES} batches of equal length. A
  percentile has it from the share of requests at or below it, which is a mean: the bounds are the
  values with the ends of its interval as their shares (Woodruff 1952). Where an end lies beyond all
  values the interval is open: so few requests do not bound the percentile. Fewer than {BATCHES}
  requests tell nothing, and ITL, throughput and utilization have intervals by replication only.
  Near saturation a queue remembers longer than a batch: then, replications tell more.
- **`count`** is the number of replications, or the effective number of independent requests: the
  variance of the series over that of its mean, from 1 to all of them (of a percentile: of the
  requests at or below it). 1,000 requests in a long queue may tell as much as 50 independent ones.

Replications that are all alike, as of a recorded log served by one engine, say no more than one:
the uncertainty is then that within the run. A log whose lengths or routes are drawn by chance has
intervals over these draws alone.

## Figures

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
        "Phases of a request": tuple(PHASE_METRICS.values()),
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
