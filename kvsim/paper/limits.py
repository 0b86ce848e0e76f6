"""Utilization is not throughput: one memory gain, two loads, and which limit binds in each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.metrics.catalog import percent
from kvsim.metrics.summary import Summary
from kvsim.paper.chapter import Chapter, Finding
from kvsim.paper.charts import bars
from kvsim.paper.tasks import Task, summary_of

LOADS = {"memory_bound": "long answers", "compute_bound": "long prompts, short answers"}
LAYOUTS = {"contiguous": "contiguous", "base": "paged"}
QUICK_REQUESTS = 60
_SHOWN = {
    "running_seqs_mean": "requests at once",
    "kv_utilization_mean": "slots that hold tokens",
    "requests_per_s": "throughput",
}


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return both loads under both layouts."""
    changes: dict[str, Any] = {"workload.num_requests": QUICK_REQUESTS} if quick else {}
    return {
        f"{load}/{layout}": Task(summary_of, (folder / f"{load}.yaml", layout, changes))
        for load in LOADS
        for layout in LAYOUTS
    }


def chapter(results: Mapping[str, Summary]) -> Chapter:
    """Set the gains side by side."""
    gains = {load: [_gain(results, load, name) for name in _SHOWN] for load in LOADS}
    findings = [
        Finding(f"{LOADS[load]}: {what}, paged over contiguous", "x", None, gain, None, why)
        for load in LOADS
        for what, gain, why in zip(_SHOWN.values(), gains[load], _whys(results, load), strict=True)
    ]
    served = {load: gains[load][-1] for load in LOADS}
    batch = {load: gains[load][0] for load in LOADS}
    chart = bars(
        "gains",
        f"{batch['memory_bound']:.1f} times the batch is {served['memory_bound']:.1f} times the "
        f"throughput with long answers; with long prompts {batch['compute_bound']:.1f} times the "
        f"batch is {served['compute_bound']:.1f} times the throughput",
        "Paged over contiguous (2048 tokens reserved), OPT-13B on one A100-40GB, a batch job.",
        "x",
        list(_SHOWN.values()),
        {LOADS[load]: gains[load] for load in LOADS},
    )
    sentence = (
        "A fuller cache is worth what the freed memory lets the engine do. Where a step reads all "
        "weights for few sequences, more of them are nearly free; where a few prompts keep the "
        "arithmetic busy, they only wait for each other."
    )
    title = "Utilization is not throughput"
    return Chapter("limits", "Limits", title, sentence, findings, [chart])


def _gain(results: Mapping[str, Summary], load: str, name: str) -> float:
    paged, contiguous = (
        results[f"{load}/{layout}"]["figures"] for layout in ("base", "contiguous")
    )
    return float(paged[name] / contiguous[name])


def _whys(results: Mapping[str, Summary], load: str) -> list[str]:
    """Say, beside each gain, what is behind it; beside the throughput, which limit binds."""
    texts = []
    for name, show in (("running_seqs_mean", "{:.1f}".format), ("kv_utilization_mean", percent)):
        found = [results[f"{load}/{layout}"]["figures"][name] for layout in LAYOUTS]
        texts.append(f"From {show(found[0])} to {show(found[1])}.")
    limits = [results[f"{load}/{layout}"]["limits"]["bound_share"] for layout in LAYOUTS]
    said = (
        ", ".join(f"{percent(share)} {bound}" for bound, share in _largest(shares))
        for shares in limits
    )
    return [*texts, "What bounds the steps: contiguous {}; paged {}.".format(*said)]


def _largest(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])[:2]
