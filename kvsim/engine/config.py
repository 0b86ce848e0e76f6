"""The engine's settings, as plain numbers, under vLLM's names."""

from dataclasses import dataclass
from typing import Literal

from kvsim.errors import InputError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one replica. Lengths are tokens; `block_size` is tokens a block.

    Raises:
        InputError: The settings contradict one another, as vLLM would refuse them.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_gpu_blocks: int
    block_size: int = 16
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    enable_prefix_caching: bool = False
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than "
                f"max_num_seqs ({self.max_num_seqs}): a step could not give each its token"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise InputError(
                f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) "
                f"must be at least max_model_len ({self.max_model_len})"
            )
