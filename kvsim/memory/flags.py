"""The engine's flags that decide how memory is used, and how versions of vLLM differ in it."""

from dataclasses import dataclass
from typing import TypeVar

from kvsim.defaults import (
    BLOCK_SIZE,
    GPU_MEMORY_UTILIZATION,
    VLLM_VERSION,
    default_step_limits,
)
from kvsim.errors import InputError
from kvsim.gpu import GpuSpec
from kvsim.model import ModelSpec, Parallelism

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Generation:
    """How a range of vLLM versions fills the GPU."""

    name: str
    first_version: tuple[int, int]
    profiles_max_model_len: bool  # no chunked prefill: a whole prompt is one step
    counts_context: bool
    counts_cuda_graphs: bool  # inside the budget; older ones capture into what is left beside it
    null_blocks: int
    slides_windows: bool  # sliding layers give blocks back, in groups of their own
    # Bytes alive for each logit at the sampler's peak. With a sort (for top-p): 2 bf16 + 4 fp32
    # logits, 4 + 8 sorted values and indices, 8 indices put in, 4 + 8 CUB's double buffers = 38.
    # Fused top-p kernels: 2 bf16 + 4 fp32, 4 masked, 4 probabilities, 4 noise = 18.
    sampler_bytes_per_logit: int


# The last boundary rests on little: servers of 0.15.1 match the second row, one of 0.23.0 the last.
GENERATIONS = (
    Generation("V0", (0, 0), True, True, False, 0, False, 38),
    Generation("V1", (0, 8), False, False, False, 1, True, 38),
    Generation("V1, graphs in the budget", (0, 19), False, False, True, 1, True, 18),
)


@dataclass(frozen=True, slots=True)
class MemoryFlags:
    """The engine's flags that decide how memory is used, by vLLM's names."""

    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    tensor_parallel_size: int
    gpu_memory_utilization: float
    block_size: int
    kv_cache_dtype: str
    enforce_eager: bool
    num_gpu_blocks_override: int | None
    kv_cache_memory_bytes: int | None  # per GPU; takes the place of the profile run
    vllm_version: str
    disable_hybrid_kv_cache_manager: bool = False
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False

    @property
    def parallel(self) -> Parallelism:
        """How the GPUs share the model."""
        return Parallelism(
            self.tensor_parallel_size,
            self.pipeline_parallel_size,
            self.data_parallel_size,
            self.enable_expert_parallel,
        )

    @property
    def generation(self) -> Generation:
        """How this version fills the GPU."""
        version = _version(self.vllm_version)
        return [g for g in GENERATIONS if g.first_version <= version][-1]

    @property
    def slides_windows(self) -> bool:
        """Whether layers with a sliding window give blocks back."""
        return self.generation.slides_windows and not self.disable_hybrid_kv_cache_manager


_COUNTS = (
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "block_size",
    "num_gpu_blocks_override",
    "kv_cache_memory_bytes",
)


def resolve_flags(  # noqa: PLR0913 - as many as vLLM has
    model: ModelSpec,
    gpu: GpuSpec,
    *,
    max_model_len: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    tensor_parallel_size: int | None = None,
    gpu_memory_utilization: float | None = None,
    block_size: int | None = None,
    kv_cache_dtype: str | None = None,
    enforce_eager: bool = False,
    num_gpu_blocks_override: int | None = None,
    kv_cache_memory_bytes: int | None = None,
    vllm_version: str | None = None,
    disable_hybrid_kv_cache_manager: bool = False,
    pipeline_parallel_size: int | None = None,
    data_parallel_size: int | None = None,
    enable_expert_parallel: bool = False,
) -> MemoryFlags:
    """Return the flags given, with vLLM's defaults for those that are missing or None."""
    limits = default_step_limits(gpu)
    return MemoryFlags(
        max_model_len=_given(max_model_len, model.max_position_embeddings),
        max_num_batched_tokens=_given(max_num_batched_tokens, limits.max_num_batched_tokens),
        max_num_seqs=_given(max_num_seqs, limits.max_num_seqs),
        tensor_parallel_size=_given(tensor_parallel_size, 1),
        gpu_memory_utilization=_given(gpu_memory_utilization, GPU_MEMORY_UTILIZATION),
        block_size=_given(block_size, BLOCK_SIZE),
        kv_cache_dtype=_given(kv_cache_dtype, "auto"),
        enforce_eager=enforce_eager,
        num_gpu_blocks_override=num_gpu_blocks_override,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        vllm_version=_given(vllm_version, VLLM_VERSION),
        disable_hybrid_kv_cache_manager=disable_hybrid_kv_cache_manager,
        pipeline_parallel_size=_given(pipeline_parallel_size, 1),
        data_parallel_size=_given(data_parallel_size, 1),
        enable_expert_parallel=enable_expert_parallel,
    )


def refuse_several_kv_sizes(
    num_gpu_blocks_override: int | None,
    kv_startup_line: str | None,
    kv_cache_memory_bytes: int | None,
) -> None:
    """Refuse a KV cache whose size is given in more than one way.

    Raises:
        InputError: More than one of them is given.
    """
    sizes = {
        "num_gpu_blocks_override": num_gpu_blocks_override,
        "kv_startup_line": kv_startup_line,
        "kv_cache_memory_bytes": kv_cache_memory_bytes,
    }
    given = [name for name, size in sizes.items() if size is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} each give the size of the KV cache: keep one")


def check_flags(model: ModelSpec, flags: MemoryFlags) -> None:
    """Refuse what vLLM refuses before it looks at the GPU.

    Raises:
        InputError: Every flag that is impossible.
    """
    values = {name: getattr(flags, name) for name in _COUNTS}
    problems = [
        f"{name} must be at least 1, not {value}"
        for name, value in values.items()
        if value is not None and value < 1
    ]
    if not 0 < flags.gpu_memory_utilization <= 1:
        problems.append(
            "gpu_memory_utilization must be above 0 and at most 1, "
            f"not {flags.gpu_memory_utilization}"
        )
    if flags.max_model_len > model.max_position_embeddings:
        problems.append(
            f"max_model_len {flags.max_model_len} is more than the "
            f"{model.max_position_embeddings} positions of {model.name}"
        )
    problems += parallel_problems(model, flags.parallel).values()
    if problems:
        raise InputError(*problems)


def parallel_problems(model: ModelSpec, parallel: Parallelism) -> dict[str, str]:
    """Return the flags by which a model can't be shared so, and why; as vLLM refuses them."""
    problems = {}
    if parallel.pipeline_parallel_size > model.num_layers:
        problems["pipeline_parallel_size"] = (
            f"pipeline_parallel_size {parallel.pipeline_parallel_size} is more than the "
            f"{model.num_layers} layers of {model.name}"
        )
    if parallel.enable_expert_parallel and not model.is_moe:
        problems["enable_expert_parallel"] = f"enable_expert_parallel: {model.name} has no experts"
    return problems


def _version(text: str) -> tuple[int, int]:
    parts = text.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        raise InputError(f"vllm_version '{text}' is not a version such as {VLLM_VERSION}")
    return int(parts[0]), int(parts[1])


def _given(value: T | None, default: T) -> T:
    return default if value is None else value
