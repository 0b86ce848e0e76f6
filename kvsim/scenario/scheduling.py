"""What an earlier engine makes of a scenario: settings that are fixed, and what it lacks."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvsim.engine.allocators.paged import Paged
from kvsim.errors import Problem
from kvsim.gpu import GpuSpec
from kvsim.memory import MemoryFlags
from kvsim.memory.kv_groups import kv_layout
from kvsim.model import ModelSpec
from kvsim.scenario.schema import KernelStepCost, Scenario


def as_scheduled(scenario: Scenario) -> Scenario:
    """Return the scenario with the settings that its scheduler runs with, where none is written."""
    scheduler, cost = scenario.scheduler, scenario.cost
    settings = {"watermark": scheduler.watermark, **scheduler.fixed}
    usual: dict[str, Any] = {
        name: value
        for name, value in settings.items()
        if name not in scenario.engine.model_fields_set
    }
    names_no_profile = isinstance(cost, KernelStepCost) and "profile" not in cost.model_fields_set
    if scheduler.profile and names_no_profile:
        cost = cost.model_copy(update={"profile": scheduler.profile})
    cache = scenario.kv_cache
    if scheduler.fixed and isinstance(cache, Paged) and "null_block" not in cache.model_fields_set:
        cache = cache.model_copy(update={"null_block": False})  # it came with V1
    engine = scenario.engine.model_copy(update=usual)
    return scenario.model_copy(update={"engine": engine, "cost": cost, "kv_cache": cache})


def at_whole_prompts(scenario: Scenario, flags: MemoryFlags) -> MemoryFlags:
    """Return the flags with a token budget that takes the longest prompt, if it must and may.

    Engines that compute whole prompts had such a default.
    """
    engine = scenario.engine
    if not scenario.scheduler.fixed or engine.enable_chunked_prefill:
        return flags
    if engine.max_num_batched_tokens is not None:
        return flags
    tokens = max(flags.max_num_batched_tokens, flags.max_model_len)
    return replace(flags, max_num_batched_tokens=tokens)


def scheduler_problems(
    scenario: Scenario, model: ModelSpec, gpu: GpuSpec, flags: MemoryFlags
) -> Iterator[Problem]:
    """Yield what makes no sense together with the scheduler, each with its place.

    Args:
        scenario: As written.
        model: As served.
        gpu: Each of the replica's GPUs.
        flags: Settings that decide how the KV cache is cut into blocks.
    """
    scheduler, engine = scenario.scheduler, scenario.engine
    for name, value in scheduler.fixed.items():
        if name in engine.model_fields_set and getattr(engine, name) not in (value, None):
            why = f"the scheduler {scheduler.kind} runs with {_shown(value)}; remove it"
            yield Problem(why, path=f"engine.{name}")
    if scenario.kv_cache.kind not in scheduler.layouts:
        works_with = " or ".join(scheduler.layouts)
        why = f"the scheduler {scheduler.kind} works with kv_cache: {works_with} only"
        yield Problem(why, path="kv_cache")
    if scheduler.swaps and gpu.pcie_bytes_per_s is None:
        why = f"swapping needs the link to the host: pcie_bytes_per_s of {gpu.name} is not known"
        yield Problem(why, path="scheduler.preemption")
    if scheduler.fixed and any(group.window_tokens for group in kv_layout(model, flags).groups):
        why = (
            f"the scheduler {scheduler.kind} keeps the whole context in all layers, and "
            f"{model.name} has sliding windows; set disable_hybrid_kv_cache_manager: true"
        )
        yield Problem(why, path="engine.disable_hybrid_kv_cache_manager")


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else value
