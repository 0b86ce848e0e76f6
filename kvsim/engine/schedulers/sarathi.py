"""Sarathi-Serve (Agrawal et al., OSDI 2024): chunked prefills that never stall a decode."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from kvsim.engine.allocators import KVAllocator
from kvsim.engine.config import EngineConfig
from kvsim.engine.request import Request
from kvsim.engine.schedulers import (
    EARLIER_ENGINE,
    KVBlock,
    Plan,
    Scheduler,
    SchedulerPolicy,
    WaitingQueue,
)
from kvsim.engine.schedulers._block_engine import BlockEngine
from kvsim.engine.schedulers.vllm import LACKS, LACKS_BUDGET, LACKS_SLOT, PREEMPTING


class Sarathi(SchedulerPolicy):
    """Decodes first; what the token budget leaves goes to prompts, in order of admission.

    A prompt gets all its blocks when it is admitted, and is computed in as many chunks as it
    takes. The latest request gives way when blocks run out, and is computed again. These are the
    rules of its public fork of vLLM V0.
    """

    fixed: ClassVar[Mapping[str, Any]] = {**EARLIER_ENGINE, "enable_chunked_prefill": True}
    watermark: ClassVar[float] = 0.01
    profile: ClassVar[str] = "vllm-v0"
    layouts: ClassVar[tuple[str, ...]] = ("paged",)
    kind: Literal["sarathi"] = "sarathi"
    chunk_size_tokens: int = Field(default=512, ge=1, le=2**20)
    """Tokens of a step, decodes included, at most max_num_batched_tokens; its authors use 512 where
    gaps between tokens must be short and 2048 else."""

    def build(
        self,
        config: EngineConfig,
        allocator: KVAllocator,
        waiting: WaitingQueue,
        block: KVBlock | None = None,
    ) -> Scheduler:
        """Return a scheduler of one replica."""
        return SarathiScheduler(config, allocator, waiting, self.chunk_size_tokens)


class SarathiScheduler(BlockEngine):
    """Stall-free batches."""

    def __init__(
        self,
        config: EngineConfig,
        allocator: KVAllocator,
        waiting: WaitingQueue,
        chunk_size_tokens: int,
    ) -> None:
        """Schedule from `waiting`, which several replicas may share."""
        super().__init__(config, allocator, waiting)
        self._step_tokens = min(chunk_size_tokens, config.max_num_batched_tokens)

    def schedule(self, step: int, in_flight: int = 0) -> Plan:
        """Schedule the decodes, then the prompts that have begun, then waiting ones."""
        plan = self.clear()
        self.grow(step)
        self.beat()
        chunks = self._next_chunks()
        if self.waiting:
            if plan.preempted:
                plan.head_lacks = PREEMPTING
            else:
                self._admit(chunks)
        plan.chunks = chunks
        self.note_stuck()
        return plan

    def _left_tokens(self, chunks: list[Request]) -> int:
        """Return what is left of the budget; decodes alone may exceed it."""
        given_tokens = sum(request.chunk_tokens for request in chunks)
        return max(0, self._step_tokens - len(self.decoding) - given_tokens)

    def _next_chunks(self) -> list[Request]:
        chunks: list[Request] = []
        for request in self.running.values():
            if request.decoding:
                continue
            left_tokens = request.known_tokens - request.computed_tokens
            request.chunk_tokens = min(left_tokens, self._left_tokens(chunks))
            if request.chunk_tokens:
                chunks.append(request)
        return chunks

    def _admit(self, chunks: list[Request]) -> None:
        """Admit from the head of the queue until something lacks; adds their first chunks."""
        plan, waiting = self.plan, self.waiting
        admitted: list[Request] = []
        while waiting:
            request = waiting.head
            idle = not self.running
            if len(self.running) >= self.config.max_num_seqs:
                plan.head_lacks = LACKS_SLOT
                break
            if shortage := self.allocator.shortage(request, request.known_tokens, idle):
                plan.head_lacks = LACKS[shortage]
                break
            left_tokens = self._left_tokens(chunks)
            if not left_tokens:
                plan.head_lacks = LACKS_BUDGET
                break
            self.start(request)
            request.chunk_tokens = min(request.known_tokens, left_tokens)
            admitted.append(request)
            chunks.append(request)
        plan.admitted = admitted
