"""What a reader of the results must know about a variant, in sentences."""

from collections.abc import Iterator, Sequence

from kvsim.cost import Basis
from kvsim.cost.collectives import OVER_PCIE, SLOW
from kvsim.defaults import VLLM_VERSION
from kvsim.engine.config import EngineConfig
from kvsim.gpu import GpuSpec, Price
from kvsim.memory import MemoryBudget
from kvsim.scenario.schema import Scenario

# Components whose kernels are measured on some GPU; small ones are physical everywhere.
KERNELS = (
    "gemm",
    "attention_prefill",
    "attention_decode",
    "experts",
    "communication",
    "logits",
)


def notes_on(
    scenario: Scenario,
    config: EngineConfig,
    gpu: GpuSpec,
    memory: MemoryBudget,
    price: Price | None,
    basis: Sequence[tuple[str, Basis, str]],
) -> Iterator[str]:
    """Yield where the simulated server differs from vLLM's defaults, and what was assumed."""
    flags = memory.flags
    yield from _beyond_measurements(scenario, gpu, basis)
    if config.async_scheduling:
        yield "Scheduling is asynchronous: a step is scheduled while the one before is computed."
    else:
        yield (
            "Scheduling is synchronous: a step is scheduled when the one before has ended. vLLM "
            f"{VLLM_VERSION} by default schedules it meanwhile."
        )
    filled = [
        f"{name} {getattr(flags, name)}"
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
        if getattr(scenario.engine, name) is None
    ]
    yield from _on_layout(scenario)
    if scenario.engine.enforce_eager:
        yield "enforce_eager frees the memory of CUDA graphs; its slower launches are not priced."
    if scenario.routing.kind == "prefix_aware" and not scenario.engine.enable_prefix_caching:
        yield "Without prefix caching the router prefix_aware sends as least_requests does."
    priorities = {traffic.priority for traffic in scenario.workload.classes.values()}
    if len(priorities) > 1 and scenario.engine.scheduling_policy != "priority":
        yield "Classes differ in priority, but the engine's scheduling_policy is fcfs."
    if filled:
        yield f"Defaults of vLLM {VLLM_VERSION} for this model on {gpu.name}: {', '.join(filled)}."
    if not memory.usable_is_known:
        yield f"The usable memory of {gpu.name} is not known: estimated from the nominal one."
    if memory.blocks_source != "computed":
        yield f"The size of the KV cache is given ({memory.blocks_source}), not computed."
    if price is not None and price.as_of:
        usual = f"{price.usd_per_gpu_hour:.2f} (range {price.low:.2f} to {price.high:.2f})"
        yield f"Price of {gpu.name} as of {price.as_of}: USD/h {usual}; {price.source}."


def _beyond_measurements(
    scenario: Scenario, gpu: GpuSpec, basis: Sequence[tuple[str, Basis, str]]
) -> Iterator[str]:
    """Yield what of the prices no measurement of this GPU, or of such a server, stands behind."""
    bases: dict[str, set[str]] = {}
    for component, word, _ in basis:
        bases.setdefault(component, set()).add(word)
    unmeasured = [part for part in KERNELS if bases.get(part) == {"physical"}]
    if unmeasured:
        yield (
            f"BEYOND MEASUREMENTS: on {gpu.name} no table covers "
            f"{', '.join(part.replace('_', ' ') for part in unmeasured)}; physical forms are 10 to "
            "40 % off."
        )
    if scenario.engine.pipeline_parallel_size > 1:
        yield (
            "BEYOND MEASUREMENTS: no measured server with pipeline stages was at hand to compare "
            "the steps with."
        )
    for note in dict.fromkeys(note for _, _, note in basis if SLOW in note or OVER_PCIE in note):
        yield f"BEYOND MEASUREMENTS: communication {note}."


def _on_layout(scenario: Scenario) -> Iterator[str]:
    engine = scenario.engine
    if engine.pipeline_parallel_size > 1:
        yield (
            f"A step is a cycle over {engine.pipeline_parallel_size} pipeline stages, with as many "
            "equal batches in flight: a long prompt among decodes takes longer than that."
        )
    if engine.data_parallel_size > 1:
        yield (
            f"Each replica is {engine.data_parallel_size} engines, which count as replicas of "
            "their own in the tables. The least loaded one gets a request; where ranks share "
            "experts, they are taken to have as many tokens each in every step."
        )
