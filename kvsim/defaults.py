"""The defaults of `vllm serve` in the version that kvsim follows, read from its package."""

from dataclasses import dataclass

from kvsim.gpu import GpuSpec
from kvsim.units import GIB

VLLM_VERSION = "0.33.0"


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """What the engine takes where the user says nothing; lengths are the model's own."""

    max_num_batched_tokens: int
    max_num_seqs: int
    gpu_memory_utilization: float = 0.92
    block_size: int = 16
    tensor_parallel_size: int = 1
    kv_cache_dtype: str = "auto"
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    async_scheduling: bool = True
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0


def engine_defaults(gpu: GpuSpec, offline: bool = False) -> EngineDefaults:
    """Return the defaults that hold on a GPU: more memory, larger steps.

    Args:
        gpu: Its memory and its name count (vLLM leaves A100 and GB10 out by name).
        offline: Of the `LLM` class, which takes larger steps than the server.
    """
    memory_gib = (gpu.usable_hbm_bytes or gpu.hbm_bytes) / GIB
    if memory_gib >= 160:
        return EngineDefaults(16384, 1024)
    name = gpu.name.lower()
    if memory_gib >= 70 and "a100" not in name and "gb10" not in name:
        return EngineDefaults(16384 if offline else 8192, 1024)
    return EngineDefaults(8192 if offline else 2048, 256)
