"""Figures 2 and 13a: what the KV cache holds under four systems, and how many requests run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.metrics.summary import Summary
from kvsim.paper.chapter import Chapter, Finding, about, within
from kvsim.paper.charts import bars
from kvsim.paper.printed import printed
from kvsim.paper.tasks import Task, summary_of

FILE = "kv_shares.yaml"
SYSTEMS = {"orca_max": "Orca (Max)", "orca_pow2": "Orca (Pow2)", "orca_oracle": "Orca (Oracle)"}
VLLM = "vLLM"
# The paper's words → our columns of the KV cache.
PARTS = {
    "token_states": ("token states", ("held", "reusable")),
    "reservation": ("reservation", ("to_come",)),
    "internal_fragmentation": ("internal fragmentation", ("inside",)),
    "external_fragmentation_and_others": (
        "external fragmentation and others",
        ("rounding", "holes", "free"),
    ),
}
POINTS = {"orca_max": 3.0, "orca_pow2": 6.0, "orca_oracle": 6.0}
LEAST_TOKEN_STATES = 95.0
QUICK_S = 300.0

_WHY = {
    "orca_max": "Seven reservations of 2048 are all that fits, whatever the engine's speed. The "
    "reservation's bar is where the shape of the answers was read from; the others follow.",
    "orca_pow2": "Buddy chunks are powers of two, so most of the fragmentation is their rounding. "
    "How chunks are placed and merged is not described in the paper.",
    "orca_oracle": "As Pow2: what a chunk is rounded up by, and holes too small for the next "
    "request.",
}


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return the hour of ShareGPT under each system."""
    changes: dict[str, Any] = {}
    if quick:
        changes = {"workload.duration_s": QUICK_S, "max_simulated_s": QUICK_S}
    return {name: Task(summary_of, (folder / FILE, name, changes)) for name in ("base", *SYSTEMS)}


def chapter(results: Mapping[str, Summary]) -> Chapter:
    """Compare shares and batches."""
    findings = [*_share_findings(results), *_vllm_findings(results), *_batch_findings(results)]
    names = {**SYSTEMS, "base": VLLM}
    shares = {name: shares_of(results[name]) for name in names}
    said = printed()["figure2_kv_memory_share_percent"]
    beside = [(said["vllm" if name == "base" else name], shares[name]) for name in names]
    series = {
        words: [pair[i].get(part, 0.0) for pair in beside for i in (0, 1)]
        for part, (words, _) in PARTS.items()
    }
    batches = printed()["figure13a_mean_batched_requests_opt13b_sharegpt_2rps"]
    charts = [
        bars(
            "kv-shares",
            f"Paging turns {shares['orca_max']['token_states']:.0f} % of useful KV memory into "
            f"{shares['base']['token_states']:.0f} %",
            "Share of the KV cache over the hour, as printed (left) and as simulated (right).",
            "%",
            [f"{words}<br>{whose}" for words in names.values() for whose in ("paper", "kvsim")],
            series,
            stacked=True,
        ),
        bars(
            "batches",
            f"{_batch(results['base']) / _batch(results['orca_max']):.1f} times as many requests "
            "run at once as with the longest reservation",
            "Mean number of requests in the batch in the same hour.",
            "requests",
            list(names.values()),
            {
                "printed": [batches["vllm" if name == "base" else name] for name in names],
                "kvsim": [_batch(results[name]) for name in names],
            },
        ),
    ]
    sentence = (
        "OPT-13B on one A100-40GB, ShareGPT at 2 requests/s for an hour, more than any Orca "
        "serves. Token states are slots that hold tokens; reservation is what will still be "
        "filled; internal fragmentation never will; the rest is buddy rounding, holes, and what is "
        "free when nothing waits."
    )
    return Chapter(
        "figure2", "Figure 2", "Figures 2 and 13a: memory and batches", sentence, findings, charts
    )


def shares_of(summary: Summary) -> dict[str, float]:
    """Return the paper's shares of the KV cache in percent, weighted by busy time."""
    figures = summary["figures"]
    return {
        part: 100 * sum(figures[f"kv_{ours}_share_mean"] or 0.0 for ours in columns)
        for part, (_, columns) in PARTS.items()
    }


def _share_findings(results: Mapping[str, Summary]) -> list[Finding]:
    bars_of = printed()["figure2_kv_memory_share_percent"]
    return [
        Finding(
            f"{words}: {PARTS[part][0]}",
            "%",
            said,
            shares_of(results[name])[part],
            about(said, POINTS[name]),
            _WHY[name] if part == "token_states" else "",
        )
        for name, words in SYSTEMS.items()
        for part, said in bars_of[name].items()
    ]


def _vllm_findings(results: Mapping[str, Summary]) -> list[Finding]:
    shares, figures = shares_of(results["base"]), results["base"]["figures"]
    said = printed()["figure2_kv_memory_share_percent"]["vllm"]["token_states"]
    taken = 100 - 100 * (figures["kv_free_share_mean"] or 0.0)
    ours = 100 * shares["token_states"] / taken if taken else None
    why = (
        "Of the slots in taken blocks. The rest are the unfilled ends of last blocks, about half a "
        f"block a sequence. Of the whole cache it is {shares['token_states']:.1f} %: at this rate "
        "vLLM does not need all of it all the time."
    )
    bounds = (LEAST_TOKEN_STATES, 100.0)
    return [Finding(f"{VLLM}: token states", "%", said, ours, bounds, why)]


def _batch_findings(results: Mapping[str, Summary]) -> list[Finding]:
    said = printed()["figure13a_mean_batched_requests_opt13b_sharegpt_2rps"]
    whys = {
        "orca_max": "Floor of the slots over 2048.",
        "vllm": "Not memory alone decides: at 2 requests/s vLLM is close to what it sustains, so "
        "the batch depends on how long a step takes.",
    }
    names = {**SYSTEMS, "vllm": VLLM}
    return [
        Finding(
            f"{words}: batched requests",
            "",
            said[name],
            _batch(results["base" if name == "vllm" else name]),
            within(said[name], 0.10),
            whys.get(name, "By how well reservations pack."),
        )
        for name, words in names.items()
    ]


def _batch(summary: Summary) -> float:
    return float(summary["figures"]["running_seqs_mean"] or 0.0)
