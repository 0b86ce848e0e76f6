"""How much memory samples and beams of one prompt save by sharing blocks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.metrics.summary import Summary
from kvsim.paper.chapter import Chapter, Finding
from kvsim.paper.charts import bars
from kvsim.paper.tasks import Task, summary_of

FILES = {"Alpaca": "sharing_alpaca.yaml", "ShareGPT": "sharing_sharegpt.yaml"}
COUNTS = (2, 4, 6)
SAMPLES, OWN, BEAMS, CALM = "samples", "samples of their own lengths", "beams", "calmer beams"
CALM_TURNOVER = 0.25
QUICK_S = 60.0

_WHY = {
    SAMPLES: "All as long as one another, as a benchmark client makes them. Only the prompt's full "
    "blocks are shared, so the saving is about (1 - 1/n) of their part in a sequence.",
    OWN: "Each as long as it happens to be. The longest are left alone in the end, and share with "
    "nobody.",
    BEAMS: "Beams share what they have in common, the answer's beginning too: with the neutral law "
    "all but the last blocks. That law is assumed, as nothing is known of scores.",
    CALM: f"The same with a turnover of {CALM_TURNOVER}: a beam mostly goes on from itself, so the "
    "last common parent is further back. The other end of the assumption's band.",
}


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return both workloads with each number of samples and of beams."""
    hurry: dict[str, Any] = {"workload.duration_s": QUICK_S} if quick else {}
    return {
        f"{words}/{kind}/{count}": Task(
            summary_of, (folder / file, "base", _changes(kind, count) | hurry)
        )
        for words, file in FILES.items()
        for kind in _WHY
        for count in COUNTS
        if kind != CALM or count == COUNTS[-1]
    }


def _changes(kind: str, count: int) -> dict[str, Any]:
    if kind in {SAMPLES, OWN}:
        alike = kind == SAMPLES
        return {
            "workload.n": count,
            "workload.beam_width": 1,
            "workload.samples_alike": alike,
        }
    turnover = CALM_TURNOVER if kind == CALM else 1.0
    return {"workload.beam_width": count, "workload.beam_turnover": turnover}


def chapter(results: Mapping[str, Summary]) -> Chapter:
    """Tell what is saved, by workload and by number."""
    saved = {name: 100 * _saved(summary) for name, summary in results.items()}
    findings = [
        Finding(f"{name.replace('/', ', ')}", "%", None, value, None, _WHY[name.split("/")[1]])
        for name, value in saved.items()
    ]
    most = COUNTS[-1]
    series = {
        f"{kind}, {words}": [saved[f"{words}/{kind}/{count}"] for count in COUNTS]
        for kind in (SAMPLES, BEAMS)
        for words in FILES
    }
    sampled, searched = (saved[f"Alpaca/{kind}/{most}"] for kind in (SAMPLES, BEAMS))
    chart = bars(
        "saved",
        f"Six beams of an Alpaca prompt save {searched:.0f} %, six samples {sampled:.0f} %",
        "Blocks saved over blocks without sharing, averaged over time.",
        "%",
        [str(count) for count in COUNTS],
        series,
    )
    sentence = (
        "Saved memory is (blocks without sharing - blocks with it) / blocks without it. Samples "
        "share the prompt alone, so it counts how long that is beside the answers: Alpaca's are "
        "short. Beams fork in each step, and what lies behind their last common parent is shared, "
        "whatever the prompt. Nothing here is fitted: block counts follow from lengths, block size "
        "and the law of parents."
    )
    return Chapter(
        "sharing", "Sharing", "Memory saved by samples and beams", sentence, findings, [chart]
    )


def _saved(summary: Summary) -> float:
    return float(summary["figures"]["kv_saved_by_sharing"] or 0.0)
