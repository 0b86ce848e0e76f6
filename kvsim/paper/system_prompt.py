"""What a system prompt gains whose blocks the provider keeps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.paper.chapter import Chapter, Finding
from kvsim.paper.charts import bars
from kvsim.paper.tasks import Task, rate_at, summary_of, sustained_rate

FILE = "system_prompt.yaml"
PREFIXES = {"one example": 80, "five examples": 341}  # tokens
SYSTEMS = {"orca_oracle": "Orca (Oracle)", "undeclared": "vLLM", "base": "vLLM, prefix declared"}
NORMALIZED_S = 0.1  # seconds a token
QUICK_S = 30.0

Trials = list[tuple[float, float]]


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return searches for the rate that each system sustains, and what is saved at one rate."""
    hurry: dict[str, Any] = {"workload.duration_s": QUICK_S} if quick else {}
    found = {}
    for words, tokens in PREFIXES.items():
        changes = {"workload.prompts.prefix_tokens": tokens} | hurry
        for system in SYSTEMS:
            arguments = (folder / FILE, system, changes, NORMALIZED_S, ())
            found[f"{words}/{system}"] = Task(sustained_rate, arguments)
        found[f"{words}/saved"] = Task(summary_of, (folder / FILE, "base", changes))
    return found


def chapter(results: Mapping[str, Any]) -> Chapter:
    """Compare the rates."""
    rates = {
        words: {system: rate_at(results[f"{words}/{system}"], NORMALIZED_S) for system in SYSTEMS}
        for words in PREFIXES
    }
    findings = []
    for words, tokens in PREFIXES.items():
        found = rates[words]
        saved = 100 * results[f"{words}/saved"]["figures"]["kv_saved_by_sharing"]
        findings += [
            Finding(
                f"{words} ({tokens} tokens): rate with the prefix declared over {name}",
                "",
                None,
                found["base"] / found[system],
                None,
                f"{found['base']:.1f} against {found[system]:.1f} requests/s. {why}",
            )
            for system, name, why in (
                ("undeclared", "vLLM without", "Saved are prefill and memory of the prefix."),
                ("orca_oracle", "Orca (Oracle)", "Beside that, reservations."),
            )
        ]
        findings.append(
            Finding(
                f"{words}: memory saved",
                "%",
                None,
                saved,
                None,
                "At 10 requests/s; the last block of the prefix is copied if it is partly filled.",
            )
        )
    five = rates["five examples"]
    chart = bars(
        "system-prompt",
        f"Five examples, declared: {five['base'] / five['undeclared']:.1f} times the rate",
        f"Highest rate at {1000 * NORMALIZED_S:.0f} ms of latency a token of the answer.",
        "requests/s",
        list(PREFIXES),
        {name: [rates[words][system] for words in PREFIXES] for system, name in SYSTEMS.items()},
    )
    sentence = (
        "Translations that begin with the same examples. The first request computes their blocks, "
        "which stay; all later ones map them, and compute and keep their own part alone. The gain "
        "grows with the prefix. The lengths of sentences are assumed, and OPT-13B stands for the "
        "paper's model."
    )
    return Chapter(
        "system_prompt",
        "Prefixes",
        "System prompts declared in advance",
        sentence,
        findings,
        [chart],
    )
