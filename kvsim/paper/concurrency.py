"""A claim: Llama-2-70B on four A100-80GB goes from about 50 to about 150 concurrent requests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.metrics.summary import Summary
from kvsim.paper.chapter import Chapter, Finding
from kvsim.paper.charts import lines
from kvsim.paper.tasks import Task, summary_of
from kvsim.report.figure import axis

FILE = "llama2_70b_concurrency.yaml"
LAYOUTS = {"contiguous": "4096 tokens reserved", "base": "paged"}
MEMORY = (0.6, 0.66, 0.75, 0.9)  # gpu_memory_utilization
LENGTHS = {"chat": (1000.0, 250.0), "short": (250.0, 200.0), "long": (2500.0, 500.0)}
CLAIM = {"contiguous": 50.0, "base": 150.0}
CLAIMED_AT, SHIPPED_AT = 0.66, 0.9
QUICK_REQUESTS = 60


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return both layouts: by memory for chats, and by length with the default memory."""
    cases = [("chat", memory) for memory in MEMORY]
    cases += [(length, SHIPPED_AT) for length in LENGTHS if length != "chat"]
    return {
        f"{length}/{memory}/{layout}": Task(
            summary_of, (folder / FILE, layout, _changes(length, memory, quick))
        )
        for length, memory in cases
        for layout in LAYOUTS
    }


def chapter(results: Mapping[str, Summary]) -> Chapter:
    """Say under which conditions the claim holds, and where it breaks."""
    findings = []
    for length, memory in (
        ("chat", CLAIMED_AT),
        ("chat", SHIPPED_AT),
        ("short", SHIPPED_AT),
        ("long", SHIPPED_AT),
    ):
        prompt, answer = LENGTHS[length]
        for layout, words in LAYOUTS.items():
            findings.append(
                Finding(
                    f"{prompt:.0f} tokens in, {answer:.0f} out, {memory:.0%} of memory, {words}",
                    "",
                    CLAIM[layout],
                    _at_once(results, length, memory, layout),
                    None,
                    _why(results, length, memory, layout),
                )
            )
    rows: dict[str, Any] = {
        words: (
            [100 * memory for memory in MEMORY],
            [_at_once(results, "chat", memory, layout) for memory in MEMORY],
        )
        for layout, words in LAYOUTS.items()
    }
    low, high = (_at_once(results, "chat", CLAIMED_AT, layout) for layout in LAYOUTS)
    chart = lines(
        "concurrency",
        f"With {CLAIMED_AT:.0%} of the memory it is {low:.0f} to {high:.0f} requests at once",
        "Requests at once in a batch job of chats, by the share of each GPU's memory in use.",
        (axis("gpu_memory_utilization (%)"), axis("requests at once", rangemode="tozero")),
        rows,
    )
    sentence = _sentence(results)
    title = "Llama-2-70B on four A100-80GB: 50 to 150 concurrent requests?"
    return Chapter("concurrency", "50 to 150", title, sentence, findings, [chart])


def _sentence(results: Mapping[str, Summary]) -> str:
    """Say in words under which conditions the claim is true, and where it breaks."""
    few, many = (_at_once(results, "chat", CLAIMED_AT, layout) for layout in LAYOUTS)
    default, _ = (_at_once(results, "chat", SHIPPED_AT, layout) for layout in LAYOUTS)
    before, after = (
        _figures(results, "chat", CLAIMED_AT, layout)["requests_per_s"] for layout in LAYOUTS
    )
    return (
        "Fifty reservations of the model's 4096 tokens are 63 GiB of KV cache: four A100-80GB have "
        "that, beside weights of 129 GiB, if about two thirds of their memory are used. Then it is "
        f"{few:.0f} requests against {many:.0f} for chats of 1,250 tokens, and the claim holds: "
        "for requests at once. It breaks where more memory is used, as is the default (a "
        f"contiguous server runs {default:.0f} from the start), where sequences are long (paging "
        "gains little) or max_num_seqs binds, and for throughput in any case: that is "
        f"{after / before:.2f} times as much, since prompts keep the arithmetic busy."
    )


def _changes(length: str, memory: float, quick: bool) -> dict[str, Any]:
    prompt, answer = LENGTHS[length]
    changes: dict[str, Any] = {
        "engine.gpu_memory_utilization": memory,
        "workload.lengths.prompt_mean_tokens": prompt,
        "workload.lengths.output_mean_tokens": answer,
    }
    return changes | ({"workload.num_requests": QUICK_REQUESTS} if quick else {})


def _figures(results: Mapping[str, Summary], length: str, memory: float, layout: str) -> Any:
    return results[f"{length}/{memory}/{layout}"]["figures"]


def _at_once(results: Mapping[str, Summary], length: str, memory: float, layout: str) -> float:
    """Return the mean batch while requests wait, near enough: the largest, less fluctuation."""
    return float(_figures(results, length, memory, layout)["running_seqs_mean"])


def _why(results: Mapping[str, Summary], length: str, memory: float, layout: str) -> str:
    figures = _figures(results, length, memory, layout)
    text = f"{figures['kv_capacity_tokens']:,} KV slots; {figures['requests_per_s']:.2f} requests/s"
    if layout == "contiguous":
        return f"{text}; floor of the slots over 4096."
    before = _figures(results, length, memory, "contiguous")["requests_per_s"]
    limit = results[f"{length}/{memory}/{layout}"]["limits"]["waiting_share"]
    lacks = max(limit, key=lambda name: limit[name]) if limit else "nothing"
    more = figures["requests_per_s"] / before
    return f"{text}, {more:.2f} times as many; the head of the queue lacks {lacks}."
