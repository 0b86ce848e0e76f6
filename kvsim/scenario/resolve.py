"""Scenario → everything a simulation needs, with the defaults of vLLM filled in."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from kvsim.cost import StepCost
from kvsim.cost.affine import AffineCost
from kvsim.cost.kernels import NODE_GPUS, Deployment, build_cost
from kvsim.engine.config import EngineConfig
from kvsim.errors import InputError, Problem
from kvsim.gpu import GpuSpec, Price, load_gpu, price_of
from kvsim.memory import (
    KVGroup,
    MemoryBudget,
    MemoryFlags,
    at_auto_dtype,
    memory_budget,
    parallel_problems,
    parse_startup_line,
    resolve_flags,
    split_memory,
)
from kvsim.model import ModelSpec, Parallelism, load_model, quantized_weights
from kvsim.policy import Parameters
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.notes import notes_on
from kvsim.scenario.profiles import EngineProfile, load_profile
from kvsim.scenario.scheduling import as_scheduled, at_whole_prompts, scheduler_problems
from kvsim.scenario.schema import (
    BASE,
    MOST_BLOCKS,
    AffineStepCost,
    AnyCost,
    Engine,
    Scenario,
)
from kvsim.scenario.variant import ResolvedVariant

T = TypeVar("T")

MOST_ENGINES = 1024
_BEYOND_NODE = (
    f"more than {NODE_GPUS} GPUs leave the node with what they share of each layer, and "
    "collectives between nodes are not priced; use pipeline_parallel_size or replicas"
)


def resolve(scenario: Scenario, name: str = BASE, base_dir: Path | None = None) -> ResolvedVariant:
    """Fill in all defaults of one variant and check that the engine would start.

    Args:
        scenario: The variant, overrides merged in.
        name: Its name.
        base_dir: Where a relative path of a model starts, the working directory by default.

    Raises:
        InputError: Settings that vLLM refuses, a model that does not fit the GPU, or one whose
            steps can't be priced.
    """
    as_written, scenario = scenario, as_scheduled(scenario)
    gpu = load_gpu(scenario.gpu) if isinstance(scenario.gpu, str) else scenario.gpu.spec()
    model = _served(load_model(scenario.model, base_dir), scenario.engine, gpu)
    flags = at_whole_prompts(scenario, _memory_flags(scenario.engine, model, gpu))
    _check(model, scenario, flags, scheduler_problems(as_written, model, gpu, flags))
    price = _price(scenario, gpu)
    memory = _at("engine", lambda: memory_budget(model, gpu, flags))
    if memory.num_gpu_blocks > MOST_BLOCKS:
        what = (
            f"a KV cache of {memory.num_gpu_blocks} blocks; at most {MOST_BLOCKS} can be simulated"
        )
        raise InputError(Problem(what, path="engine"))
    profile = _at("cost.profile", lambda: _profile(scenario.cost, base_dir))
    config = replace(
        _config(scenario.engine, flags, memory.num_gpu_blocks, memory.kv_layout.groups),
        async_scheduling=_schedules_ahead(scenario.engine, profile),
    )
    cost = _at("model", lambda: _step_cost(scenario, model, gpu, config, profile))
    return ResolvedVariant(
        name=name,
        scenario=scenario,
        model=model,
        gpu=gpu,
        engine=config,
        memory=memory,
        cost=cost,
        profile=profile,
        price=price,
        notes=tuple(notes_on(scenario, config, gpu, memory, price, cost.basis)),
    )


def resolve_all(file: ScenarioFile) -> dict[str, ResolvedVariant]:
    """Resolve the base and all variants, in the order of the file, the base first.

    Raises:
        InputError: With the problems of all variants, each with its place in the file.
    """
    resolved: dict[str, ResolvedVariant] = {}
    problems: dict[Problem, str] = {}  # → the variant that has it; the base before its heirs
    for name, scenario in file.variants.items():
        try:
            resolved[name] = resolve(scenario, name, file.base_dir)
        except InputError as error:
            for problem in error.problems:
                problems.setdefault(problem, name)
    if problems:
        raise InputError(*(file.located(problem, name) for problem, name in problems.items()))
    return resolved


def memory_of(scenario: Scenario, vllm_version: str) -> MemoryBudget:
    """Return where a GPU's memory goes if this version of vLLM serves a scenario.

    Raises:
        InputError: As `resolve`, but whether steps can be priced doesn't matter.
    """
    gpu = load_gpu(scenario.gpu) if isinstance(scenario.gpu, str) else scenario.gpu.spec()
    model = _served(load_model(scenario.model), scenario.engine, gpu)
    flags = replace(_memory_flags(scenario.engine, model, gpu), vllm_version=vllm_version)
    return _at("engine", lambda: memory_budget(model, gpu, flags))


def _served(model: ModelSpec, engine: Engine, gpu: GpuSpec) -> ModelSpec:
    """Return the model with the engine's dtype and quantization."""
    if engine.dtype == "auto":
        model = at_auto_dtype(model, gpu)
    else:
        model = replace(model, dtype="float16" if engine.dtype == "half" else engine.dtype)
    if engine.quantization is None:
        return model
    if model.quantization is None:
        return replace(model, quantization=quantized_weights(engine.quantization))
    stored = model.quantization.weight_dtype
    if stored.removesuffix("_block") == engine.quantization:
        return model
    raise InputError(
        Problem(
            f"{model.name} is a checkpoint in {stored}, which can't be loaded as "
            f"{engine.quantization}; leave quantization out",
            path="engine.quantization",
        )
    )


def _memory_flags(engine: Engine, model: ModelSpec, gpu: GpuSpec) -> MemoryFlags:
    flags = resolve_flags(
        model,
        gpu,
        max_model_len=engine.max_model_len,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        tensor_parallel_size=engine.tensor_parallel_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        block_size=engine.block_size,
        kv_cache_dtype=engine.kv_cache_dtype,
        enforce_eager=engine.enforce_eager,
        num_gpu_blocks_override=engine.num_gpu_blocks_override,
        kv_cache_memory_bytes=engine.kv_cache_memory_bytes,
        disable_hybrid_kv_cache_manager=engine.disable_hybrid_kv_cache_manager,
        pipeline_parallel_size=engine.pipeline_parallel_size,
        data_parallel_size=engine.data_parallel_size,
        enable_expert_parallel=engine.enable_expert_parallel,
    )
    if engine.kv_startup_line is None:
        return flags
    line = engine.kv_startup_line
    layout = _at("engine.tensor_parallel_size", lambda: split_memory(model, gpu, flags).kv_layout)
    blocks = _at("engine.kv_startup_line", lambda: parse_startup_line(line, layout))
    return replace(flags, num_gpu_blocks_override=blocks)


def _check_layout(model: ModelSpec, replicas: int, parallel: Parallelism) -> Iterator[Problem]:
    for name, why in parallel_problems(model, parallel).items():
        yield Problem(why, path=f"engine.{name}")
    if parallel.tensor_parallel_size > NODE_GPUS:
        yield Problem(_BEYOND_NODE, path="engine.tensor_parallel_size")
    elif model.is_moe and parallel.data_parallel_size > 1 and parallel.num_gpus > NODE_GPUS:
        # The GPUs of a rank stand side by side, so those that share a layer are on other nodes.
        yield Problem(_BEYOND_NODE, path="engine.data_parallel_size")
    engines = replicas * parallel.data_parallel_size
    if engines > MOST_ENGINES:
        what = f"{engines} engines in all replicas; at most {MOST_ENGINES} can be simulated"
        yield Problem(what, path="engine.data_parallel_size")


def _check(
    model: ModelSpec, scenario: Scenario, flags: MemoryFlags, further: Iterable[Problem]
) -> None:
    """Refuse what vLLM refuses at start-up, and `further` problems, all of it in one go."""
    engine = scenario.engine
    problems = [*further, *_check_layout(model, scenario.replicas, flags.parallel)]
    try:
        model.check_tensor_parallel(flags.tensor_parallel_size)
    except InputError as error:
        problems += [
            replace(problem, path="engine.tensor_parallel_size") for problem in error.problems
        ]
    if flags.max_model_len > model.max_position_embeddings:
        problems.append(
            Problem(
                f"{flags.max_model_len} is more than the {model.max_position_embeddings} "
                f"positions of {model.name}",
                path="engine.max_model_len",
            )
        )
    try:
        _config(engine, flags, num_gpu_blocks=1, groups=())
    except InputError as error:
        problems += [
            replace(problem, path=problem.path or "engine.max_num_batched_tokens")
            for problem in error.problems
        ]
    if problems:
        raise InputError(*problems)


def _config(
    engine: Engine, flags: MemoryFlags, num_gpu_blocks: int, groups: tuple[KVGroup, ...]
) -> EngineConfig:
    return EngineConfig(
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_model_len=flags.max_model_len,
        num_gpu_blocks=num_gpu_blocks,
        block_size=flags.block_size,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        scheduler_reserve_full_isl=engine.scheduler_reserve_full_isl,
        watermark=engine.watermark,
        enable_prefix_caching=engine.enable_prefix_caching,
        scheduling_policy=engine.scheduling_policy,
        max_num_scheduled_tokens=engine.max_num_scheduled_tokens,
        max_num_active_seqs=engine.max_num_active_seqs,
        long_prefill_token_threshold_adaptive=engine.long_prefill_token_threshold_adaptive,
        prefill_schedule_interval=engine.prefill_schedule_interval,
        kv_groups=groups if any(group.window_tokens for group in groups) else (),
        prefix_cache_retention_interval=engine.prefix_cache_retention_interval,
    )


def _profile(law: AnyCost, base_dir: Path | None) -> EngineProfile | None:
    """Return the profile with what the scenario says otherwise; a law of the user's has none."""
    if isinstance(law, AffineStepCost):
        return None
    profile = load_profile(law.profile, base_dir)
    changes: dict[str, Parameters] = {}
    if law.front_end is not None:
        changes["front_end"] = _with_given(profile.front_end, law.front_end)
    if law.overhead is not None:
        alike = law.overhead.kind == profile.overhead.kind
        base = profile.overhead if alike else law.overhead
        changes["overhead"] = _with_given(base, law.overhead)
    return profile.model_copy(update=changes)


def _with_given(base: Parameters, given: Parameters) -> Parameters:
    """Return `base` with those fields of `given` that were written down."""
    return base.model_copy(update={name: getattr(given, name) for name in given.model_fields_set})


def _schedules_ahead(engine: Engine, profile: EngineProfile | None) -> bool:
    if engine.async_scheduling is not None:
        return engine.async_scheduling
    return profile is None or profile.async_scheduling


def _step_cost(
    scenario: Scenario,
    model: ModelSpec,
    gpu: GpuSpec,
    config: EngineConfig,
    profile: EngineProfile | None,
) -> StepCost:
    law = scenario.cost
    if isinstance(law, AffineStepCost):
        return AffineCost(**law.model_dump(exclude={"kind"}))
    assert profile is not None  # every other law has one
    deployment = Deployment(
        tensor_parallel_size=scenario.engine.tensor_parallel_size,
        kv_cache_dtype=scenario.engine.kv_cache_dtype,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        pipeline_parallel_size=scenario.engine.pipeline_parallel_size,
        data_parallel_size=scenario.engine.data_parallel_size,
        enable_expert_parallel=scenario.engine.enable_expert_parallel,
        all2all_backend=scenario.engine.all2all_backend,
        expert_routing=law.expert_routing,
        sampling=law.sampling,
    )
    return build_cost(model, gpu, deployment, profile.overhead)


def _price(scenario: Scenario, gpu: GpuSpec) -> Price | None:
    given = scenario.price_usd_per_gpu_hour
    if given is None:
        return price_of(gpu.name)
    return Price(given, given, given, as_of="", source="the scenario")


def _at(path: str, action: Callable[[], T]) -> T:
    """Run `action`; its problems that name no place get this one."""
    try:
        return action()
    except InputError as error:
        raise InputError(
            *(replace(problem, path=problem.path or path) for problem in error.problems)
        ) from error
