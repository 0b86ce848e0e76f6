"""What a reader of the results must know about a variant, in sentences."""

from collections.abc import Iterator

from kvsim.defaults import VLLM_VERSION, engine_defaults
from kvsim.gpu import GpuSpec, Price
from kvsim.memory import MemoryBudget
from kvsim.scenario.schema import Scenario


def notes_on(
    scenario: Scenario, gpu: GpuSpec, memory: MemoryBudget, price: Price | None
) -> Iterator[str]:
    """Yield where the simulated server differs from vLLM's defaults, and what was assumed."""
    defaults, flags = engine_defaults(gpu), memory.flags
    if defaults.enable_prefix_caching:
        yield (
            f"Prefix caching is off: it is not modelled in this version. vLLM {VLLM_VERSION} has "
            "it on by default; where prompts share beginnings, the server does better."
        )
    if defaults.async_scheduling:
        yield (
            f"Scheduling is synchronous: a step is scheduled when the one before has ended. vLLM "
            f"{VLLM_VERSION} by default schedules it meanwhile."
        )
    filled = [
        f"{name} {getattr(flags, name)}"
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
        if getattr(scenario.engine, name) is None
    ]
    if filled:
        yield f"Defaults of vLLM {VLLM_VERSION} for this model on {gpu.name}: {', '.join(filled)}."
    if not memory.usable_is_known:
        yield f"The usable memory of {gpu.name} is not known: estimated from the nominal one."
    if memory.blocks_source != "computed":
        yield f"The size of the KV cache is given ({memory.blocks_source}), not computed."
    if price is not None and price.as_of:
        yield f"Price of {gpu.name} as of {price.as_of}: {price.source}."
