"""vLLM V0 as of 2023 (Kwon et al., SOSP 2023): whole prompts, preemption by recompute or swap."""

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

from pydantic import Field

from kvsim.cost.pcie import HostLink
from kvsim.engine.allocators import KVAllocator
from kvsim.engine.allocators.paged import PagedPool, SwappedTables
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
from kvsim.engine.schedulers._kinship import Kinship
from kvsim.engine.schedulers.vllm import LACKS, LACKS_BUDGET, LACKS_SLOT, PREEMPTING
from kvsim.engine.swap_space import SwapSpace
from kvsim.errors import InputError, require
from kvsim.tables import HEAD_LACKS
from kvsim.units import GIB

LACKS_SWAPPED = HEAD_LACKS.index("swapped")


class VllmV0(SchedulerPolicy):
    """First come, first served; prompts are computed whole, apart from decodes or beside them.

    Apart, prompts come first: while a waiting request fits, decodes pause. When blocks run out, the
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
    link: HostLink = HostLink.model_construct()
    """How blocks get to the host and back."""
    declared_prefixes: bool = False
    """Keep the blocks of each system prompt that the workload names (`prefix_tokens` of its
    prompts): its first request computes them, and all later ones share them, copying on write."""
    prompts_apart: bool = True
    """A step computes either prompts or decodes, as vLLM does since August 2023 (pull request 658).
    Else it computes both, as the paper says (section 4.3) and earlier releases do: decodes first,
    then what is back from the host, then prompts as far as the budget goes."""

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
        # `layouts` says so; what looks on while an engine works may stand before the pool.
        pool = cast("PagedPool", allocator)
        kinship = Kinship(pool, self.declared_prefixes)
        return VllmV0Scheduler(config, waiting, kinship, self, self._swap_space(block))


_NO_SWAP_SPACE = (
    "the swap space is full, and a group of several sequences can't be computed again: vLLM V0 "
    "stops here; raise scheduler.swap_space_gib"
)
_TOO_SMALL = (
    "the KV cache is too small for a group of sequences that runs alone, beside the declared "
    "prefixes that stay in it; give it more memory, or ask for fewer samples or beams"
)


class VllmV0Scheduler(BlockEngine):
    """The sequences of a group come, run and give way together."""

    gangs_samples = True

    def __init__(
        self,
        config: EngineConfig,
        waiting: WaitingQueue,
        kinship: Kinship,
        policy: VllmV0,
        swap_space: SwapSpace | None = None,
    ) -> None:
        """Schedule from `waiting`, which several replicas may share."""
        super().__init__(config, kinship.pool, waiting, swap_space)
        self._pool, self._kinship = kinship.pool, kinship
        self._swaps_single, self._prompts_apart = policy.swaps, policy.prompts_apart
        self._largest_group = 1
        self.swapped: deque[Request] = deque()  # in order of arrival
        self._swapped_tables: dict[int, SwappedTables] = {}  # by request, the same for a group

    def withdraw(self, request: Request) -> None:
        """Forget a request that waits or is swapped out."""
        self._kinship.leave(request)
        if request not in self.swapped:
            super().withdraw(request)
            return
        self.is_stuck = False
        self.swapped.remove(request)
        tables = self._swapped_tables.pop(request.number)
        if not request.kin:
            self._return_to_pool(tables)
        request.lost_tokens += request.computed_tokens

    def decode(self, request: Request, step: int) -> None:
        """Let a request whose prompt was computed decode from `step` on."""
        super().decode(request, step)
        self._kinship.begin_to_write(request)

    def finish(self, request: Request, step: int) -> None:
        """Forget a request that has ended before `step`, and free its KV slots."""
        super().finish(request, step)
        self._kinship.leave(request)

    def schedule(self, step: int, in_flight: int = 0) -> Plan:
        """Schedule prompts that fit, and a token for each running request: apart, or both."""
        plan = self.clear()
        self._kinship.follow_choices(step)
        if self._prompts_apart:
            self._take_in()
        if plan.admitted:
            self._pause()
        else:
            self._go_on(step)
            if not self._prompts_apart or plan.preempted or plan.swapped_out:
                self._take_in()
        self.note_stuck()
        return plan

    def quiet_steps(self, step: int, most: int) -> int:
        """Return how many steps just go on with what decodes; 0 where there are groups."""
        if self._largest_group > 1 or self._kinship.by_token:
            return 0
        return super().quiet_steps(step, most)

    # Prompts

    def _take_in(self) -> None:
        """Admit those who wait, unless somebody has just given way or is swapped out."""
        if not self.waiting:
            return
        if self.swapped:
            self.plan.head_lacks = LACKS_SWAPPED
        elif self.plan.preempted:
            self.plan.head_lacks = PREEMPTING
        else:
            self._admit()

    def _admit(self) -> None:
        """Admit from the head of the queue until something lacks; prompts run whole."""
        config, plan, waiting = self.config, self.plan, self.waiting
        budget_tokens = config.max_num_batched_tokens - plan.decode_seqs
        admitted: list[Request] = []
        while waiting:
            request = waiting.head
            group = self._kinship.of(request)
            if len(self.running) + len(group) > config.max_num_seqs:
                plan.head_lacks = LACKS_SLOT
                break
            blocks = self._kinship.blocks_to_start(request)
            if shortage := self._pool.shortage_of(blocks, idle=not self.running):
                _refuse_if(not self.running)
                plan.head_lacks = LACKS[shortage]
                break
            if request.known_tokens > budget_tokens:
                plan.head_lacks = LACKS_BUDGET
                break
            self._start_group(group)
            budget_tokens -= request.known_tokens
            admitted += group
        plan.admitted = plan.chunks = admitted

    def _start_group(self, group: list[Request]) -> None:
        """Take in the requests at the head of the queue; the first one computes the prompt."""
        self._largest_group = max(self._largest_group, len(group))
        found_tokens = self._kinship.start(group[0])
        for request in group:
            require(self.waiting.popleft() is request, "a group waits together")
            request.recomputed_tokens += max(0, request.computed_tokens - found_tokens)
            request.computed_tokens = found_tokens
            request.hit_tokens += found_tokens
            request.chunk_tokens = request.known_tokens - found_tokens
            self.run(request)
            found_tokens = request.known_tokens  # by all but the first

    def _pause(self) -> None:
        """Let those who decode wait while prompts are computed."""
        self.plan.paused = list(self.decoding.requests.values())
        for request in self.plan.paused:
            request.offset -= 1

    # Decodes

    def _go_on(self, step: int) -> None:
        """Let those who decode go on, and those who are swapped out if there is room again."""
        self.grow(step)
        if self.swapped and not (self.plan.preempted or self.plan.swapped_out):
            self._swap_in(step)
        self.beat()

    def grow(self, step: int) -> None:
        """Give each decoding sequence its slot for this step; the latest groups give way.

        As in V0, each group in its turn wants a free block for each of its sequences, whether
        these need one or not.
        """
        due = self.decoding.due()
        if by_token := self._kinship.by_token:
            writing = {each.rank: each for each in due}
            writing |= {each.rank: each for each in by_token.values() if each.decoding}
            due = [writing[rank] for rank in sorted(writing)]
        most_blocks = len(due) + self._largest_group
        if self._free_blocks >= most_blocks or not self.decoding.requests:
            for request in due:
                require(self._kinship.write(request), "there are enough blocks")
        else:
            due = self._grow_in_turn(step, set(due))
        self.plan.grown = due

    def _grow_in_turn(self, step: int, due: set[Request]) -> list[Request]:
        grown = []
        for request in list(self.decoding.requests.values()):
            group = self._kinship.of(request)
            if group[0] is not request:
                continue
            while request.rank >= 0 and not self._has_room_for(group):
                self.preempt(next(reversed(self.running.values())), step)
            if request.rank >= 0:
                writing = [each for each in group if each in due]
                self._write(writing)
                grown += writing
        return grown

    @property
    def _free_blocks(self) -> int:
        return self._pool.free_tokens // self._pool.growth_tokens

    def _has_room_for(self, group: list[Request]) -> bool:
        """Tell whether there is a free block for each; who runs alone does with what it needs."""
        return len(group) <= self._free_blocks or len(group) == len(self.running)

    def _write(self, requests: list[Request]) -> None:
        for request in requests:
            _refuse_if(not self._kinship.write(request))

    # Swapping

    def preempt(self, request: Request, step: int) -> None:
        """Swap the group of a running request out, or recompute it if it is alone."""
        group = self._kinship.of(request)
        if len(group) == 1 and not (self._swaps_single and self._has_swap_space(group)):
            super().preempt(request, step)
            self._kinship.by_token.pop(request.number, None)
            return
        if not self._has_swap_space(group):
            raise InputError(_NO_SWAP_SPACE)
        for each in group:
            self.stop(each, step)
            each.rank = -1
            each.preemptions += 1
        tables = self._pool.swap_out([each.number for each in group])
        assert self.swap_space is not None
        self.swap_space.put(group[0].number, tables.blocks)
        self._swapped_tables |= dict.fromkeys((each.number for each in group), tables)
        self.swapped.extendleft(reversed(group))  # they have come before all who gave way already
        self.plan.swapped_out = [*self.plan.swapped_out, *group]
        self.plan.copy_ns += self.swap_space.copy_ns(tables.blocks)

    def _has_swap_space(self, group: list[Request]) -> bool:
        blocks = self._pool.distinct_blocks(each.number for each in group)
        return self.swap_space is not None and blocks <= self.swap_space.free_blocks

    def _return_to_pool(self, tables: SwappedTables) -> int:
        """Empty the swap space of a group; return how many blocks it had there."""
        assert self.swap_space is not None
        return self.swap_space.take(tables.owner)

    def _swap_in(self, step: int) -> None:
        """Bring back from the head of the swapped ones until something lacks."""
        swap_space, plan = self.swap_space, self.plan
        assert swap_space is not None
        back: list[Request] = []
        while self.swapped:
            group = self._kinship.of(self.swapped[0])
            tables = self._swapped_tables[group[0].number]
            idle = not self.running
            blocks = tables.blocks + (0 if idle else len(group))
            if len(self.running) + len(group) > self.config.max_num_seqs:
                break
            if self._pool.shortage_of(blocks, idle):
                break
            self._resume(group, step)
            plan.copy_ns += swap_space.copy_ns(self._return_to_pool(tables))
            back += group
        plan.swapped_in = back

    def _resume(self, group: list[Request], step: int) -> None:
        """Give a group its blocks again, and the slots for this step."""
        block_size = self._pool.growth_tokens
        self._pool.swap_in(self._swapped_tables[group[0].number])
        for request in group:
            self.swapped.popleft()
            del self._swapped_tables[request.number]
            self.run(request)
            request.go_on_decoding(step)
            self.decoding.join(request, request.computed_tokens)
        by_token = self._kinship.by_token
        self._write(
            [r for r in group if r.number in by_token or r.computed_tokens % block_size == 0]
        )


def _refuse_if(too_small: bool) -> None:
    if too_small:
        raise InputError(_TOO_SMALL)
