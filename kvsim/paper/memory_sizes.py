"""Table 1: how many tokens the KV cache holds, from the printed sizes and from our own."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.gpu import load_gpu
from kvsim.memory import memory_budget, resolve_flags
from kvsim.model import load_model
from kvsim.paper.chapter import Chapter, Finding, within
from kvsim.paper.printed import printed
from kvsim.paper.tasks import Task
from kvsim.units import GIB

SERVERS = {
    "OPT-13B": ("facebook/opt-13b", "a100_sxm_40gb", 1),
    "OPT-66B": ("facebook/opt-66b", "a100_sxm_40gb", 4),
    "OPT-175B": ("facebook/opt-175b", "a100_sxm", 8),
}
GPU_MEMORY_UTILIZATION = 0.9  # vLLM's default then
VERSION = "0.6.0"  # stands for any version of the legacy engine
_PRINTED_WHY = "Printed GB are GiB; a slot is a token's keys and values in all layers."
_OURS_WHY = (
    "All lines of vLLM's memory profile: also activations of a full step, CUDA's context and the "
    "buffers of collectives, which the printed sizes do not seem to leave out of the budget."
)


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return what has to be simulated: nothing."""
    return {}


def chapter(results: Mapping[str, Any]) -> Chapter:
    """Return the rows of the table."""
    findings = []
    for row in printed()["table1"]:
        slots, predicted_bytes = _slots_and_prediction(row["model"], row["kv_gb"])
        what = f"{row['model']} on {row['gpus']}"
        said = row["kv_slots"]
        findings += [
            Finding(f"{what}: KV slots", "", said, slots, within(said, 0.02), _PRINTED_WHY),
            Finding(
                f"{what}: KV cache, our own prediction",
                "GiB",
                row["kv_gb"],
                predicted_bytes / GIB,
                None,
                _OURS_WHY,
            ),
        ]
    sentence = (
        "From the printed KV sizes the number of slots follows. All other chapters take the "
        "printed sizes, so that they compare systems and not memory profiles."
    )
    return Chapter("table1", "Table 1", "Table 1: model sizes and KV slots", sentence, findings)


def _slots_and_prediction(name: str, kv_gib: float) -> tuple[int, int]:
    """Return the slots in so many GiB, and the bytes that kvsim expects; both of all GPUs."""
    model_name, gpu_name, gpus = SERVERS[name]
    model, gpu = load_model(model_name), load_gpu(gpu_name)
    flags = resolve_flags(
        model,
        gpu,
        tensor_parallel_size=gpus,
        gpu_memory_utilization=GPU_MEMORY_UTILIZATION,
        enforce_eager=True,
    )
    budget = memory_budget(model, gpu, replace(flags, vllm_version=VERSION))
    token_bytes = model.kv_bytes_per_token(gpus) * gpus
    return int(kv_gib * GIB // token_bytes), budget.num_gpu_blocks * budget.block_bytes * gpus
