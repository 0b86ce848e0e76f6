"""The scheduler of vLLM V1, first come first served or by priority.

Rules and their names (R1 to R19) are those of `docs/vllm-rules.md`. A call costs what changes:
decoding sequences are held together as counts and sums, and a calendar says which of them have
filled their last block. Only these, the prefilling ones and the admitted ones are touched.
"""

import math
from bisect import insort
from collections.abc import Collection, Sequence
from typing import Literal

from kvsim.engine.allocators import KVAllocator, Shortage
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.config import EngineConfig
from kvsim.engine.queues import VICTIMS
from kvsim.engine.request import Request
from kvsim.engine.schedulers import (
    Growth,
    KVBlock,
    Plan,
    Scheduler,
    SchedulerPolicy,
    WaitingQueue,
)
from kvsim.engine.swap_space import SwapSpace
from kvsim.errors import require
from kvsim.tables import HEAD_LACKS

LACKS_BLOCKS = HEAD_LACKS.index("kv_blocks")
LACKS_HOLE = HEAD_LACKS.index("hole")
LACKS_SLOT = HEAD_LACKS.index("sequence_slot")
LACKS_BUDGET = HEAD_LACKS.index("token_budget")
PREEMPTING = HEAD_LACKS.index("preempting")
LACKS_ACTIVE_SLOT = HEAD_LACKS.index("active_sequence_slot")
LACKS_SCHEDULED_BUDGET = HEAD_LACKS.index("scheduled_token_budget")
LACKS_PREFILL_STEP = HEAD_LACKS.index("prefill_step")
LACKS = {
    Shortage.MEMORY: LACKS_BLOCKS,
    Shortage.HOLE: LACKS_HOLE,
    Shortage.WATERMARK: HEAD_LACKS.index("watermark"),
}
NOBODY: Sequence[Request] = ()


class Vllm(SchedulerPolicy):
    """The scheduler of vLLM V1, as the fields of `engine` set it."""

    kind: Literal["vllm"] = "vllm"

    def build(
        self,
        config: EngineConfig,
        allocator: KVAllocator,
        waiting: WaitingQueue,
        block: KVBlock | None = None,
    ) -> Scheduler:
        """Return a scheduler of one replica."""
        return VllmScheduler(config, allocator, waiting)


class VllmScheduler:
    """Continuous batching: running requests first, then waiting ones, one token budget (R1, R2)."""

    swap_space: SwapSpace | None = None
    swapped: Collection[Request] = ()
    gangs_samples = False

    def __init__(self, config: EngineConfig, allocator: KVAllocator, waiting: WaitingQueue) -> None:
        """Schedule from `waiting`, which several replicas may share."""
        self.config = config
        self.allocator = allocator
        self.waiting = waiting
        self.most_in_flight = 2 if config.async_scheduling else 1
        self._in_flight = 0  # steps, while one is scheduled
        self.running: dict[int, Request] = {}  # by rank, so in order of admission
        self.prefilling: list[Request] = []  # running, prompt not yet computed, by rank
        self.decode_seqs = 0
        self.decode_context_tokens = 0  # computed tokens of the decoding sequences
        self._growth_tokens = allocator.growth_tokens
        self._caches = config.enable_prefix_caching and self._growth_tokens > 0
        # Decoding requests by the step (modulo block size) in which they need a block, by rank.
        self._due: list[dict[int, Request]] = [{} for _ in range(max(1, self._growth_tokens))]
        self._due_seqs = [0] * (2 * len(self._due))  # how many these are, twice in a row
        # Computed tokens, modulo growth, at which a decoding request takes or gives back KV slots.
        self._slides = bool(allocator.release_offsets)
        # With a step in flight windows are one token behind (R41), and else they catch up.
        behind = range(self.most_in_flight)
        offsets = {
            (offset + tokens) % self._growth_tokens
            for offset in allocator.release_offsets
            for tokens in behind
        }
        self._touched_at = sorted({0, *offsets})
        self._fresh: dict[int, Request] = {}  # whose first decode comes, by rank: windows jump
        self._next_rank = 0
        self._step_tokens, self._most_running = config.step_tokens, config.running_seqs
        # Which of the two settings binds.
        active = self._most_running < config.max_num_seqs
        self._lacking_slot = LACKS_ACTIVE_SLOT if active else LACKS_SLOT
        scheduled = self._step_tokens < config.max_num_batched_tokens
        self._lacking_budget = LACKS_SCHEDULED_BUDGET if scheduled else LACKS_BUDGET
        self._last_position = config.max_model_len - 1
        # Prefills are held back: what a request asks for may grow, and decodes can go short.
        self._paced = (
            config.long_prefill_token_threshold_adaptive or config.prefill_schedule_interval > 1
        )
        self._stalled: set[int] = set()  # ranks of those that did; they are among the prefilling
        self._resting: set[int] = set()  # ranks of those whose last token is in flight
        # A decode's own token: is it known when its step is scheduled (R24), or in flight (R41)?
        self._known_new_tokens = 0 if config.async_scheduling else 1
        self._interval = config.prefill_schedule_interval
        self._next_prefill_step = 0
        self._left_waiting = False  # by the last admission that was allowed to prefill
        self._prefill_withdrawn = False  # in this call: its request was preempted after its turn
        self._throttled = False
        # Whether what its head lacks stays so until a request comes or goes, and which it may be.
        self._stuck = False
        self.head_lacks = 0
        self._lasting = set() if self._paced else {self._lacking_slot}
        if not (self._caches or self._slides or self._paced):
            self._lasting |= {LACKS_BLOCKS, LACKS_HOLE}
        # Blocks are all that a decoding request needs, and nobody looks at them in between.
        self._plain_pool: PagedPool | None = None
        if isinstance(allocator, PagedPool) and not self._caches:
            self._plain_pool = allocator
        self._victim = VICTIMS[config.scheduling_policy]
        self._plan = Plan()

    def enqueue(self, request: Request) -> None:
        """Put a new arrival at the back of the queue (R7)."""
        self.waiting.append(request)
        self._stuck = self._stuck and self.waiting.head is not request

    def withdraw(self, request: Request) -> None:
        """Forget a waiting request whose client is gone."""
        self.waiting.remove(request)
        self._stuck = False

    def schedule(self, step: int, in_flight: int = 0) -> Plan:
        """Decide what step number `step` computes, and take the KV slots for it."""
        plan = self._plan
        self._in_flight = in_flight
        self._stuck = False
        plan.chunks = plan.admitted = plan.grown = plan.preempted = plan.stalled = ()
        plan.head_lacks = 0
        if self._paced and self._lacks_budget(step):
            self._schedule_in_order(step, plan)
        elif self.prefilling:
            self._schedule_chunks(step, plan)
        elif self._growth_tokens and (due := self._due_in(step)):
            self._grow(step, plan, _by_rank(due))
        if self._caches:
            self._publish(step)
        plan.decode_seqs = decode_seqs = self.decode_seqs
        self.decode_context_tokens += decode_seqs  # each computes one token in this step
        plan.decode_kv_tokens = self.decode_context_tokens
        if self.waiting:
            if plan.preempted:
                plan.head_lacks = PREEMPTING  # R6: a call that preempted admits nobody
            else:
                self._admit(plan)
                self._stuck = plan.head_lacks in self._lasting
        self.head_lacks = plan.head_lacks
        if self._paced:
            self._note_prefill(step, plan)
        return plan

    def quiet_steps(self, step: int, most: int) -> int:
        """Return how many steps from `step` on just go on with what decodes."""
        decode_seqs = self.decode_seqs
        if not decode_seqs or self.prefilling or self._fresh:
            return 0
        if (self.waiting and not self._stuck) or decode_seqs > self._step_tokens:
            return 0
        if not self._growth_tokens:
            return most
        allocator = self.allocator
        free_blocks = allocator.free_tokens // allocator.block_tokens
        each = allocator.most_blocks_at_once
        if -(-most // self._growth_tokens) * decode_seqs * each <= free_blocks:
            return most
        for place in range(most):
            free_blocks -= self._due_seqs[(step + place) % self._growth_tokens] * each
            if free_blocks < 0:
                return place
        return most

    def skip(self, step: int, steps: int) -> Growth:
        """Do for quiet steps at once what `schedule` would do in each: so many, or the first."""
        self._in_flight = self.most_in_flight - 1
        self._left_waiting = bool(self.waiting)
        growth: Growth
        if self._plain_pool:
            growth = Growth(steps, self._grow_in_turn(self._plain_pool, step, steps))
        elif self._growth_tokens:
            steps = self._untouched(step, steps)
            growth = Growth(steps, None, self._touch(step))
        else:
            growth = Growth(steps, None)
        self.decode_context_tokens += self.decode_seqs * steps
        return growth

    def _grow_in_turn(self, pool: PagedPool, step: int, steps: int) -> list[int]:
        """Count the blocks that steps fill; return how many in each, for a round of growth.

        In as many steps as a block has tokens each sequence needs one.
        """
        size = self._growth_tokens
        rounds, rest = divmod(steps, size)
        first = step % size
        blocks = self._due_seqs[first : first + size]
        pool.owe(rounds * self.decode_seqs + sum(blocks[:rest]))
        return blocks

    def _touch(self, step: int) -> Sequence[Request]:
        """Do for a quiet step what its decodes need; return those that grew."""
        plan = self._plan
        plan.grown = NOBODY
        if due := self._due_in(step):
            self._grow(step, plan, _by_rank(due))
        if self._caches:
            self._publish(step)
        return plan.grown

    def _untouched(self, step: int, steps: int) -> int:
        """Return how many steps from `step` on need nothing beyond what the first one needs."""
        passed = 1
        while passed < steps and not self._touches(step + passed):
            passed += 1
        return passed

    def _touches(self, step: int) -> bool:
        """Tell whether a decoding request takes or gives back slots in a step, or fills a block."""
        due, size = self._due, self._growth_tokens
        if self._caches and due[(step + self._known_new_tokens) % size]:
            return True
        return any(due[(step - tokens) % size] for tokens in self._touched_at)

    def decode(self, request: Request, step: int) -> None:
        """Let a request whose last chunk was computed decode from `step` on."""
        self._leave_prefilling(request)
        request.start_decoding(step)
        self._stuck = False
        self.decode_seqs += 1
        self.decode_context_tokens += request.known_tokens
        self._file(request)
        if self._slides:
            self._fresh[request.rank] = request

    def rest(self, request: Request, step: int) -> None:
        """Schedule nothing more for a request from `step` on: its last token is in flight (R40)."""
        self._stop_decoding(request, step)
        self._resting.add(request.rank)

    def leaving(self, ended: Sequence[Request], step: int) -> Sequence[Request]:
        """Return all whose answers are complete."""
        return ended

    def finish(self, request: Request, step: int) -> None:
        """Forget a request that has ended before `step`, and free its KV slots."""
        self._leave(request, step)
        self._stuck = False
        self.allocator.free(request.number)

    # Running requests

    def _grow(self, step: int, plan: Plan, needing: list[Request]) -> None:
        """Give each of `needing` (by rank) its KV slots, preempting if need be (R12)."""
        if self._slides:
            self._slide_and_grow(step, plan, needing)
            return
        append, growth_tokens = self.allocator.append, self._growth_tokens
        owes = self._plain_pool is not None and self._plain_pool.owed_blocks > 0
        for request in needing:
            if owes:
                self._settle(request, step)
            while request.rank >= 0:  # else it was a victim, perhaps its own (R14)
                if append(request.number, request.chunk_tokens or growth_tokens):
                    break
                self._preempt(step, plan, request)
        if plan.preempted:
            needing = [request for request in needing if request.rank >= 0]
        plan.grown = needing

    def _due_in(self, step: int) -> dict[int, Request]:
        """Return the decoding requests that take or give back KV slots in this step, by rank."""
        growth_tokens = self._growth_tokens
        if not self._slides:
            return self._due[step % growth_tokens]
        due = self._fresh
        # A chunk in flight is passed a step later (R41), so look once more.
        self._fresh = {
            rank: each
            for rank, each in due.items()
            if self._in_flight and each.chunk_step == step - 1
        }
        for computed_tokens in self._touched_at:
            due.update(self._due[(step - computed_tokens) % growth_tokens])
        return due

    def _slide(self, request: Request, step: int) -> None:
        """Give back the blocks that the request's windows have passed (R35, R41)."""
        if self._slides:
            tokens = request.processed_before(step, self._in_flight)
            self.allocator.release(request.number, tokens)

    def _slide_and_grow(self, step: int, plan: Plan, needing: list[Request]) -> None:
        """Grow where sliding windows give blocks back first, even if that isn't enough."""
        grown = []
        for request in needing:
            if request.rank >= 0:
                asked_tokens = self._asked_tokens(request, step)
                self._slide(request, step)
                while request.rank >= 0 and not self._has_room(request, asked_tokens):
                    self._preempt(step, plan, request)
                if asked_tokens:
                    grown.append(request)
        plan.grown = [request for request in grown if request.rank >= 0]

    def _publish(self, step: int, ahead_of: float = math.inf) -> None:
        """Make blocks findable that this step fills: of prompts (R23) and of answers (R24).

        With a step in flight, those of answers that it fills: their last token is known now (R41).
        Only those of requests with a rank below `ahead_of`.
        """
        new_tokens = self._known_new_tokens
        filling = list(self._due[(step + new_tokens) % self._growth_tokens].values())
        filling += [request for request in self.prefilling if request.chunk_tokens]
        if len(filling) > 1:
            filling.sort(key=lambda request: request.rank)
        for request in filling:
            if request.rank < ahead_of:
                tokens = request.computed_before(step) + (request.chunk_tokens or new_tokens)
                self.allocator.publish(request, request.number, tokens)

    def _schedule_chunks(self, step: int, plan: Plan) -> None:
        """Schedule the running requests when some of them still prefill."""
        self._share_budget()
        needing = [request for request in self.prefilling if request.chunk_tokens]
        if self._growth_tokens:
            needing += self._due_in(step).values()
            needing.sort(key=lambda request: request.rank)
        self._grow(step, plan, needing)
        plan.chunks = [request for request in self.prefilling if request.chunk_tokens]
        plan.grown = [request for request in plan.grown if request.decoding]

    def _share_budget(self, behind: int = -1) -> None:
        """Set `chunk_tokens` of the prefilling requests with a rank above `behind` (R1, R2).

        A decoding request doesn't go short, wherever it stands: when it was admitted, budget was
        left behind all requests ahead of it, and what these ask for in a step never grows (where
        it may, see `_lacks_budget`). So decodes come off the budget first, and only the last
        prompt is ever cut.
        """
        cap_tokens = 0 if self._throttled else self._chunk_cap_tokens()
        budget_tokens = self._step_tokens - self.decode_seqs
        for request in self.prefilling:
            if request.rank > behind:
                left_tokens = self._left_tokens(request)
                request.chunk_tokens = min(left_tokens, cap_tokens, budget_tokens)
            budget_tokens -= request.chunk_tokens

    def _left_tokens(self, request: Request) -> int:
        """Return what is left to compute of a running prompt, not beyond the context (R3)."""
        left_tokens = min(request.known_tokens, self._last_position) - request.computed_tokens
        return max(0, left_tokens)

    def _lacks_budget(self, step: int) -> bool:
        """Tell whether the requests ask for more than the budget, or did a step before."""
        self._throttled = self._throttles(step)
        if self._stalled:
            return True
        wanted_tokens = self.decode_seqs
        if not self._throttled:
            cap_tokens = self._chunk_cap_tokens()
            for request in self.prefilling:
                wanted_tokens += min(self._left_tokens(request), cap_tokens)
        return wanted_tokens > self._step_tokens

    def _schedule_in_order(self, step: int, plan: Plan) -> None:
        """Schedule the running requests one by one, since the budget may not reach all (R1).

        A decode that it doesn't reach is stalled: it goes on like a prompt of which one token is
        left to compute.
        """
        cap_tokens = self._chunk_cap_tokens()
        budget_tokens = self._step_tokens
        given: dict[Request, int] = {}
        grown = []
        for request in list(self.running.values()):
            if request.rank < 0 or request.rank in self._resting:
                continue
            left_tokens = 1 if request.decoding else self._left_tokens(request)
            if self._throttled and not (request.decoding or request.rank in self._stalled):
                left_tokens = 0
            tokens = min(left_tokens, cap_tokens, budget_tokens)
            if request.decoding and not tokens:
                self._stall(request, step, plan)
            elif not request.decoding:
                request.chunk_tokens = tokens
            if not tokens:
                continue
            asked_tokens = self._asked_tokens(request, step)
            self._slide(request, step)
            self._settle(request, step)
            while request.rank >= 0 and not self._has_room(request, asked_tokens):
                budget_tokens += given.pop(self._preempt(step, plan, request), 0)
            if request.rank >= 0:
                given[request] = tokens
                budget_tokens -= tokens
                if asked_tokens and request.decoding:
                    grown.append(request)
        plan.chunks = [request for request in self.prefilling if request.chunk_tokens]
        plan.grown = [request for request in grown if request.rank >= 0]

    def _asked_tokens(self, request: Request, step: int) -> int:
        """Return for how many tokens a request needs room: who decodes fills a block at a time."""
        if not (request.decoding or request.rank in self._stalled):
            return request.chunk_tokens
        growth_tokens = self._growth_tokens
        full = growth_tokens and request.computed_before(step) % growth_tokens == 0
        return growth_tokens if full else 0

    def _settle(self, request: Request, step: int) -> None:
        """Give a decoding request the blocks that were counted for it in the steps before."""
        if self._plain_pool and request.decoding:
            self._plain_pool.settle(request.number, step + request.offset)

    def _has_room(self, request: Request, asked_tokens: int) -> bool:
        return not asked_tokens or self.allocator.append(request.number, asked_tokens)

    def _stall(self, request: Request, step: int, plan: Plan) -> None:
        """Let a decoding request wait for its next token, where it stands."""
        self._stop_decoding(request, step)
        insort(self.prefilling, request, key=lambda each: each.rank)
        self._stalled.add(request.rank)
        plan.stalled = [*plan.stalled, request]

    def _chunk_cap_tokens(self) -> int:
        """Return the most tokens of one prompt in a step (R4): no cap for the only request."""
        config = self.config
        cap_tokens = config.long_prefill_token_threshold
        requests = len(self.running) + len(self.waiting)
        if not cap_tokens or requests <= 1:
            return config.max_num_batched_tokens
        if config.long_prefill_token_threshold_adaptive:
            return max(cap_tokens, config.max_num_batched_tokens // requests)
        return cap_tokens

    def _preempt(self, step: int, plan: Plan, needing: Request) -> Request:
        """Preempt one request, so that `needing` gets its slots; it loses all and waits (R15).

        It may stand ahead, scheduled in this step already: what it was to fill can be found, as
        in vLLM, and its tokens go to those behind `needing` (R13).
        """
        if self._caches:
            self._publish(step, ahead_of=needing.rank)
        request = self._victim(self.running)
        rank = needing.rank
        if request.rank < rank and request.chunk_tokens and request.rank not in self._stalled:
            self._prefill_withdrawn = True
        request.rank_in_flight = request.rank
        self._leave(request, step)
        self.allocator.free(request.number)
        request.lose_all()
        self.waiting.requeue(request)
        plan.preempted = [*plan.preempted, request]
        self._share_budget(behind=rank)
        return request

    def _leave(self, request: Request, step: int) -> None:
        del self.running[request.rank]
        if request.decoding:
            self._stop_decoding(request, step)
        elif request.rank in self._resting:
            self._resting.remove(request.rank)
        else:
            self._leave_prefilling(request)

    def _stop_decoding(self, request: Request, step: int) -> None:
        self._unfile(request)
        self._fresh.pop(request.rank, None)
        self._settle(request, step)
        request.stop_decoding(step)
        self.decode_seqs -= 1
        self.decode_context_tokens -= request.computed_tokens

    def _leave_prefilling(self, request: Request) -> None:
        self.prefilling.remove(request)
        self._stalled.discard(request.rank)

    def _file(self, request: Request) -> None:
        if self._growth_tokens:
            place = -request.offset % self._growth_tokens
            self._due[place][request.rank] = request
            self._count_due(place, 1)

    def _unfile(self, request: Request) -> None:
        if self._growth_tokens:
            place = -request.offset % self._growth_tokens
            del self._due[place][request.rank]
            self._count_due(place, -1)

    def _count_due(self, place: int, seqs: int) -> None:
        self._due_seqs[place] += seqs
        self._due_seqs[place + self._growth_tokens] += seqs

    def _throttles(self, step: int) -> bool:
        """Tell whether this step must do no prefill work, so that decodes go on smoothly (R9)."""
        decoding = self.decode_seqs or self._stalled or self._resting
        return step < self._next_prefill_step and bool(decoding) and not self._left_waiting

    def _note_prefill(self, step: int, plan: Plan) -> None:
        """Note when prefills are allowed again, after this call has done some (R9)."""
        if self._throttled:
            return
        if not plan.preempted:
            self._left_waiting = bool(self.waiting)
        if self._does_prefill(plan):
            empty = not (plan.chunks or plan.decode_seqs)
            self._next_prefill_step = step + self._interval - empty
        self._prefill_withdrawn = False

    def _does_prefill(self, plan: Plan) -> bool:
        """Tell whether the call has prefilled; admission for a last token doesn't count."""
        if self._prefill_withdrawn:
            return True
        if any(each.known_tokens - each.computed_tokens > 1 for each in plan.admitted):
            return True
        running = plan.chunks[: len(plan.chunks) - len(plan.admitted)]
        return any(request.rank not in self._stalled for request in running)

    # Waiting requests

    def _admit(self, plan: Plan) -> None:
        """Admit from the head of the queue until something lacks; nobody overtakes (R5)."""
        waiting = self.waiting
        cap_tokens = self._chunk_cap_tokens()
        chunks = list(plan.chunks)
        budget_tokens = self._step_tokens - plan.decode_seqs
        budget_tokens -= sum(request.chunk_tokens for request in chunks)
        admitted = []
        while waiting:
            if len(self.running) >= self._most_running:
                plan.head_lacks = self._lacking_slot
                break
            request = waiting.head
            if request.awaiting:  # R42; seen only by another replica with the same queue
                plan.head_lacks = PREEMPTING
                break
            cached_tokens = self.allocator.lookup(request) if self._caches else 0
            chunk_tokens = min(request.known_tokens - cached_tokens, cap_tokens)
            if not self.config.enable_chunked_prefill and chunk_tokens > budget_tokens:
                chunk_tokens = 0  # R2: whole or not at all
            chunk_tokens = min(chunk_tokens, budget_tokens)
            if not chunk_tokens:
                plan.head_lacks = self._lacking_budget
                break
            if self._throttled and request.known_tokens - cached_tokens > 1:
                plan.head_lacks = LACKS_PREFILL_STEP
                break
            if shortage := self._shortage(request, cached_tokens + chunk_tokens):
                plan.head_lacks = LACKS[shortage]
                break
            waiting.popleft()
            self._start(request, cached_tokens, chunk_tokens)
            admitted.append(request)
            budget_tokens -= chunk_tokens
        plan.admitted = admitted
        plan.chunks = [*chunks, *admitted]

    def _shortage(self, request: Request, first_tokens: int) -> Shortage:
        """Tell whether the request's known tokens would fit (R17), and the first of them."""
        idle = not self.running
        if self.config.scheduler_reserve_full_isl:
            shortage = self.allocator.shortage(request, request.known_tokens, idle)
            if shortage or not self._slides:  # without windows the first ones fit, too
                return shortage
        return self.allocator.shortage(request, first_tokens, idle, at_once=True)

    def _start(self, request: Request, cached_tokens: int, chunk_tokens: int) -> None:
        granted = self.allocator.allocate(request, request.number, cached_tokens + chunk_tokens)
        require(granted, "an allocator grants what it said would fit")
        if self._caches:
            request.hit_tokens += cached_tokens
            self.allocator.publish(request, request.number, cached_tokens + chunk_tokens)
        request.rank = self._next_rank
        self._next_rank += 1
        # What it had computed before it was preempted is lost, but for what is found again.
        request.recomputed_tokens += max(0, request.computed_tokens - cached_tokens)
        request.computed_tokens = cached_tokens
        request.chunk_tokens = chunk_tokens
        beyond_tokens = cached_tokens + chunk_tokens - self.config.max_model_len
        request.slotless_tokens = max(0, beyond_tokens)
        self.running[request.rank] = request
        self.prefilling.append(request)


def _by_rank(requests: dict[int, Request]) -> list[Request]:
    if len(requests) == 1:
        return list(requests.values())
    return [requests[rank] for rank in sorted(requests)]
