"""What vLLM V0 and its descendants share: blocks on demand, and the latest request gives way."""

from collections.abc import Collection, Sequence

from kvsim.engine.allocators import KVAllocator
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.config import EngineConfig
from kvsim.engine.request import Request
from kvsim.engine.schedulers import Growth, Plan, WaitingQueue
from kvsim.engine.schedulers._lockstep import Lockstep
from kvsim.engine.schedulers.vllm import LACKS_BLOCKS, LACKS_SLOT
from kvsim.engine.swap_space import SwapSpace
from kvsim.errors import require
from kvsim.tables import HEAD_LACKS

# What the head of the queue lacks until somebody comes or goes, however many steps that is.
LASTING = {LACKS_BLOCKS, LACKS_SLOT, HEAD_LACKS.index("swapped")}


class BlockEngine:
    """Running requests in order of admission; those whose prompts are computed decode in lockstep.

    A request gets the blocks of its whole prompt when it is admitted.
    """

    most_in_flight = 1
    gangs_samples = False
    swapped: Collection[Request] = ()

    def __init__(
        self,
        config: EngineConfig,
        allocator: KVAllocator,
        waiting: WaitingQueue,
        swap_space: SwapSpace | None = None,
    ) -> None:
        """Schedule from `waiting`, which several replicas may share."""
        self.config = config
        self.allocator = allocator
        self.waiting = waiting
        self.swap_space = swap_space
        self.running: dict[int, Request] = {}  # by rank
        self.decoding = Lockstep(allocator.growth_tokens)
        self.plan = Plan()
        self.is_stuck = False  # whoever waits or is swapped out
        self._next_rank = 0

    @property
    def decode_seqs(self) -> int:
        """How many sequences decode."""
        return len(self.decoding)

    @property
    def decode_context_tokens(self) -> int:
        """Sum of their contexts."""
        return self.decoding.context_tokens

    @property
    def head_lacks(self) -> int:
        """What the head of the queue lacked when last asked."""
        return self.plan.head_lacks

    def enqueue(self, request: Request) -> None:
        """Put a new arrival at the back of the queue."""
        self.is_stuck = self.is_stuck and bool(self.waiting)
        self.waiting.append(request)

    def withdraw(self, request: Request) -> None:
        """Forget a waiting request whose client is gone."""
        self.is_stuck = False
        self.waiting.remove(request)

    def decode(self, request: Request, step: int) -> None:
        """Let a request whose prompt was computed decode from `step` on."""
        request.start_decoding(step)
        self.decoding.join(request, request.known_tokens)

    def rest(self, request: Request, step: int) -> None:
        """Do nothing: the last token has come before the next step is scheduled."""

    def leaving(self, ended: Sequence[Request], step: int) -> Sequence[Request]:
        """Return all whose answers are complete."""
        return ended

    def finish(self, request: Request, step: int) -> None:
        """Forget a request that has ended before `step`, and free its KV slots."""
        self.is_stuck = False
        self.stop(request, step)
        self.allocator.free(request.number)

    def quiet_steps(self, step: int, most: int) -> int:
        """Return how many steps from `step` on just go on with what decodes.

        All run, nobody shares a block or can be taken in, and each step leaves a block free.
        """
        seqs = len(self.decoding)
        if not seqs or seqs < len(self.running) or not self._nobody_comes():
            return 0
        if self.plan.paused:  # in the last step: the next one is to tell since when
            return 0
        if not isinstance(self.allocator, PagedPool) or self.allocator.shared_tokens:
            return 0
        free_blocks = self.allocator.free_tokens // self.allocator.growth_tokens
        if -(-most // self.allocator.growth_tokens) * seqs < free_blocks:
            return most
        for place in range(most):
            free_blocks -= self.decoding.due_seqs(place)
            if free_blocks < 1:
                return place
        return most

    def skip(self, step: int, steps: int) -> Growth:
        """Do for quiet steps at once what `schedule` would do in each."""
        allocator, decoding = self.allocator, self.decoding
        size = allocator.growth_tokens
        growth = [decoding.due_seqs(beats) for beats in range(min(steps, size))]
        for beats in range(steps):
            for request in decoding.due(beats):
                allocator.append(request.number, size)
        decoding.beat(steps)
        return Growth(steps, growth)

    def _nobody_comes(self) -> bool:
        """Tell whether nobody waits, or those who do lack what only somebody's end can give."""
        return self.is_stuck or not (self.waiting or self.swapped)

    def note_stuck(self) -> None:
        """Note, when a step has been scheduled, whether those who wait are stuck."""
        plan = self.plan
        calm = not (plan.admitted or plan.preempted or plan.swapped_out or plan.swapped_in)
        self.is_stuck = calm and (not self.waiting or plan.head_lacks in LASTING)

    def clear(self) -> Plan:
        """Return the plan, empty."""
        plan = self.plan
        plan.chunks = plan.admitted = plan.grown = plan.preempted = ()
        plan.paused = plan.swapped_out = plan.swapped_in = ()
        plan.head_lacks = plan.decode_seqs = plan.decode_kv_tokens = plan.copy_ns = 0
        return plan

    def start(self, request: Request) -> None:
        """Take the head of the queue in, with blocks for its whole prompt."""
        self.waiting.popleft()
        granted = self.allocator.allocate(request, request.number, request.known_tokens)
        require(granted, "an allocator grants what it said would fit")
        request.recomputed_tokens += request.computed_tokens
        request.computed_tokens = 0
        self.run(request)

    def run(self, request: Request) -> None:
        """Put a request behind the running ones."""
        request.rank = self._next_rank
        self._next_rank += 1
        self.running[request.rank] = request

    def stop(self, request: Request, step: int) -> None:
        """Take a request from the running ones; its counters are as they are before `step`."""
        del self.running[request.rank]
        if request.decoding:
            request.stop_decoding(step)
            self.decoding.leave(request, request.computed_tokens)

    def grow(self, step: int) -> None:
        """Give each decoding request its slot for this step; the latest ones give way.

        As in V0, each in its turn wants a free block, whether it needs it or not.
        """
        allocator, plan = self.allocator, self.plan
        block_size = allocator.growth_tokens
        due = self.decoding.due()
        if allocator.free_tokens < (len(due) + 1) * block_size and self.decoding.requests:
            due = self._grow_in_turn(step, set(due))
        else:
            for request in due:
                require(allocator.append(request.number, block_size), "there are enough blocks")
        plan.grown = due

    def _grow_in_turn(self, step: int, due: set[Request]) -> list[Request]:
        grown = []
        for request in list(self.decoding.requests.values()):
            while request.rank >= 0 and not self._has_room(request in due):
                self.preempt(next(reversed(self.running.values())), step)
            if request.rank >= 0 and request in due:
                self.allocator.append(request.number, self.allocator.growth_tokens)
                grown.append(request)
        return grown

    def _has_room(self, needs_block: bool) -> bool:
        """Tell whether a block is free; the only request can do without if it needs none."""
        if self.allocator.free_tokens >= self.allocator.growth_tokens:
            return True
        return not needs_block and len(self.running) == 1

    def preempt(self, request: Request, step: int) -> None:
        """Take all blocks from a running request; it is to be computed again."""
        self.stop(request, step)
        self.allocator.free(request.number)
        request.lose_all()
        self.waiting.requeue(request)
        self.plan.preempted = [*self.plan.preempted, request]

    def beat(self) -> None:
        """Let all decode in this step."""
        self.decoding.beat()
        self.plan.decode_seqs = len(self.decoding)
        self.plan.decode_kv_tokens = self.decoding.context_tokens
