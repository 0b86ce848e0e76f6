"""Writes docs/accuracy.md: what `kvsim validate` says of all measured servers at hand.

Usage: python tools/write_accuracy_doc.py RECORDS.json POINTS.csv KV_SIZES.csv, with the files given
to `kvsim validate`. The page has figures only from the command's rows and the files' own columns.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from kvsim.model import load_model
from kvsim.validate import deployments
from kvsim.validate.case import OVERALL, Case, ClosedLoop
from kvsim.validate.deployments import gpu_of, profile_name
from kvsim.validate.files import read_all
from kvsim.validate.run import Row, validate

PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"
LATENCIES = ("e2e_mean", "tpot_mean", "ttft_mean")
TAILS = ("e2e_p90", "e2e_p99", "ttft_p90", "ttft_p99")
MOST_LETTERS = 110  # of a reason
FAMILY = 3  # at least so many figures make a row of their own

HEAD = """# How accurate kvsim is

Written by `tools/write_accuracy_doc.py` from what `kvsim validate` prints of measured servers; run
`kvsim validate` to see those that ship. Errors are absolute, in percent of the measured value:
median / 90th percentile over servers. What counts as a measurement, and how clients took it, is
told in [measurements.md](measurements.md); what the predictions rest on in [model.md](model.md).
"""

TAIL = """## Where not to trust it

- **Saturated servers.** Where requests queue, a small error of a step becomes a large one of TTFT:
  near saturation look at throughput and TPOT.
- **p99 of TTFT.** Nearly identical runs of real servers span a factor of three.
- **GPUs, models and layouts without measurements** of their own: the notes of a run say
  `BEYOND MEASUREMENTS`, and its basis says `physical`. No server with pipeline stages was at hand.
- **RTX 4090, and cards over PCIe**: their linear layers were not measured, or engines lose more
  between cards than the collectives alone say.
- **Models with experts**: how unevenly tokens choose them is an assumption; try the settings of
  `cost.expert_routing`.
- **fp8 KV caches on Hopper in engines of 2025** decode slower than the kernels of 2026 that are
  priced.
- **Engines other than vLLM** are priced with vLLM's kernels and constants of their own.
"""


def main(paths: Sequence[Path]) -> None:
    """Predict everything, and write the page."""
    cases = read_all(paths)
    rows = validate(cases, jobs=2)
    page = HEAD + "".join(_sections(cases, rows)) + TAIL
    PAGE.write_text(page, encoding="utf-8")


def _sections(cases: Sequence[Case], rows: Sequence[Row]) -> Iterator[str]:
    by_id = {case.id: case for case in cases}
    good = [row for row in rows if row.stage == OVERALL and row.ape is not None]
    points = [row for row in good if isinstance(by_id[row.id].client, ClosedLoop)]
    runs = [row for row in good if by_id[row.id].client is not None and row not in points]
    yield "\n## Servers under recorded traffic\n\n" + _table(
        runs, LATENCIES + TAILS, "", lambda row: "all"
    )
    for title, key in _groups(by_id):
        yield f"\nBy {title}:\n\n" + _table(runs, LATENCIES, title, key)
    yield "\n## Engine points\n\nTTFT and TPOT at a concurrency, closed loop.\n\n"
    engine = _profile(by_id)
    yield _table(points, LATENCIES[1:], "profile", engine)
    for title, key in _groups(by_id):
        vllm = [row for row in points if by_id[row.id].server.engine == "vllm"]
        yield f"\nvLLM by {title}:\n\n" + _table(vllm, LATENCIES[1:], title, key)
    kv = [row for row in good if row.metric == "kv_cache_tokens"]
    yield "\n## KV cache sizes\n\n" + _table(kv, ("kv_cache_tokens",), "", lambda row: "all")
    reasons: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.predicted is None and row.reason and row.actual is not None:
            reasons[row.reason] += 1
    if reasons:
        yield "\nNot predicted (figures): " + "; ".join(
            f"{reason[:MOST_LETTERS]} ({count})" for reason, count in sorted(reasons.items())
        )
        yield ".\n"
    yield "\n"


def _groups(by_id: dict[str, Case]) -> list[tuple[str, Callable[[Row], str]]]:
    return [
        ("GPU", lambda row: gpu_of(by_id[row.id].server.gpu)),
        ("model", lambda row: by_id[row.id].server.model.rpartition("/")[2]),
        ("load", lambda row: _load(by_id[row.id])),
        ("kind", lambda row: _kind(by_id[row.id])),
    ]


def _kind(case: Case) -> str:
    name, _ = deployments.model_and_quantization(case.server)
    groups = load_model(name).layers
    return "experts" if any(group.mlp.kind == "moe" for group in groups) else "dense"


def _profile(by_id: dict[str, Case]) -> Callable[[Row], str]:
    return lambda row: profile_name(by_id[row.id].server.engine, by_id[row.id].server.version)


def _load(case: Case) -> str:
    """Return the load in words: requests at once of a closed loop, requests a second of others."""
    client = case.client
    if isinstance(client, ClosedLoop):
        for most in (8, 32, 128):
            if client.concurrency <= most:
                return f"up to {most} at once"
        return "more at once"
    per_s = next((one.value for one in case.measured if one.metric == "throughput"), None)
    if per_s is None:
        return "rate not recorded"
    return "up to 5 requests/s" if per_s <= 5 else "more than 5 requests/s"


def _table(
    rows: Iterable[Row], metrics: Sequence[str], title: str, key: Callable[[Row], str]
) -> str:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.metric in metrics and row.ape is not None:
            found[key(row)][row.metric].append(row.ape)
    lines = [f"| {title} | n | " + " | ".join(metrics) + " |", "| --- " * (len(metrics) + 2) + "|"]
    for name in sorted(found):
        most = max(len(values) for values in found[name].values())
        cells = [_errors(found[name][metric]) for metric in metrics]
        lines.append(f"| {name} | {most} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _errors(values: Sequence[float]) -> str:
    if not values:
        return ""
    if len(values) < FAMILY:
        return " and ".join(f"{value:.1f}" for value in values)
    return f"{np.median(values):.1f} / {np.percentile(values, 90):.1f}"


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
