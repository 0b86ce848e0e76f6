"""The defaults of `vllm serve` in the version that kvsim follows, read from its package."""

from typing import NamedTuple

from kvsim.gpu import GpuSpec
from kvsim.units import GIB

VLLM_VERSION = "0.33.0"
GPU_MEMORY_UTILIZATION = 0.92
BLOCK_SIZE = 16


class StepLimits(NamedTuple):
    """The largest step: tokens and sequences."""

    max_num_batched_tokens: int
    max_num_seqs: int


def default_step_limits(gpu: GpuSpec) -> StepLimits:
    """Return the defaults that hold on a GPU: more memory, larger steps.

    Its memory and its name count (vLLM leaves A100 and GB10 out by name).
    """
    memory_gib = (gpu.usable_hbm_bytes or gpu.hbm_bytes) / GIB
    if memory_gib >= 160:
        return StepLimits(16384, 1024)
    name = gpu.name.lower()
    if memory_gib >= 70 and "a100" not in name and "gb10" not in name:
        return StepLimits(8192, 1024)
    return StepLimits(2048, 256)
