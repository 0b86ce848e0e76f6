"""The engine's settings, as plain numbers, under vLLM's names."""

from dataclasses import dataclass
from typing import Literal

from kvsim.errors import InputError, Problem
from kvsim.memory.kv_groups import KVGroup


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one replica. Lengths are tokens; `block_size` is tokens a block.

    `kv_groups` is empty where all layers have full attention.

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
    max_num_scheduled_tokens: int | None = None
    max_num_active_seqs: int | None = None
    prefill_schedule_interval: int = 1
    long_prefill_token_threshold_adaptive: bool = False
    async_scheduling: bool = False
    kv_groups: tuple[KVGroup, ...] = ()
    prefix_cache_retention_interval: int | None = 0

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than "
                f"max_num_seqs ({self.max_num_seqs}): a step could not give each its token"
            )
        for part, whole in (
            ("max_num_scheduled_tokens", "max_num_batched_tokens"),
            ("max_num_active_seqs", "max_num_seqs"),
        ):
            least, most = getattr(self, part) or 0, getattr(self, whole)
            if least > most:
                problem = f"{part} ({least}) is more than {whole} ({most})"
                raise InputError(Problem(problem, path=f"engine.{part}"))
        if not self.enable_chunked_prefill and self.step_tokens < self.max_model_len:
            limit = "batched" if self.max_num_scheduled_tokens is None else "scheduled"
            raise InputError(
                f"without chunked prefill max_num_{limit}_tokens ({self.step_tokens}) "
                f"must be at least max_model_len ({self.max_model_len})"
            )

    @property
    def step_tokens(self) -> int:
        """Most tokens that a step computes (R2)."""
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def running_seqs(self) -> int:
        """Most requests that run at a time (R5)."""
        return self.max_num_active_seqs or self.max_num_seqs
