"""A claim: a service for very long documents goes from refusing two in five to accepting all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.metrics.summary import Summary
from kvsim.paper.chapter import Chapter, Finding, Printed
from kvsim.paper.charts import lines
from kvsim.paper.tasks import Task, summary_of
from kvsim.report.figure import axis

FILE = "very_long_documents.yaml"
VARIANTS = {"contiguous": "contiguous", "paged_alone": "paged", "base": "paged, prefix shared"}
RATES = (0.1, 0.2, 0.3)  # requests/s
AT = 0.2  # where the claim is looked at
QUICK_REQUESTS = 40


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return three layouts of the KV cache at each rate."""
    hurry: dict[str, Any] = {"workload.num_requests": QUICK_REQUESTS} if quick else {}
    return {
        f"{variant}/{rate:g}": Task(
            summary_of, (folder / FILE, variant, {"workload.arrivals.rate_per_s": rate} | hurry)
        )
        for variant in VARIANTS
        for rate in RATES
    }


def chapter(results: Mapping[str, Summary]) -> Chapter:
    """Say at which loads the claim holds."""
    claims: dict[str, Printed] = {"contiguous": 40.0, "base": (0.0, 5.0)}
    findings = [
        Finding(
            f"{words}, {rate:g} requests/s: refused",
            "%",
            claims.get(variant) if rate == AT else None,
            _refused(results[f"{variant}/{rate:g}"]),
            None,
            _why(results[f"{variant}/{rate:g}"]),
        )
        for rate in RATES
        for variant, words in VARIANTS.items()
    ]
    before, after = (results[f"{variant}/{AT:g}"] for variant in ("contiguous", "base"))
    findings += [
        Finding(
            "p95 response time, paged with shared prefix over contiguous",
            "",
            (0.0, 0.5),
            _figure(after, "e2e_p95_s") / _figure(before, "e2e_p95_s"),
            None,
            "Of those who got an answer. The contiguous server's is what clients put up with.",
        ),
        Finding(
            "memory saved by the shared prefix",
            "%",
            30.0,
            100 * _figure(after, "kv_saved_by_sharing"),
            None,
            "At most the prefix's part of a sequence, 16,000 of some 42,000 tokens; with m at once "
            "about (1 - 1/m) of it.",
        ),
    ]
    chart = lines(
        "documents",
        f"At {AT:g} requests/s it is {_refused(before):.0f} % against {_refused(after):.0f} %",
        "Requests that aren't answered within two minutes, by load.",
        (axis("requests/s"), axis("refused (%)", rangemode="tozero")),
        {
            words: (RATES, [_refused(results[f"{variant}/{rate:g}"]) for rate in RATES])
            for variant, words in VARIANTS.items()
        },
    )
    sentence = (
        "Documents of 26,000 to 56,000 tokens, the first 16,000 of them the same general terms. "
        "Reservations of the longest context leave room for three at a time. The claim holds "
        "between what three at a time and what the shared prefix sustain: below, nobody is refused "
        "by either; above, arithmetic binds, and both refuse. What is not stored twice isn't "
        "computed twice: most of the gain in response time is prompts that need no prefill."
    )
    title = "Very long documents: from refusing two in five to accepting nearly all?"
    return Chapter("documents", "Documents", title, sentence, findings, [chart])


def _figure(summary: Summary, name: str) -> float:
    return float(summary["figures"][name] or 0.0)


def _refused(summary: Summary) -> float:
    return 100 * _figure(summary, "unanswered_fraction")


def _why(summary: Summary) -> str:
    figures = summary["figures"]
    p95_s, running = figures["e2e_p95_s"], figures["running_seqs_mean"]
    return f"p95 of the answered {p95_s:.0f} s; {running:.1f} at once." if p95_s else ""
