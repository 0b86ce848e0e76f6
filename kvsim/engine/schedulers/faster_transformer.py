"""FasterTransformer behind a queue: static batches, each run until its longest answer is complete.

The baseline of the PagedAttention paper (Kwon et al., SOSP 2023, section 6.1): a scheduler takes up
to as many of the earliest requests as memory allows and hands them over as one batch.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

from kvsim.engine.allocators import KVAllocator
from kvsim.engine.config import EngineConfig
from kvsim.engine.request import Request
from kvsim.engine.schedulers import (
    EARLIER_ENGINE,
    WHOLE_PROMPTS,
    Growth,
    KVBlock,
    Plan,
    Scheduler,
    SchedulerPolicy,
    WaitingQueue,
)
from kvsim.engine.schedulers.vllm import LACKS, LACKS_SLOT
from kvsim.engine.swap_space import SwapSpace
from kvsim.errors import BrokenLawError, require
from kvsim.tables import HEAD_LACKS

LACKS_BATCH_END = HEAD_LACKS.index("batch_end")


class FasterTransformer(SchedulerPolicy):
    """Request-level batching: a batch is what waits when the one before has ended.

    It takes requests first come, first served, as many as `max_num_seqs` and the reservations
    allow; it doesn't wait for more. Prompts come first, whole, in as many steps as
    `max_num_batched_tokens` makes of them; then all decode together until the longest answer is
    complete. A sequence that has ended keeps its slots and its row in the batch: matrix products
    and sampling are computed for it, attention skips it. Its answer is returned when the batch
    ends, with all others; the first token counts when it is computed. A client that gives up
    takes its row with it when the step has ended.
    """

    fixed: ClassVar[Mapping[str, Any]] = {**EARLIER_ENGINE, **WHOLE_PROMPTS}
    profile: ClassVar[str] = "vllm-v0"
    layouts: ClassVar[tuple[str, ...]] = ("contiguous",)
    kind: Literal["faster_transformer"] = "faster_transformer"

    def build(
        self,
        config: EngineConfig,
        allocator: KVAllocator,
        waiting: WaitingQueue,
        block: KVBlock | None = None,
    ) -> Scheduler:
        """Return a scheduler of one replica."""
        return StaticBatches(config, allocator, waiting)


class StaticBatches:
    """One batch at a time; `running` holds all of it, ended sequences included."""

    most_in_flight = 1
    swap_space: SwapSpace | None = None
    swapped: Collection[Request] = ()

    def __init__(self, config: EngineConfig, allocator: KVAllocator, waiting: WaitingQueue) -> None:
        """Schedule from `waiting`, which several replicas may share."""
        self.config = config
        self.allocator = allocator
        self.waiting = waiting
        self.running: dict[int, Request] = {}  # by rank
        self._to_prefill: list[Request] = []
        self._decoding: dict[int, Request] = {}  # by rank
        self._context_tokens = 0  # computed tokens of these
        self._ended: dict[int, int] = {}  # by rank: step from which its row is computed for nobody
        self._next_rank = 0
        self._plan = Plan()

    @property
    def decode_seqs(self) -> int:
        """How many rows are computed, ended ones included."""
        return len(self._decoding) + len(self._ended)

    @property
    def decode_context_tokens(self) -> int:
        """Sum of the contexts of those that have not ended."""
        return self._context_tokens

    @property
    def head_lacks(self) -> int:
        """What the head of the queue lacked when last asked."""
        return self._plan.head_lacks

    def enqueue(self, request: Request) -> None:
        """Put a new arrival at the back of the queue."""
        self.waiting.append(request)

    def withdraw(self, request: Request) -> None:
        """Forget a waiting request whose client is gone."""
        self.waiting.remove(request)

    def schedule(self, step: int, in_flight: int = 0) -> Plan:
        """Take a batch if there is none, then compute its prompts, then its answers."""
        plan = self._plan
        plan.chunks = plan.admitted = plan.paused = ()
        plan.head_lacks = LACKS_BATCH_END if self.waiting else 0
        plan.decode_seqs = plan.decode_kv_tokens = plan.ended_seqs = 0
        if not self.running:
            self._take_batch(plan)
        if self._to_prefill:
            plan.chunks = self._next_prompts()
            plan.paused = list(self._decoding.values())
            for request in plan.paused:
                request.offset -= 1
            self._ended = {rank: since + 1 for rank, since in self._ended.items()}
        else:
            plan.ended_seqs = len(self._ended)
            plan.decode_seqs = len(self._decoding) + plan.ended_seqs
            self._context_tokens += len(self._decoding)
            plan.decode_kv_tokens = self._context_tokens
        return plan

    def decode(self, request: Request, step: int) -> None:
        """Let a request whose prompt was computed decode from `step` on."""
        request.start_decoding(step)
        self._decoding[request.rank] = request
        self._context_tokens += request.known_tokens

    def rest(self, request: Request, step: int) -> None:
        """Do nothing: `leaving` is told when the last token has come."""

    def leaving(self, ended: Sequence[Request], step: int) -> Sequence[Request]:
        """Keep who has ended in the batch, until all have."""
        for request in ended:
            self._stop_decoding(request, step)
            request.awaiting = False
            self._ended[request.rank] = step
        if self._decoding or self._to_prefill:
            return ()
        return list(self.running.values())

    def finish(self, request: Request, step: int) -> None:
        """Forget a request that leaves before `step`, and free its reservation."""
        del self.running[request.rank]
        if request.decoding:
            self._stop_decoding(request, step)
        elif request.rank in self._ended:
            rows = step - self._ended.pop(request.rank)
            request.generated_tokens += rows
            request.lost_tokens += rows
        else:
            self._to_prefill.remove(request)
        self.allocator.free(request.number)

    def quiet_steps(self, step: int, most: int) -> int:
        """Return 0: each step is scheduled by itself."""
        return 0

    def skip(self, step: int, steps: int) -> Growth:
        """Refuse: there are no quiet steps.

        Raises:
            BrokenLawError: Always.
        """
        raise BrokenLawError("steps are skipped that nobody called quiet")

    def _stop_decoding(self, request: Request, step: int) -> None:
        request.stop_decoding(step)
        del self._decoding[request.rank]
        self._context_tokens -= request.computed_tokens

    def _take_batch(self, plan: Plan) -> None:
        """Admit from the head of the queue until something lacks."""
        waiting = self.waiting
        admitted: list[Request] = []
        plan.head_lacks = 0
        while waiting:
            request = waiting.head
            if len(admitted) >= self.config.max_num_seqs:
                plan.head_lacks = LACKS_SLOT
                break
            if shortage := self.allocator.shortage(request, request.known_tokens, not admitted):
                plan.head_lacks = LACKS[shortage]
                break
            waiting.popleft()
            self._reserve(request)
            admitted.append(request)
        plan.admitted = admitted
        self._to_prefill = admitted.copy()

    def _reserve(self, request: Request) -> None:
        granted = self.allocator.allocate(request, request.number, request.known_tokens)
        require(granted, "an allocator grants what it said would fit")
        request.rank = self._next_rank
        self._next_rank += 1
        self.running[request.rank] = request

    def _next_prompts(self) -> list[Request]:
        """Return the prompts of this step, at least one."""
        budget_tokens = self.config.max_num_batched_tokens
        chunks: list[Request] = []
        for request in self._to_prefill:
            budget_tokens -= request.known_tokens
            if chunks and budget_tokens < 0:
                break
            request.chunk_tokens = request.known_tokens
            chunks.append(request)
        del self._to_prefill[: len(chunks)]
        return chunks
