"""The step loop of one replica: schedule, wait as long as the step takes, apply its results.

Up to two steps are in flight: with asynchronous scheduling the next one is scheduled while one
is computed (R40 to R42 of `docs/vllm-rules.md`). What a step computes counts as computed as soon
as it is scheduled; its tokens come when it ends.

While the same sequences just decode, the loop plans a whole stretch of steps and sleeps until it is
over (`stretch.py`). Who looks at the replica meanwhile calls `catch_up` first.
"""

from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any, Protocol

from simpy import Event

from kvsim.cost import StepCost
from kvsim.engine.allocators._slot_runs import SlotRuns
from kvsim.engine.clock import Alarm, Clock
from kvsim.engine.recorder import Recorder
from kvsim.engine.request import Request
from kvsim.engine.schedulers import Plan, Scheduler
from kvsim.engine.stretch import Stretch
from kvsim.engine.unfilled import UnfilledSlots
from kvsim.errors import InputError, Problem, require
from kvsim.tables import EVENT_KINDS

PREEMPTED = EVENT_KINDS.index("preempted")
RESUMED = EVENT_KINDS.index("resumed")
COMPACTED = EVENT_KINDS.index("compacted")
SWAPPED_OUT = EVENT_KINDS.index("swapped_out")
SWAPPED_IN = EVENT_KINDS.index("swapped_in")
DELAYED = EVENT_KINDS.index("delayed")
NOBODY_LATE: Mapping[int, int] = {}
MOST_FRUITLESS_STEPS = 10_000
MOST_PLANNED_STEPS = 1024  # at once: what is planned may be dropped
LEAST_PLANNED_STEPS = 3  # fewer are faster one by one
LIVELOCK = (
    "the engine livelocks, as vLLM's does (R34): requests preempt one another for ever and no "
    "token comes; set scheduler_reserve_full_isl: true, or give it a larger KV cache"
)
NO_CHUNKS = (0.0, 0, 0, 0, 0)
NO_DURATION_NO_CHUNKS = (0, 0, 0, 0, 0, 0)
NO_GROWTH = [0]


class Home(Protocol):
    """Where the requests of a replica come from and go to."""

    def finished(self, request: Request) -> None:
        """Take a request that has ended now, complete or aborted."""
        ...

    def requeued(self) -> None:
        """Note that preempted requests went back to the queue."""
        ...


class Batch:
    """A step in flight, and the requests for which its end means more than one token more.

    It is used again for a later step, so that a step makes no object.
    """

    __slots__ = ("back", "end_ns", "late", "matters", "parted", "prompts", "step")

    def __init__(self) -> None:
        self.step = -1
        self.end_ns = 0
        self.forget()

    def forget(self) -> None:
        """Forget the requests of the step that ends now."""
        self.matters = False  # its end means more to anybody
        self.prompts: Sequence[tuple[Request, int]] = ()  # it completes them; their known tokens
        self.parted: Sequence[Request] = ()  # have stopped decoding, and still get its token (R42)
        self.back: Sequence[Request] = ()  # were swapped in for it
        self.late: Mapping[int, int] = NOBODY_LATE  # go on after a pause: since when, how many


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
        self.step = 0  # to be scheduled next
        self._oldest_step = 0  # of those in flight; `step` if there are none
        self.held_tokens = 0  # tokens that are computed, and have a slot
        self.may_stall = False  # else nothing to schedule raises `BrokenLawError`
        self.plans_ahead = True  # else steps are taken one by one
        self._clock = clock
        self._cost = cost
        self._recorder = recorder
        self._rows = recorder.steps[index]
        self._add_step, self._pack_step = self._rows.append, self._rows.pack
        self._answers_tokens = answers_tokens
        self._home = home
        self._most_in_flight = scheduler.most_in_flight
        self._batches = [Batch() for _ in range(self._most_in_flight)]  # step k has place k % most
        self._free_at_ns = 0  # when the last step in flight ends
        # Which step is the last of each decoding request, by its number, and the other way round.
        self._last_steps: dict[int, int] = {}
        self._ending: dict[int, list[Request]] = {}
        self._ends: list[int] = []  # heap of the steps in `_ending`, and of some that are over
        self._paused_ns: dict[int, int] = {}  # last token of those that decode, but not just now
        self._unfilled = UnfilledSlots(
            self.allocator, answers_tokens, self._last_steps, self._most_in_flight > 1
        )
        self._discards = 0  # sequences that have ended already, in the first step of a stretch
        self._block_tokens = self.allocator.block_tokens
        self._slots_per_token = self.allocator.slots_per_token
        self._copy_ns_per_token = copy_ns_per_token
        self._fruitless_steps = 0  # that preempted somebody, and no token came since
        self._aborted: list[Request] = []  # running, to be dropped when a step has ended
        self._coming: deque[Request] = deque()  # in the queue from `queued_ns` on
        self._stretch = Stretch(self._most_in_flight)
        self._alarm = Alarm(clock, index)
        self._sleeps = self._awaits = False  # awaits: until somebody comes or goes
        self._most_ahead = self._most_in_flight - 1
        clock.process(self._run())

    @property
    def inside_tokens(self) -> int:
        """KV slots owned that no token will ever fill."""
        return self._unfilled.tokens

    @property
    def idle(self) -> bool:
        """Whether it waits until it is woken."""
        return self._awaits

    def wake(self) -> None:
        """Let it look at its queue now, if it waits for that."""
        if self._awaits:
            self._awaits = False
            if self._sleeps:
                self._ring(0)

    def expect(self, request: Request) -> None:
        """Take a request that is in the queue from its `queued_ns` on, now or later.

        Requests come in the order of these times.
        """
        self._coming.append(request)
        queued_ns = request.queued_ns
        if self._sleeps and not self._alarm.is_set:
            self._ring(queued_ns - self._clock.now)
        elif (turned := self._stretch.turned(queued_ns)) < self._stretch.planned:
            self._cut(turned)

    def forget(self, request: Request) -> None:
        """Forget a request that was still to come."""
        self._coming.remove(request)

    def catch_up(self, late: bool = False) -> None:
        """Account for all steps that have been scheduled by now: before, if `late` also at it."""
        stretch = self._stretch
        if stretch.committed < stretch.planned:
            self._commit(stretch.turned(self._clock.now, late))

    def slot_runs(self) -> SlotRuns:
        """Return what lies where in its KV cache, with the steps scheduled before this instant.

        A sequence that is none of the running ones, as a declared prefix, fills all its slots.
        """
        self.catch_up()
        running = {request.number: request for request in self.scheduler.running.values()}

        def filled(seq: int) -> tuple[int, int]:
            request = running.get(seq)
            if request is None:
                return self.allocator.slots_tokens(seq), 0
            return request.computed_before(self.step), self._unfilled.final_tokens(request)

        return self.allocator.slot_runs(filled)

    def delivered_tokens(self, request: Request) -> int:
        """Return how many tokens of a request's answer have come, with the steps that ended."""
        generated_tokens = request.generated_tokens
        if not request.decoding:
            if not request.awaiting:
                return generated_tokens
            # It decoded until it rested or was preempted: two of its tokens may be in flight.
            decoded_tokens = self._oldest_step + request.offset - request.prompt_tokens + 1
            return max(0, min(generated_tokens - 1, decoded_tokens))
        decoded_tokens = request.computed_before(self._oldest_step) - request.prompt_tokens + 1
        return max(generated_tokens - 1, decoded_tokens)  # its prompt may be in flight as well

    def abort(self, request: Request) -> None:
        """Drop a request: at once if it waits, else when the next step has ended."""
        self.catch_up(late=True)
        if self._stretch.committed < self._stretch.planned:
            self._cut(self._stretch.committed)
        self._take_in(self._clock.now)
        if request.rank >= 0:
            self._aborted.append(request)
            self._batch(self._oldest_step).matters = True
        else:
            self._drop(request)
        if self.may_stall:
            self.wake()

    def _run(self) -> Generator[Event, Any, None]:
        scheduler, batches, most_in_flight = self.scheduler, self._batches, self._most_in_flight
        coming, stretch, now_ns = self._coming, self._stretch, 0
        while True:
            if coming and coming[0].queued_ns <= now_ns:
                self._take_in(now_ns)
            if scheduler.running or scheduler.waiting or scheduler.swapped:
                if self._plan_stretch(now_ns):
                    yield self._alarm.set(stretch.over_ns - now_ns)
                    self._commit(stretch.planned)
                    now_ns = stretch.over_ns
                elif plan := self._start(now_ns):
                    yield from self._stall(plan)
                    now_ns = self._clock.now
                    continue
            elif self._oldest_step == self.step:
                yield self._sleep()
                self._sleeps = self._awaits = False
                now_ns = self._clock.now
                continue
            batch = batches[self._oldest_step % most_in_flight]
            if batch.end_ns > now_ns:
                yield self._alarm.set(batch.end_ns - now_ns)
            now_ns = batch.end_ns
            self._oldest_step += 1
            if batch.matters:
                self._complete(batch)

    def _start(self, now_ns: int) -> Plan | None:
        """Schedule until enough steps are in flight; return the plan if none can be."""
        scheduler, most_in_flight = self.scheduler, self._most_in_flight
        while self.step - self._oldest_step < most_in_flight:
            plan = scheduler.schedule(self.step, self.step - self._oldest_step)
            if self._begin(plan, now_ns):
                continue
            if self._oldest_step < self.step:
                return None
            if most_in_flight == 1 or not plan.preempted:  # else it costs nothing
                return plan
        return None

    def _take_in(self, now_ns: int) -> None:
        """Put those into the queue who have come."""
        coming = self._coming
        while coming and coming[0].queued_ns <= now_ns:
            self.scheduler.enqueue(coming.popleft())

    # Sleep, and stretches that are passed asleep

    def _sleep(self) -> Alarm:
        """Return what rings when the next request comes."""
        self._sleeps = self._awaits = True
        if self._coming:
            return self._alarm.set(max(0, self._coming[0].queued_ns - self._clock.now))
        return self._alarm.unset()

    def _ring(self, delay_ns: int) -> None:
        """Wake it after a delay, also if it was to wake later."""
        self._alarm = self._alarm.moved(delay_ns)

    def _cut(self, planned: int) -> None:
        """Let a stretch be over earlier."""
        self._stretch.planned = planned
        self._ring(self._stretch.over_ns - self._clock.now)

    def _plan_stretch(self, now_ns: int) -> bool:
        """Plan the steps that only decode, up to the next end or arrival that is known."""
        step = self.step
        if step - self._oldest_step != self._most_ahead or not self.plans_ahead:
            return False
        ends = self._ends
        while ends and ends[0] < step:
            heappop(ends)
        most = MOST_PLANNED_STEPS
        if ends and ends[0] < step + most:
            most = ends[0] - step + 1
        if most < LEAST_PLANNED_STEPS:
            return False
        scheduler = self.scheduler
        steps = scheduler.quiet_steps(step, most)
        if steps < LEAST_PLANNED_STEPS:
            return False
        # Last: what is foreseen is forgotten, and without a plan it might not come to be.
        if self._most_ahead and not self._foresees(self._batches[self._oldest_step % 2]):
            return False
        decode_seqs = scheduler.decode_seqs
        kv_tokens = scheduler.decode_context_tokens + decode_seqs
        durations_ns = self._cost.decode_steps_ns(decode_seqs, kv_tokens, steps)
        if self._most_ahead:
            turns_ns = [now_ns, *accumulate(durations_ns, initial=self._free_at_ns)]
        else:
            turns_ns = list(accumulate(durations_ns, initial=now_ns))
        before_ns = self._coming[0].queued_ns if self._coming else None
        self._stretch.begin(step, durations_ns, turns_ns, before_ns)
        return True

    def _foresees(self, batch: Batch) -> bool:
        """Note now what the end of a step in flight will bring, if that is just first tokens.

        False if it means more: then the steps after it are another matter.
        """
        if not batch.matters:
            return True
        if batch.parted or self._aborted or batch.step in self._ending:
            return False
        if any(request.first_token_ns >= 0 for request, _ in batch.prompts):
            return False
        for request, _ in batch.prompts:
            request.first_token_ns = batch.end_ns
        self._fruitless_steps = 0
        batch.forget()
        return True

    def _commit(self, end: int) -> None:
        """Account for the steps of the stretch up to a place, and record them."""
        stretch = self._stretch
        place = stretch.committed
        if end <= place:
            return
        if self.step - 1 in self._ending:
            self._discards = self._discarded_seqs()
        while place < end:
            place += self._commit_some(place, end)
        stretch.committed = end
        self._discards = 0
        self._fly(end)

    def _commit_some(self, place: int, end: int) -> int:
        """Account for the first of these steps, during which the pool just fills; return how many.

        Of all steps, unless prefixes are cached or windows slide.
        """
        stretch, scheduler, allocator = self._stretch, self.scheduler, self.allocator
        step, decode_seqs = stretch.first + place, scheduler.decode_seqs
        kv_tokens = scheduler.decode_context_tokens + decode_seqs
        unfilled = self._unfilled
        if unfilled.due and unfilled.due[0] < stretch.first + end:
            unfilled.own_last(step)
            if unfilled.due:
                end = min(end, unfilled.due[0] - stretch.first)
        taken_tokens = allocator.taken_tokens
        growth = scheduler.skip(step, end - place)
        if growth.grown and unfilled.has_groups:
            unfilled.own_grown(growth.grown, step)
        if growth.growth is None:
            taken_tokens = allocator.taken_tokens
        held_tokens = (self.held_tokens + decode_seqs) * self._slots_per_token
        reusable_tokens, waiting_seqs = allocator.reusable_tokens, len(scheduler.waiting)
        shared = allocator.shared_tokens
        self._rows.add_stretch(
            self._pack_step(
                growth.steps,
                decode_seqs * self._slots_per_token,
                self._block_tokens,
                self.index,
                step,
                stretch.start_ns(place),
                *NO_DURATION_NO_CHUNKS,
                decode_seqs,
                kv_tokens,
                self._discards,
                len(scheduler.running),
                waiting_seqs,
                0,
                scheduler.head_lacks if waiting_seqs else 0,
                held_tokens - shared + allocator.shared_empty_tokens - allocator.released_tokens,
                taken_tokens,
                unfilled.tokens,
                allocator.rounding_tokens,
                allocator.holes_tokens,
                reusable_tokens,
                allocator.taken_tokens + allocator.free_tokens - reusable_tokens,
                0,
                len(scheduler.swapped),
                0,
                0,
                shared,
            ),
            stretch.durations_ns[place : place + growth.steps],
            growth.growth or NO_GROWTH,
        )
        self.held_tokens += decode_seqs * growth.steps
        return growth.steps

    def _fly(self, end: int) -> None:
        """Let the last steps of the stretch up to a place be in flight."""
        stretch, most_in_flight = self._stretch, self._most_in_flight
        for place in range(max(0, end - most_in_flight), end):
            batch = self._batch(stretch.first + place)
            batch.step = stretch.first + place
            batch.end_ns = self._free_at_ns = stretch.end_ns(place)
        self.step = stretch.first + end - 1
        if self.step in self._ending:
            batch.matters = True
            self._rest_ended()
        self.step += 1
        self._oldest_step = self.step - most_in_flight

    def _batch(self, step: int) -> Batch:
        """Return a step in flight."""
        return self._batches[step % self._most_in_flight]

    def _stall(self, plan: Plan) -> Generator[Event, Any, None]:
        """Wait as long as an empty step takes, since nothing was scheduled and none is in flight.

        With asynchronous scheduling it takes no time, as in the recordings. If nobody was
        preempted either, wait for whatever may change that: with a common queue that another
        replica gets the token which its head awaits (R42).
        """
        waiting = self.scheduler.waiting
        awaits = bool(waiting) and waiting.head.awaiting
        lost = bool(plan.preempted or plan.swapped_out)
        makes_progress = self.may_stall or awaits or lost
        require(makes_progress, "a replica with work makes progress")
        self._awaits = True
        if self._most_in_flight == 1:
            yield self._alarm.set(self._cost.step_ns(0, 0, 0, 0, 0.0))
        if self._awaits and not lost:
            yield self._sleep()
        self._sleeps = self._awaits = False
        self._drop_aborted()

    # A step begins

    def _begin(self, plan: Plan, now_ns: int) -> bool:
        """Account for a scheduled step and record it; False if it computes nothing."""
        if plan.preempted or plan.stalled or plan.swapped_out:
            self._note_losers(plan)
        late_seqs = 0
        if plan.paused or plan.swapped_in or self._paused_ns:
            late_seqs = self._note_absences(plan)
        chunks = self._begin_chunks(plan) if plan.chunks else NO_CHUNKS
        chunks_ns, chunk_seqs, chunk_tokens, chunk_kv_tokens, chunk_pairs = chunks
        step, ending, unfilled = self.step, self._ending, self._unfilled
        if plan.grown:
            unfilled.own_new(plan.grown, step)
        if unfilled.due and unfilled.due[0] <= step:
            unfilled.own_last(step)
        decode_seqs, decode_kv_tokens = plan.decode_seqs, plan.decode_kv_tokens
        seqs = chunk_seqs + decode_seqs
        if not seqs:
            return False
        tokens = chunk_tokens + decode_seqs
        duration_ns = self._cost.step_ns(tokens, seqs, decode_seqs, decode_kv_tokens, chunks_ns)
        if plan.admitted and self._copy_ns_per_token:
            duration_ns += self._compact()
        duration_ns += plan.copy_ns
        # If the step before it is in flight, it starts when that one ends.
        start_ns = now_ns if now_ns > self._free_at_ns else self._free_at_ns
        batch = self._batches[step % self._most_in_flight]
        batch.step = step
        batch.end_ns = self._free_at_ns = start_ns + duration_ns
        discarded_seqs = self._discarded_seqs() if step - 1 in ending else plan.ended_seqs
        self.held_tokens += tokens - plan.ended_seqs
        scheduler, allocator, inside = self.scheduler, self.allocator, unfilled.tokens
        held = self.held_tokens * self._slots_per_token
        shared = allocator.shared_tokens
        held -= shared - allocator.shared_empty_tokens + allocator.released_tokens
        reusable = allocator.reusable_tokens
        self._add_step(
            self._pack_step(
                0,
                0,
                0,
                self.index,
                step,
                start_ns,
                duration_ns,
                chunk_seqs,
                chunk_tokens,
                chunk_kv_tokens,
                chunk_pairs,
                round(chunks_ns),
                decode_seqs,
                decode_kv_tokens,
                discarded_seqs,
                len(scheduler.running),
                len(scheduler.waiting),
                len(plan.preempted) + len(plan.swapped_out),
                plan.head_lacks,
                held,
                allocator.taken_tokens - held - inside,
                inside,
                allocator.rounding_tokens,
                allocator.holes_tokens,
                reusable,
                allocator.free_tokens - reusable,
                len(plan.paused),
                len(scheduler.swapped),
                plan.copy_ns,
                late_seqs,
                shared,
            )
        )
        if plan.chunks:
            self._advance_chunks(plan, batch)
        if plan.swapped_in:
            batch.back, batch.matters = plan.swapped_in, True
        if step in ending:
            batch.matters = True
            self._rest_ended()
        self.step = step + 1
        return True

    def _discarded_seqs(self) -> int:
        """Return how many sequences decode once more, since nobody knows yet that they end."""
        return sum(request.decoding for request in self._ending[self.step - 1])

    def _advance_chunks(self, plan: Plan, batch: Batch) -> None:
        """Advance the prompts; those that are complete decode from the next step on."""
        prompts = []
        for request in plan.chunks:
            request.compute_chunk(self.step)
            if request.computed_tokens == request.known_tokens:
                prompts.append((request, request.known_tokens))
                request.generated_tokens += 1
                self.scheduler.decode(request, self.step + 1)
                answer_tokens = self._answers_tokens[request.number]
                self._end_at(request, self.step + answer_tokens - request.generated_tokens)
        if prompts:
            batch.prompts, batch.matters = prompts, True

    def _rest_ended(self) -> None:
        """Let those rest whose last token is known to come with this step (R40).

        The engine knows ahead of an end by `max_tokens` only. Who ends otherwise is scheduled once
        more if another step is scheduled meanwhile, and that token is discarded.
        """
        for request in self._ending[self.step]:
            if self._answers_tokens[request.number] == request.max_tokens:
                self.scheduler.rest(request, self.step + 1)
                request.awaiting = True

    def _begin_chunks(self, plan: Plan) -> tuple[float, int, int, int, int]:
        """Return attention time, count, tokens, contexts and query-key pairs of the chunks."""
        if plan.admitted:
            self._note_admitted(plan)
        chunk_tokens, kv_tokens, pairs = 0, 0, 0
        chunks = []
        for request in plan.chunks:
            new, prefix = request.chunk_tokens, request.computed_tokens
            if not new:  # it shares the prompt that a sample of its group computes
                continue
            chunks.append((new, prefix))
            chunk_tokens += new
            kv_tokens += prefix + new
            pairs += new * prefix + new * (new + 1) // 2
            self._unfilled.own(request)
        return self._cost.chunks_ns(chunks), len(chunks), chunk_tokens, kv_tokens, pairs

    def _note_admitted(self, plan: Plan) -> None:
        for request in plan.admitted:
            request.replica = self.index  # a common queue doesn't know before
            cached_tokens = request.computed_tokens
            self.held_tokens += cached_tokens - request.slotless_tokens
            if request.admitted_ns < 0:
                request.admitted_ns = self._clock.now
                request.cached_tokens = cached_tokens

    def _note_losers(self, plan: Plan) -> None:
        for request in plan.stalled:
            self._stop_decoding(request)
        if plan.preempted:
            self._note_preempted(plan)
        for request in plan.swapped_out:
            self._lose_slots(request, SWAPPED_OUT)

    def _note_absences(self, plan: Plan) -> int:
        """Move the ends of those who decode, but not in this step, and of those who are back.

        Return how many tokens of this step come later after the ones before than it lasts.
        """
        now_ns, batch = self._clock.now, self._batch(self.step)
        late_seqs = len(plan.swapped_in)
        if not plan.paused:
            since_ns = [ns for number, ns in self._paused_ns.items() if number in self._last_steps]
            batch.late, batch.matters = Counter(since_ns), True
            late_seqs += len(since_ns)
            self._paused_ns.clear()
        for request in plan.paused:
            self._paused_ns.setdefault(request.number, now_ns)
            last_step = self._last_steps[request.number]
            self._ending[last_step].remove(request)
            self._end_at(request, last_step + 1)
            if request.parents is not None:  # beams may share the last block until they go on
                self._unfilled.disown(request)
        for request in plan.swapped_in:
            self.held_tokens += request.computed_before(self.step)
            left_tokens = self._answers_tokens[request.number] - request.generated_tokens
            self._end_at(request, self.step + left_tokens - 1)
            self._unfilled.own(request)
        return late_seqs

    def _note_preempted(self, plan: Plan) -> None:
        self._fruitless_steps = 0 if plan.decode_seqs else self._fruitless_steps + 1
        if self._fruitless_steps > MOST_FRUITLESS_STEPS:
            raise InputError(Problem(LIVELOCK, path="engine.scheduler_reserve_full_isl"))
        self._home.requeued()
        for request in plan.preempted:
            self._lose_slots(request, PREEMPTED)

    def _lose_slots(self, request: Request, how: int) -> None:
        self._stop_decoding(request)
        self._disown(request)
        self._event(how, self.step, request.number, request.computed_tokens)

    def _stop_decoding(self, request: Request) -> None:
        last_step = self._last_steps.pop(request.number, None)
        if last_step is None:
            return
        if self._oldest_step < self.step:
            batch = self._batch(self.step - 1)
            batch.parted, batch.matters = [*batch.parted, request], True
            request.awaiting = True
        else:
            request.last_token_ns = self._paused_ns.get(request.number, self._clock.now)
        if last_step >= self.step:  # else it ends with the token in flight
            self._ending[last_step].remove(request)

    def _end_at(self, request: Request, step: int) -> None:
        self._last_steps[request.number] = step
        self._unfilled.note_end(request, step, self.step)
        if step in self._ending:
            self._ending[step].append(request)
        else:
            self._ending[step] = [request]
            heappush(self._ends, step)

    def _compact(self) -> int:
        """Return how long the copies take that admissions in this step called for, in ns."""
        moved = set(self.allocator.take_moved_seqs())
        if not moved:
            return 0
        running = self.scheduler.running.values()
        tokens = sum(r.computed_before(self.step) for r in running if r.number in moved)
        copy_ns = round(tokens * self._copy_ns_per_token)
        self._event(COMPACTED, self.step, -1, tokens, copy_ns)
        return copy_ns

    # A step ends

    def _complete(self, batch: Batch) -> None:
        """Apply the results of the step that ends now: first tokens, ends (R29, R30), R42."""
        for request, known_tokens in batch.prompts:
            self._note_token(request, known_tokens, batch.step)
        if batch.parted:
            self._note_parted(batch)
        for request in batch.back:
            self._note_back(request, batch.step)
        for since_ns, tokens in batch.late.items():
            self._event(DELAYED, batch.step, -1, tokens, self._clock.now - since_ns)
        ended = self._ending.pop(batch.step, None)
        if ended:
            if len(ended) > 1:
                ended.sort(key=_place_in_step)
            for request in self.scheduler.leaving(ended, self.step):
                self._finish(request)
        if self._aborted:
            self._drop_aborted()
        batch.forget()

    def _drop_aborted(self) -> None:
        """End the aborted requests, unless the step that ended now has completed them."""
        for request in self._aborted:
            if request.rank >= 0:
                self._drop(request)
        self._aborted.clear()
        for request in self.scheduler.leaving((), self.step):
            self._finish(request)

    def _note_token(self, request: Request, known_tokens: int, step: int) -> None:
        """Note the token that follows a prompt which was computed for the first time or again."""
        now_ns = self._clock.now
        self._fruitless_steps = 0
        if request.first_token_ns < 0:
            request.first_token_ns = now_ns
        else:
            gap_ns = now_ns - request.last_token_ns
            self._event(RESUMED, step, request.number, known_tokens, gap_ns)

    def _note_back(self, request: Request, step: int) -> None:
        """Note the first token of a request since it was swapped in."""
        tokens = request.computed_before(step)
        gap_ns = self._clock.now - request.last_token_ns
        self._event(SWAPPED_IN, step, request.number, tokens, gap_ns)

    def _note_parted(self, batch: Batch) -> None:
        """Give those who stopped decoding meanwhile the token that was in flight (R42)."""
        for request in batch.parted:
            request.awaiting = False
            request.last_token_ns = self._clock.now
            if request.rank >= 0:  # stalled, not preempted (R41)
                self.allocator.publish(request, request.number, request.computed_tokens)
        self._home.requeued()

    def _finish(self, request: Request) -> None:
        """End a request whose last token has come.

        If that was no surprise it has rested since, and its last block may be findable now (R41);
        else what was computed beyond it is discarded.
        """
        self._last_steps.pop(request.number, None)
        if request.rank >= 0 and not request.decoding:
            self.allocator.publish(request, request.number, request.computed_tokens)
        self._part(request)
        answer_tokens = self._answers_tokens[request.number]
        request.discarded_tokens = request.generated_tokens - answer_tokens
        request.generated_tokens = answer_tokens
        self._home.finished(request)

    def _drop(self, request: Request) -> None:
        """End a request whose client is gone; its token in flight comes for nobody."""
        delivered_tokens = self.delivered_tokens(request)
        decoded = True
        steps = range(self._oldest_step, self.step)  # in flight
        for batch in map(self._batch, steps):
            if any(each is request for each, _ in batch.prompts):
                decoded = False
                batch.prompts = [entry for entry in batch.prompts if entry[0] is not request]
            batch.parted = [each for each in batch.parted if each is not request]
        for step in {self._last_steps.pop(request.number, -1), *steps}:
            if request in self._ending.get(step, ()):
                self._ending[step].remove(request)
        self._part(request)
        if decoded:
            request.discarded_tokens = request.generated_tokens - delivered_tokens
        request.generated_tokens = delivered_tokens
        self._home.finished(request)

    def _part(self, request: Request) -> None:
        """Take a request from the running, or from the queue if it was preempted."""
        if request.rank >= 0:
            self.scheduler.finish(request, self.step)
            request.rank = -1
            self._disown(request)
        else:
            self.scheduler.withdraw(request)
            request.computed_tokens = 0  # it holds none: they are among the lost ones

    def _disown(self, request: Request) -> None:
        self.held_tokens -= request.computed_tokens - request.slotless_tokens
        self._unfilled.disown(request)

    def _event(self, kind: int, step: int, request: int, tokens: int, gap_ns: int = 0) -> None:
        now_ns = self._clock.now
        self._recorder.add("events", self.index, now_ns, step, request, kind, tokens, gap_ns)


def _place_in_step(request: Request) -> int:
    """Return where a request stood in the step in flight, though it may wait by now."""
    return request.rank if request.rank >= 0 else request.rank_in_flight
