"""A claim: four sampled answers need little more than a third of four separate ones' memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.metrics.summary import Summary
from kvsim.paper.chapter import Chapter, Finding
from kvsim.paper.charts import lines
from kvsim.paper.tasks import Task, summary_of
from kvsim.report.figure import axis

FILE = "four_samples.yaml"
PROMPT_TOKENS, SAMPLES = 800.0, 4
ANSWERS = (25.0, 50.0, 100.0, 200.0, 400.0)
ENGINES = {"base": "vLLM V0, forked", "vllm_v1": "vLLM V1, found in the prefix cache"}
CLAIM = 100 / 3
QUICK_REQUESTS = 40


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return each answer length on both engines."""
    hurry: dict[str, Any] = {"workload.num_requests": QUICK_REQUESTS} if quick else {}
    return {
        f"{engine}/{answer:g}": Task(
            summary_of,
            (folder / FILE, engine, {"workload.lengths.output_mean_tokens": answer} | hurry),
        )
        for engine in ENGINES
        for answer in ANSWERS
    }


def chapter(results: Mapping[str, Summary]) -> Chapter:
    """Say how long answers may be for the claim to hold."""
    findings = [
        Finding(
            f"{words}: answers of {answer:g} tokens to prompts of {PROMPT_TOKENS:g}",
            "%",
            CLAIM,
            needed(results[f"{engine}/{answer:g}"]),
            None,
            f"On paper, with answers half done: {on_paper(answer):.0f} %.",
        )
        for engine, words in ENGINES.items()
        for answer in ANSWERS
    ]
    curves: dict[str, Any] = {
        words: (ANSWERS, [needed(results[f"{engine}/{answer:g}"]) for answer in ANSWERS])
        for engine, words in ENGINES.items()
    }
    curves["on paper"] = (ANSWERS, [on_paper(answer) for answer in ANSWERS])
    curves["a third"] = ([ANSWERS[0], ANSWERS[-1]], [CLAIM, CLAIM])
    longest = needed(results[f"base/{ANSWERS[-1]:g}"])
    chart = lines(
        "four-samples",
        f"With answers half as long as the prompt it is {longest:.0f} % already",
        "Memory of four samples, of that of four requests that share nothing; averaged over time.",
        (axis("answer (tokens)"), axis("memory (%)", rangemode="tozero")),
        curves,
    )
    sentence = (
        "Of n samples with a prompt of P tokens and A tokens of answer so far, the memory is "
        "(P + n A) / (n (P + A)). For four that is at least a quarter, and a third where A is an "
        "eighth of P, which with answers half done on average means answers of a quarter of the "
        "prompt. The claim holds for long prompts and short answers; for chats, whose answers are "
        "longer than their prompts, it breaks. Partly filled blocks, and samples that outlive the "
        "others, take a little more than on paper."
    )
    title = "Four samples: little more than a third of the memory?"
    return Chapter("four_samples", "A third", title, sentence, findings, [chart])


def needed(summary: Summary) -> float:
    """Return the memory that is needed, in percent of what it would be without sharing."""
    return 100 * (1 - float(summary["figures"]["kv_saved_by_sharing"] or 0.0))


def on_paper(answer_tokens: float) -> float:
    """Return the same for equal answers that are half done, in percent; blocks are one token."""
    own = answer_tokens / 2
    return 100 * (PROMPT_TOKENS + SAMPLES * own) / (SAMPLES * (PROMPT_TOKENS + own))
