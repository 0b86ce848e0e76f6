"""Orca (Yu et al., OSDI 2022): iteration-level batching of whole prompts, one reservation each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from kvsim.engine.allocators import KVAllocator
from kvsim.engine.config import EngineConfig
from kvsim.engine.schedulers import (
    EARLIER_ENGINE,
    WHOLE_PROMPTS,
    KVBlock,
    Scheduler,
    SchedulerPolicy,
    WaitingQueue,
)
from kvsim.engine.schedulers.vllm import VllmScheduler


class Orca(SchedulerPolicy):
    """First come, first served, in every iteration; whole prompts run together with decodes.

    A request is admitted when there is a sequence slot (`max_num_seqs`, Orca's max batch size) and
    a hole for its reservation; it keeps that to its end, so nobody is ever preempted. Orca knows no
    token budget: set `max_num_batched_tokens` so high that it never binds.
    """

    fixed: ClassVar[Mapping[str, Any]] = {**EARLIER_ENGINE, **WHOLE_PROMPTS}
    profile: ClassVar[str] = "vllm-v0"
    layouts: ClassVar[tuple[str, ...]] = ("contiguous",)
    kind: Literal["orca"] = "orca"

    def build(
        self,
        config: EngineConfig,
        allocator: KVAllocator,
        waiting: WaitingQueue,
        block: KVBlock | None = None,
    ) -> Scheduler:
        """Return vLLM's loop: with whole prompts, and memory that never grows, it is Orca's."""
        return VllmScheduler(replace(config, **self.fixed), allocator, waiting)
