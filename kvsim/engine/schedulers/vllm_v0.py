"""vLLM V0 as of 2023 (Kwon et al., SOSP 2023): prompts first, preemption by recompute or swap."""

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from kvsim.cost.pcie import HostLink
from kvsim.engine.allocators import KVAllocator, Shortage
from kvsim.engine.config import EngineConfig
from kvsim.engine.request import Request
from kvsim.engine.schedulers import (
    EARLIER_ENGINE,
    WHOLE_PROMPTS,
    KVBlock,
    Plan,
    Scheduler,
    SchedulerPolicy,
    WaitingQueue,
)
from kvsim.engine.schedulers._block_engine import BlockEngine
from kvsim.engine.schedulers.vllm import LACKS, LACKS_BUDGET, LACKS_SLOT, PREEMPTING
from kvsim.engine.swap_space import SwapSpace
from kvsim.errors import require
from kvsim.tables import HEAD_LACKS
from kvsim.units import GIB

LACKS_SWAPPED = HEAD_LACKS.index("swapped")


class VllmV0(SchedulerPolicy):
    """First come, first served; a step computes either whole prompts or one token for each other.

    Prompts come first: while a waiting request fits, decodes pause. When blocks run out, the
    latest request gives way. What was swapped out comes back, earliest first, as soon as its
    blocks and one more fit; until all are back nobody else is admitted. Copies are done before the
    model runs, in the same step. Two rules differ where V0 would hang, ignore a request or crash:
    for the only request the watermark isn't kept back, and no block beyond what it needs; and if
    the swap space is full, a request is computed again.
    """

    fixed: ClassVar[Mapping[str, Any]] = {**EARLIER_ENGINE, **WHOLE_PROMPTS}
    watermark: ClassVar[float] = 0.01
    profile: ClassVar[str] = "vllm-v0"
    layouts: ClassVar[tuple[str, ...]] = ("paged",)
    kind: Literal["vllm_v0"] = "vllm_v0"
    preemption: Literal["auto", "recompute", "swap"] = "auto"
    """What becomes of the blocks of a request that gives way; auto, V0's rule: recompute a single
    sequence, swap a group of several."""
    swap_space_gib: float = Field(default=4.0, ge=0, le=1e5)
    """Memory of the host for swapped blocks of each GPU, GiB; vLLM's swap_space."""
    link: HostLink = HostLink()
    """How blocks get to the host and back."""

    @property
    def swaps(self) -> bool:
        """Whether it copies blocks to the host's memory and back."""
        return self.preemption == "swap"

    def _swap_space(self, block: KVBlock | None) -> SwapSpace | None:
        if self.preemption == "recompute" or block is None:
            return None
        copy_ns = self.link.copy_ns(block.size_bytes, block.tensors, block.link_bytes_per_s)
        return SwapSpace(int(self.swap_space_gib * GIB) // block.size_bytes, copy_ns)

    def build(
        self,
        config: EngineConfig,
        allocator: KVAllocator,
        waiting: WaitingQueue,
        block: KVBlock | None = None,
    ) -> Scheduler:
        """Return a scheduler of one replica."""
        return VllmV0Scheduler(config, allocator, waiting, self._swap_space(block), self.swaps)


class VllmV0Scheduler(BlockEngine):
    """Prompts first; `swaps_single` sequences into its swap space, or recomputes them."""

    def __init__(
        self,
        config: EngineConfig,
        allocator: KVAllocator,
        waiting: WaitingQueue,
        swap_space: SwapSpace | None = None,
        swaps_single: bool = False,
    ) -> None:
        """Schedule from `waiting`, which several replicas may share."""
        super().__init__(config, allocator, waiting, swap_space)
        self._swaps_single = swaps_single
        self._watermark_blocks = int(config.watermark * config.num_gpu_blocks)
        self.swapped: deque[Request] = deque()  # in order of arrival

    def withdraw(self, request: Request) -> None:
        """Forget a request that waits or is swapped out."""
        if request not in self.swapped:
            super().withdraw(request)
            return
        assert self.swap_space is not None
        self.is_stuck = False
        self.swapped.remove(request)
        self.swap_space.take(request.number)
        request.lost_tokens += request.computed_tokens

    def schedule(self, step: int, in_flight: int = 0) -> Plan:
        """Schedule prompts if there are some that fit, else a token for each running request."""
        plan = self.clear()
        if self.waiting:
            if self.swapped:
                plan.head_lacks = LACKS_SWAPPED
            else:
                self._admit()
        if plan.admitted:
            self._pause()
        else:
            self.grow(step)
            if self.swapped and not (plan.preempted or plan.swapped_out):
                self._swap_in(step)
            self.beat()
            if self.waiting and (plan.preempted or plan.swapped_out):
                plan.head_lacks = LACKS_SWAPPED if self.swapped else PREEMPTING
        self.note_stuck()
        return plan

    def preempt(self, request: Request, step: int) -> None:
        """Swap a running request out if there is room on the host, else recompute it."""
        swap_space = self.swap_space if self._swaps_single else None
        blocks = self._blocks_of(request)
        if swap_space is None or not swap_space.put(request.number, blocks):
            super().preempt(request, step)
            return
        self.stop(request, step)
        self.allocator.free(request.number)
        request.rank = -1
        request.preemptions += 1
        self.swapped.appendleft(request)  # who gives way has come before all who did so already
        self.plan.swapped_out = [*self.plan.swapped_out, request]
        self.plan.copy_ns += swap_space.copy_ns(blocks)

    def _blocks_of(self, request: Request) -> int:
        return self.allocator.slots_tokens(request.number) // self.allocator.growth_tokens

    def _admit(self) -> None:
        """Admit from the head of the queue until something lacks; prompts run whole."""
        config, plan, waiting = self.config, self.plan, self.waiting
        budget_tokens = config.max_num_batched_tokens
        admitted: list[Request] = []
        while waiting:
            request = waiting.head
            if len(self.running) >= config.max_num_seqs:
                plan.head_lacks = LACKS_SLOT
                break
            if shortage := self.allocator.shortage(
                request, request.known_tokens, idle=not self.running
            ):
                plan.head_lacks = LACKS[shortage]
                break
            if request.known_tokens > budget_tokens:
                plan.head_lacks = LACKS_BUDGET
                break
            self.start(request)
            request.chunk_tokens = request.known_tokens
            budget_tokens -= request.chunk_tokens
            admitted.append(request)
        plan.admitted = plan.chunks = admitted

    def _pause(self) -> None:
        """Let those who decode wait while prompts are computed."""
        self.plan.paused = list(self.decoding.requests.values())
        for request in self.plan.paused:
            request.offset -= 1

    def _swap_in(self, step: int) -> None:
        """Bring back from the head of the swapped ones until something lacks."""
        swap_space, plan = self.swap_space, self.plan
        assert swap_space is not None
        back: list[Request] = []
        while self.swapped and len(self.running) < self.config.max_num_seqs:
            request = self.swapped[0]
            if not self._may_come_back(request):
                break
            self.swapped.popleft()
            plan.copy_ns += swap_space.copy_ns(swap_space.take(request.number))
            tokens = request.computed_tokens + 1  # V0 appends the slot of this step at once
            require(self.allocator.allocate(request, request.number, tokens), "blocks are free")
            self.run(request)
            request.go_on_decoding(step)
            self.decoding.join(request, request.computed_tokens)
            back.append(request)
        plan.swapped_in = back

    def _may_come_back(self, request: Request) -> bool:
        """Tell whether its blocks are free and one more, beside the watermark."""
        block_size = self.allocator.growth_tokens
        free = self.allocator.free_tokens // block_size
        if not self.running:
            return request.computed_tokens < free * block_size
        blocks = -(-request.computed_tokens // block_size) + 1
        return not Shortage.of(blocks, self._watermark_blocks, free)
