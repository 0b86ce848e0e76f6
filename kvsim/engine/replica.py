"""The step loop of one replica: schedule, wait as long as the step takes, apply its results."""

from collections.abc import Generator
from typing import Any, Protocol

from simpy import Event

from kvsim.cost import StepCost
from kvsim.engine.clock import Alarm, Clock
from kvsim.engine.recorder import Recorder
from kvsim.engine.request import Request
from kvsim.engine.schedulers import Plan, Scheduler
from kvsim.errors import InputError, require
from kvsim.tables import EVENT_KINDS

PREEMPTED = EVENT_KINDS.index("preempted")
RESUMED = EVENT_KINDS.index("resumed")
COMPACTED = EVENT_KINDS.index("compacted")
MOST_FRUITLESS_STEPS = 10_000
LIVELOCK = (
    "the engine livelocks, as vLLM's does (R34): requests preempt one another for ever and no "
    "token comes; set scheduler_reserve_full_isl: true, or give it a larger KV cache"
)
NO_CHUNKS = (0.0, 0, 0, 0, 0)


class Home(Protocol):
    """Where the requests of a replica come from and go to."""

    def finished(self, request: Request) -> None:
        """Take a request that has ended now, complete or aborted."""
        ...

    def requeued(self) -> None:
        """Note that preempted requests went back to the queue."""
        ...


class Replica:
    """One engine: owns time and, as its model does, the true length of each answer.

    With requests that can never fit, which the front end turns away, nothing may be left to
    schedule for ever (R32): the engine stalls.
    """

    def __init__(
        self,
        index: int,
        clock: Clock,
        scheduler: Scheduler,
        cost: StepCost,
        recorder: Recorder,
        answers_tokens: dict[int, int],
        home: Home,
        copy_ns_per_token: float = 0.0,
    ) -> None:
        """Build a replica.

        Args:
            index: Its number.
            clock: Simulated time.
            scheduler: Decides what its steps compute.
            cost: Decides how long they last.
            recorder: Takes the facts.
            answers_tokens: True answer length by request number.
            home: Is told what leaves the replica.
            copy_ns_per_token: What compaction pays for each token it moves.
        """
        self.index = index
        self.scheduler = scheduler
        self.allocator = scheduler.allocator
        self.step = 0
        self.held_tokens = 0  # tokens that are computed
        self.inside_tokens = 0  # KV slots owned that no token will ever fill
        self.may_stall = False  # else nothing to schedule raises `BrokenLawError`
        self._clock = clock
        self._cost = cost
        self._recorder = recorder
        self._add_step, self._pack_step = recorder.appender("steps"), recorder.packer("steps")
        self._answers_tokens = answers_tokens
        self._home = home
        # Which step is the last of each decoding request, by its number, and the other way round.
        self._last_steps: dict[int, int] = {}
        self._ending: dict[int, list[Request]] = {}
        self._unused_tokens: dict[int, int] = {}  # slots that a request owns and will never fill
        self._block_tokens = self.allocator.block_tokens
        self._slots_per_token = self.allocator.slots_per_token
        self._copy_ns_per_token = copy_ns_per_token
        self._fruitless_steps = 0  # that preempted somebody, and no token came since
        self._aborted: list[Request] = []  # running, to be dropped after the step in flight
        self._wakeup: Event | None = None
        clock.process(self._run())

    @property
    def idle(self) -> bool:
        """Whether it sleeps until it is woken."""
        return self._wakeup is not None

    def wake(self) -> None:
        """Let it look at its queue now, if it sleeps."""
        if self._wakeup is not None:
            self._wakeup.succeed()
            self._wakeup = None

    def abort(self, request: Request) -> None:
        """Drop a request: at once if it waits, else when the step in flight has ended."""
        if request.rank >= 0:
            self._aborted.append(request)
            self._ending.setdefault(self.step, [])  # so that it is completed
        else:
            self.scheduler.withdraw(request)
            request.computed_tokens = 0  # it holds none: they are among the lost ones
            self._home.finished(request)
        if self.may_stall:
            self.wake()

    def interrupt(self) -> None:
        """Bring the counters of running requests to what they were before the step in flight."""
        for request in self.scheduler.running.values():
            if request.decoding:
                request.stop_decoding(self.step)

    def _run(self) -> Generator[Event, Any, None]:
        scheduler, schedule, ending = self.scheduler, self.scheduler.schedule, self._ending
        set_alarm = Alarm(self._clock).set
        while True:
            while not (scheduler.running or scheduler.waiting):
                self._wakeup = self._clock.event()
                yield self._wakeup
            plan = schedule(self.step)
            if not (plan.decode_seqs or plan.chunks):
                yield from self._stall(plan)
                continue
            yield set_alarm(self._begin(plan))
            if plan.chunks or self.step in ending:
                self._complete(plan)
            self.step += 1

    def _stall(self, plan: Plan) -> Generator[Event, Any, None]:
        """Wait as long as an empty step takes, since nothing was scheduled; no step has begun.

        If nobody was preempted either, wait for whatever may change that.
        """
        require(self.may_stall, "a replica with work makes progress")
        if plan.preempted:
            self._note_preempted(plan)
        self._wakeup = woken = self._clock.event()
        yield self._clock.timeout(self._cost.step_ns(0, 0, 0, 0, 0.0))
        if not (plan.preempted or woken.triggered):
            yield woken
        self._wakeup = None
        self._drop_aborted()

    # A step begins

    def _begin(self, plan: Plan) -> int:
        """Account for a scheduled step, record it, and return its duration in ns."""
        if plan.preempted:
            self._note_preempted(plan)
        if plan.stalled:
            for request in plan.stalled:
                self._stop_decoding(request)
        chunks = self._begin_chunks(plan) if plan.chunks else NO_CHUNKS
        chunks_ns, chunk_seqs, chunk_tokens, chunk_kv_tokens, chunk_pairs = chunks
        last_steps = self._last_steps
        last_filled_step = self.step + self._block_tokens - 1  # of the blocks taken in this step
        for request in plan.grown:
            if last_steps[request.number] < last_filled_step:
                self._own(request)
        decode_seqs, decode_kv_tokens = plan.decode_seqs, plan.decode_kv_tokens
        seqs = chunk_seqs + decode_seqs
        tokens = chunk_tokens + decode_seqs
        duration_ns = self._cost.step_ns(tokens, seqs, decode_seqs, decode_kv_tokens, chunks_ns)
        if plan.admitted:
            duration_ns += self._compact()
        self.held_tokens += tokens
        scheduler, allocator, inside = self.scheduler, self.allocator, self.inside_tokens
        held = self.held_tokens * self._slots_per_token
        held -= allocator.shared_tokens + allocator.released_tokens
        reusable = allocator.reusable_tokens
        self._add_step(
            self._pack_step(
                self.index,
                self.step,
                self._clock.now,
                duration_ns,
                chunk_seqs,
                chunk_tokens,
                chunk_kv_tokens,
                chunk_pairs,
                round(chunks_ns),
                decode_seqs,
                decode_kv_tokens,
                len(scheduler.running),
                len(scheduler.waiting),
                len(plan.preempted),
                plan.head_lacks,
                held,
                allocator.taken_tokens - held - inside,
                inside,
                allocator.rounding_tokens,
                allocator.holes_tokens,
                reusable,
                allocator.free_tokens - reusable,
            )
        )
        return duration_ns

    def _begin_chunks(self, plan: Plan) -> tuple[float, int, int, int, int]:
        """Return attention time, count, tokens, contexts and query-key pairs of the chunks."""
        if plan.admitted:
            self._note_admitted(plan)
        chunks = plan.chunks
        chunks_ns, chunk_tokens, kv_tokens, pairs = 0.0, 0, 0, 0
        for request in chunks:
            new, prefix = request.chunk_tokens, request.computed_tokens
            chunks_ns += self._cost.chunk_ns(new, prefix)
            chunk_tokens += new
            kv_tokens += prefix + new
            pairs += new * prefix + new * (new + 1) // 2
            self._own(request)
        return chunks_ns, len(chunks), chunk_tokens, kv_tokens, pairs

    def _own(self, request: Request) -> None:
        """Keep count of the slots that a request owns and will never fill."""
        # The last token of an answer never gets a slot (R10).
        final_tokens = request.prompt_tokens + self._answers_tokens[request.number] - 1
        unused_tokens = self.allocator.unused_tokens(request.number, final_tokens)
        if unused_tokens:
            self.inside_tokens += unused_tokens - self._unused_tokens.get(request.number, 0)
            self._unused_tokens[request.number] = unused_tokens

    def _note_admitted(self, plan: Plan) -> None:
        for request in plan.admitted:
            request.replica = self.index  # a common queue doesn't know before
            cached_tokens = request.computed_tokens
            self.held_tokens += cached_tokens
            if request.admitted_ns < 0:
                request.admitted_ns = self._clock.now
                request.cached_tokens = cached_tokens

    def _note_preempted(self, plan: Plan) -> None:
        self._fruitless_steps = 0 if plan.decode_seqs else self._fruitless_steps + 1
        if self._fruitless_steps > MOST_FRUITLESS_STEPS:
            raise InputError(LIVELOCK)
        self._home.requeued()
        for request in plan.preempted:
            self._stop_decoding(request)
            self._disown(request)
            self._event(PREEMPTED, request.number, request.computed_tokens)

    def _stop_decoding(self, request: Request) -> None:
        last_step = self._last_steps.pop(request.number, None)
        if last_step is not None:  # it was decoding: its last token came just now
            request.last_token_ns = self._clock.now
            self._ending[last_step].remove(request)

    def _end_at(self, request: Request, step: int) -> None:
        self._last_steps[request.number] = step
        self._ending.setdefault(step, []).append(request)

    def _compact(self) -> int:
        """Return how long the copies take that admissions in this step called for, in ns."""
        moved = set(self.allocator.take_moved_seqs())
        if not moved:
            return 0
        running = self.scheduler.running.values()
        tokens = sum(r.computed_before(self.step) for r in running if r.number in moved)
        copy_ns = round(tokens * self._copy_ns_per_token)
        self._event(COMPACTED, -1, tokens, copy_ns)
        return copy_ns

    # A step ends

    def _complete(self, plan: Plan) -> None:
        """Apply the results of the step that ends now: tokens, first tokens, ends (R29, R30)."""
        ended = self._ending.pop(self.step, None)
        if plan.chunks:
            ended = (ended or []) + self._complete_chunks(plan)
        if ended:
            if len(ended) > 1:
                ended.sort(key=lambda request: request.rank)
            for request in ended:
                self._end(request)
            self._recorder.flush_if_full()
        if self._aborted:
            self._drop_aborted()

    def _complete_chunks(self, plan: Plan) -> list[Request]:
        """Advance the prompts; return the requests that their first token ends."""
        ended = []
        for request in plan.chunks:
            request.computed_tokens += request.chunk_tokens
            if request.computed_tokens == request.known_tokens and self._sample(request):
                ended.append(request)
        return ended

    def _sample(self, request: Request) -> bool:
        """Produce the token that follows a computed prompt; True if it is the last one."""
        now_ns = self._clock.now
        self._fruitless_steps = 0
        if request.first_token_ns < 0:
            request.first_token_ns = now_ns
        else:
            gap_ns = now_ns - request.last_token_ns
            self._event(RESUMED, request.number, request.known_tokens, gap_ns)
        request.generated_tokens += 1
        answer_tokens = self._answers_tokens[request.number]
        if request.generated_tokens == answer_tokens:
            return True
        next_step = self.step + 1
        self.scheduler.decode(request, next_step)
        self._end_at(request, next_step + answer_tokens - request.generated_tokens - 1)
        return False

    def _end(self, request: Request) -> None:
        self.scheduler.finish(request, self.step + 1)
        request.rank = -1
        self._last_steps.pop(request.number, None)
        self._disown(request)
        self._home.finished(request)

    def _drop_aborted(self) -> None:
        """End the aborted requests, unless the step that ended now has completed them."""
        for request in self._aborted:
            if request.rank >= 0:
                last_step = self._last_steps.get(request.number)
                if last_step is not None:
                    self._ending[last_step].remove(request)
                self._end(request)
        self._aborted.clear()

    def _disown(self, request: Request) -> None:
        self.held_tokens -= request.computed_tokens
        self.inside_tokens -= self._unused_tokens.pop(request.number, 0)

    def _event(self, kind: int, request: int, tokens: int, gap_ns: int = 0) -> None:
        now_ns = self._clock.now
        self._recorder.add("events", self.index, now_ns, self.step, request, kind, tokens, gap_ns)
