"""Figure 19: what recomputing a preempted sequence costs, and what swapping it, by block size."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvsim.cost.attention_kernels.paged_2023 import Paged2023
from kvsim.engine.schedulers.vllm_v0 import VllmV0
from kvsim.errors import InputError
from kvsim.metrics.summary import Summary
from kvsim.paper.chapter import Chapter, Finding
from kvsim.paper.charts import bars, lines
from kvsim.paper.printed import printed
from kvsim.paper.tasks import Task, summary_of
from kvsim.report.figure import axis
from kvsim.scenario.load import load_scenario
from kvsim.scenario.resolve import resolve

FILE = "recompute_or_swap.yaml"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
COMPARABLE = (16, 32, 64)  # sizes at which the paper finds both comparable
RUN_SIZES = (1, 4, 16, 64)
WAYS = {"base": "recompute", "swap": "swap"}
TOKENS = 512  # of the sequence whose blocks are taken away, about the mean context of ShareGPT
WITHIN = 2.0  # so far apart are costs that are still comparable
QUICK_S = 120.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What a preemption costs by block size, in ms."""

    recompute: Mapping[int, float]
    swap: Mapping[int, float]  # out and in again


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return the cost of one preemption, and runs with either way."""
    path = folder / FILE
    shorter: dict[str, Any] = {"workload.duration_s": QUICK_S} if quick else {}
    # Small blocks slow the kernel, too; here only the copies are to differ.
    shorter["cost.attention_kernel"] = Paged2023(per_block_fraction=0.0)
    runs = {
        f"{name}/{size}": Task(summary_of, (path, name, {"engine.block_size": size, **shorter}))
        for name in WAYS
        for size in RUN_SIZES
    }
    return {"one": Task(costs_of_one, (path,)), **runs}


def costs_of_one(path: Path) -> Costs:
    """Price one sequence of `TOKENS`: a step that computes it, and copies out and back.

    Raises:
        InputError: The file is wrong, or such a server would not start.
    """
    file = load_scenario(path)
    recompute, swap = {}, {}
    for size in SIZES:
        scenario = file.variants["swap"]
        engine = scenario.engine.model_copy(update={"block_size": size})
        variant = resolve(scenario.model_copy(update={"engine": engine}), "swap", file.base_dir)
        chunks_ns = variant.cost.chunks_ns([(TOKENS, 0)])
        recompute[size] = variant.cost.step_ns(TOKENS, 1, 0, 0, chunks_ns) / 1e6
        scheduler, block = variant.scenario.scheduler, variant.kv_block
        if not isinstance(scheduler, VllmV0) or block is None:
            raise InputError(f"{path}: the variant swap needs vllm_v0, and a GPU with a known link")
        copy_ns = scheduler.link.copy_ns(block.size_bytes, block.tensors, block.link_bytes_per_s)
        swap[size] = 2 * -(-TOKENS // size) * copy_ns / 1e6
    return Costs(recompute, swap)


def chapter(results: Mapping[str, Any]) -> Chapter:
    """Compare both ways by block size."""
    costs: Costs = results["one"]
    curves = {
        "recompute": (SIZES, [costs.recompute[size] for size in SIZES]),
        "swap out and in": (SIZES, [costs.swap[size] for size in SIZES]),
    }
    at = {f"blocks of {size}": costs.recompute[size] / costs.swap[size] for size in COMPARABLE}
    ratios = ", ".join(f"{ratio:.2f} with {words}" for words, ratio in at.items())
    latencies = {
        name: [_latency_s(results[f"{way}/{size}"]) for size in RUN_SIZES]
        for way, name in WAYS.items()
    }
    dearer = [s / r for r, s in zip(latencies["recompute"], latencies["swap"], strict=True)]
    charts = [
        lines(
            "swap-costs",
            f"Recompute is {ratios}: times the cost of swapping",
            f"{TOKENS} tokens of OPT-13B on A100-40GB: the step that computes them again, and the "
            "copies to the host and back, one for each block, layer, and keys or values.",
            (
                axis("block size (tokens)", type="log", tickvals=list(SIZES)),
                axis("ms", type="log"),
            ),
            curves,
        ),
        bars(
            "swap-runs",
            f"Under load swapping takes {dearer[0]:.3g} times as long as recompute with blocks of "
            f"{RUN_SIZES[0]}, {dearer[-1]:.3g} times with blocks of {RUN_SIZES[-1]}",
            "Mean normalized latency of ShareGPT at 2 requests/s, if block sizes cost the kernel "
            "nothing.",
            "s a token",
            [f"blocks of {size}" for size in RUN_SIZES],
            latencies,
        ),
    ]
    sentence = (
        "Taking the blocks of a sequence away and giving them back. Swapping copies many small "
        "pieces where blocks are small; computing again is one step, whatever the block size. The "
        "link moves 12.6 GB/s in large pieces, measured on A100-40GB; each copy takes 4.6 µs more."
    )
    title = "Figure 19: recompute or swap"
    return Chapter("figure19", "Figure 19", title, sentence, _findings(costs), charts)


def _findings(costs: Costs) -> list[Finding]:
    most = (
        1
        + printed()["figure19_swap_vs_recompute"][
            "recompute_overhead_at_most_this_fraction_above_swap"
        ]
    )
    flat = max(costs.recompute.values()) / min(costs.recompute.values())
    falls = min(costs.swap[a] / costs.swap[b] for a, b in pairwise(SIZES))
    worst = max(SIZES, key=lambda size: costs.recompute[size] / costs.swap[size])
    return [
        Finding("recompute: dearest over cheapest block size", "x", 1.0, flat, (1.0, 1.02)),
        Finding("swap: each size over the next larger one, at least", "x", None, falls, (1.0, 2.0)),
        *(
            Finding(
                f"recompute over swap in blocks of {size}",
                "x",
                1.0,
                costs.recompute[size] / costs.swap[size],
                (1 / WITHIN, WITHIN),
                f"Comparable, says the paper: here within a factor of {WITHIN:g}.",
            )
            for size in COMPARABLE
        ),
        Finding(
            "recompute over swap, at most",
            "x",
            most,
            costs.recompute[worst] / costs.swap[worst],
            (0.0, most),
            f"In blocks of {worst}. It rests on the link: with 78 % of its peak, as on H100, "
            "instead of the measured 39 %, swapping large blocks would take half as long.",
        ),
    ]


def _latency_s(summary: Summary) -> float:
    return float(summary["figures"]["normalized_mean_s"])
