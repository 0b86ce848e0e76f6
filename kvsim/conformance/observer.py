"""Looks on while the production scheduler works: a note of each call, in the engine's terms."""

from collections.abc import Callable
from dataclasses import dataclass

from kvsim.conformance.recording import Recording
from kvsim.engine.allocators import KVAllocator
from kvsim.engine.allocators._hybrid import HybridPool
from kvsim.engine.allocators._prefix_cache import PrefixCachingPool
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.config import EngineConfig
from kvsim.engine.schedulers import Plan, WaitingQueue
from kvsim.engine.schedulers.vllm import VllmScheduler


@dataclass(frozen=True, slots=True)
class Pool:
    """What can be seen of the block pool at an instant."""

    free_blocks: int
    cached_hashes: int
    free_queue: list[int]  # empty if it wasn't recorded


@dataclass(frozen=True, slots=True)
class Call:
    """A scheduling call: requests by their number in the engine."""

    time_ns: int
    scheduled: list[tuple[int, int, int]]  # request, tokens, computed before
    preempted: list[int]
    running: int
    waiting: int
    look: int  # index of what the call saw of the pool
    free_blocks: int
    block_tables: dict[int, list[list[int]]]  # of running requests, a list a KV group

    @property
    def is_stall(self) -> bool:
        """Whether nothing was scheduled, nor preempted."""
        return not (self.scheduled or self.preempted)


class Notes:
    """What the observed scheduler notes."""

    scheduler: "ObservedScheduler"
    now_ns: Callable[[], int]

    def __init__(self, recording: Recording) -> None:
        self.block_size = recording.config.pool_block_tokens
        self.with_tables = "block_tables" in recording.steps[0]
        self.with_queue = "free_queue" in recording.steps[0]
        self.keeps_empty_calls = not recording.config.async_scheduling
        # One more than was recorded decides; where the recording was stopped there is none.
        self.most_calls = len(recording.steps) + (not recording.was_stopped)
        self.calls: list[Call] = []
        self.looks: list[tuple[int, Pool]] = []  # when, and what any call saw, also an empty one
        self.admissions: list[tuple[int, int, int]] = []  # request, known tokens, cached
        self.resumptions: list[tuple[int, int, int]] = []


class ObservedScheduler(VllmScheduler):
    """The production scheduler; notes what each call did and, where it matters, the pool."""

    def __init__(
        self, config: EngineConfig, allocator: KVAllocator, waiting: WaitingQueue, notes: Notes
    ) -> None:
        super().__init__(config, allocator, waiting)
        self._notes = notes

    def quiet_steps(self, step: int, most: int) -> int:
        """Return 0: each step is to be seen."""
        return 0

    def schedule(self, step: int, in_flight: int = 0) -> Plan:
        """Schedule, and note the call; nothing any more once all is known that is compared."""
        notes = self._notes
        if len(notes.calls) == notes.most_calls:
            self._look()
            notes.calls.append(self._noted(step, Plan()))
        if len(notes.calls) > notes.most_calls:
            return Plan()
        self._look()
        plan = super().schedule(step, in_flight)
        for request in plan.admitted:
            again = notes.resumptions if request.preemptions else notes.admissions
            again.append((request.number, request.known_tokens, request.computed_tokens))
        call = self._noted(step, plan)
        if notes.keeps_empty_calls or not call.is_stall:
            notes.calls.append(call)
        return plan

    def pool(self) -> Pool:
        """Return what the recording tells of the pool."""
        pool, notes = self.allocator, self._notes
        queue: list[int] = []
        if notes.with_queue and isinstance(pool, PagedPool | HybridPool):
            queue = list(pool.free_queue())
        hashes = pool.cached_keys() if isinstance(pool, PrefixCachingPool | HybridPool) else 0
        return Pool(pool.free_tokens // notes.block_size, hashes, queue)

    def _look(self) -> None:
        self._notes.looks.append((self._notes.now_ns(), self.pool()))

    def _noted(self, step: int, plan: Plan) -> Call:
        computes = plan.decode_seqs or plan.chunks
        return Call(
            self._notes.now_ns(),
            [
                (request.number, 1, request.computed_before(step))
                if request.decoding
                else (request.number, request.chunk_tokens, request.computed_tokens)
                for request in self.running.values()
                if computes and (request.decoding or request.chunk_tokens)
            ],
            [request.number for request in plan.preempted],
            len(self.running),
            len(self.waiting),
            len(self._notes.looks) - 1,
            self.allocator.free_tokens // self._notes.block_size,
            self._block_tables() if self._notes.with_tables else {},
        )

    def _block_tables(self) -> dict[int, list[list[int]]]:
        pool = self.allocator
        assert isinstance(pool, PagedPool | HybridPool)
        return {
            request.number: list(map(list, pool.block_tables(request.number)))
            for request in self.running.values()
        }
