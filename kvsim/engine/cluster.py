"""Between clients and replicas: requests are routed, and each that leaves becomes a row."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import add

import numpy as np
from numpy.typing import NDArray

from kvsim.engine import recorder
from kvsim.engine.allocators import KVAllocator
from kvsim.engine.allocators._slot_runs import SlotRuns
from kvsim.engine.clients import Clients
from kvsim.engine.clock import Clock, Instant
from kvsim.engine.fleet import (
    FINISHED,
    REJECTED,
    REJECTION,
    TIMED_OUT,
    UNFINISHED,
    Fleet,
    Progress,
    RunTotals,
    why_never,
)
from kvsim.engine.laws import Population, StepLaws, check_swap_space
from kvsim.engine.loads import load_of
from kvsim.engine.queues import new_queue
from kvsim.engine.reader import RequestReader
from kvsim.engine.recorder import Recorder, Sink
from kvsim.engine.replica import Replica
from kvsim.engine.request import Request, RequestView
from kvsim.engine.schedulers import WaitingQueue
from kvsim.errors import require
from kvsim.tables import STEPS
from kvsim.workload.requests import RequestTable

STEP_START = [column.name for column in STEPS].index("start_ns")


@dataclass(frozen=True, slots=True)
class _Gone:
    """What a client had got when it went away."""

    time_ns: int
    first_token_ns: int
    output_tokens: int


class Cluster:
    """Runs a request table on a fleet; everything happens in `run`."""

    def __init__(
        self, requests: RequestTable, fleet: Fleet, sink: Sink, progress: Progress | None = None
    ) -> None:
        """Prepare a run whose rows go to `sink` in chunks."""
        self._fleet = fleet
        self._progress = progress
        self._until_ns: int | None = None
        self._population = Population()
        self._present: dict[int, Request] = {}
        self._answers_tokens: dict[int, int] = {}  # of the present ones: not for policies to see
        self._gone: dict[int, _Gone] = {}  # present requests whose clients are gone
        self._arriving: list[Request] = []  # samples of a group of which others are still to come
        self._front_end_free_ns = [0] * fleet.replicas
        self._clock = Clock()
        allocators = [fleet.build_allocator(self._answer_tokens) for _ in range(fleet.replicas)]
        self._allocators = allocators
        delay_ns = fleet.router.view_delay_ns
        self._loads = [load_of(each, self._clock, delay_ns) for each in allocators]
        self._step_laws = StepLaws(allocators[0].capacity_tokens, fleet.replicas)
        self._recorder = Recorder(self._checked(sink), fleet.replicas)
        # Of each replica: where the last chunk ended, as the tables tell it. How far a replica has
        # planned ahead must not decide when the next one leaves.
        self._written_steps = [0] * fleet.replicas
        self._unwritten_requests = 0
        # Clients start before the replicas do, so that requests at time 0 are seen at once.
        config = fleet.config
        reader = RequestReader(requests, config.max_model_len, config.enable_prefix_caching)
        self._clients = Clients(self._clock, requests, reader, self)
        policy = config.scheduling_policy
        shared = new_queue(policy)
        self._replicas = [
            self._replica(index, each, shared if fleet.router.shares_queue else new_queue(policy))
            for index, each in enumerate(allocators)
        ]
        for load, replica in zip(self._loads, self._replicas, strict=True):
            load.catch_up = replica.catch_up

    @property
    def now_ns(self) -> int:
        """Simulated time."""
        return self._clock.now

    @property
    def kv_capacity_tokens(self) -> int:
        """KV slots of one replica."""
        return self._allocators[0].capacity_tokens

    def run(self, until_ns: int | None = None) -> RunTotals:
        """Simulate until all requests have left, or to `until_ns`; check the laws.

        Raises:
            BrokenLawError: kvsim contradicts itself.
        """
        self._until_ns = until_ns
        self._clock.run_to(until_ns)
        for replica in self._replicas:
            replica.catch_up()
        drained = not self._present
        law = "a run that is not cut leaves no request unfinished"
        require(drained or until_ns is not None or not self._fleet.refuses_hopeless, law)
        for request in list(self._present.values()):
            request.generated_tokens = self._delivered_tokens(request)
            if request.first_token_ns >= self._clock.now:
                request.first_token_ns = -1  # it was foreseen
            self._leave(request, UNFINISHED)
        self._recorder.flush()
        self._check_laws(drained)
        steps = sum(replica.step for replica in self._replicas)
        return RunTotals(
            self._clock.now,
            steps,
            self._clock.count_events(),
            tuple(self._clients.retried_rows),
        )

    def look_at(self, times_ns: Iterable[int], look: Callable[[SlotRuns], None]) -> None:
        """Let somebody see the KV cache of the first replica at these instants of the run to come.

        It is as before anything else happens then. What the run does stays the same.
        """
        for time_ns in times_ns:
            self._at(time_ns, lambda: look(self._replicas[0].slot_runs()))

    def _replica(self, index: int, allocator: KVAllocator, waiting: WaitingQueue) -> Replica:
        replica = Replica(
            index,
            self._clock,
            self._fleet.build_scheduler(self._fleet.config, allocator, waiting),
            self._fleet.cost,
            self._recorder,
            self._answers_tokens,
            self,
            self._fleet.copy_ns_per_token,
        )
        replica.may_stall = not self._fleet.refuses_hopeless
        # With a common queue what the others do may concern it at any time.
        replica.plans_ahead = self._fleet.plans_ahead and not self._fleet.router.shares_queue
        return replica

    # Requests come

    def take_in(self, request: Request, answer_tokens: int) -> None:
        """Take a request that arrives now, and send it to a replica.

        Where samples of a prompt are one request to the engine, they wait for the last of them.
        """
        self._population.arrive(self._clock.now)
        self._present[request.number] = request
        self._answers_tokens[request.number] = answer_tokens
        arriving = self._arriving
        arriving.append(request)
        if len(arriving) == request.samples or not self._replicas[0].scheduler.gangs_samples:
            self._arriving = []
            self._let_in(arriving)

    def _let_in(self, requests: list[Request]) -> None:
        """Send what is one request to the engine to a replica, or reject it."""
        if len(requests) > 1:
            for request in requests:
                request.kin = requests
        config, pool = self._fleet.config, self._allocators[0]
        if self._fleet.refuses_hopeless and any(why_never(each, config, pool) for each in requests):
            for request in requests:
                self._leave(request, REJECTED)
                self._clients.left(request, answered=False)
        elif self._fleet.router.shares_queue:
            self._send_to_queue(requests)
        else:
            self._send_to_replica(requests)

    def _send_to_replica(self, requests: list[Request]) -> None:
        replica = self._fleet.router.choose(requests[0], self._loads)
        for request in requests:
            request.replica = replica
            self._loads[replica].add(request)
        self._note_queued(requests)
        for request in requests:
            self._replicas[replica].expect(request)

    def _send_to_queue(self, requests: list[Request]) -> None:
        self._note_queued(requests)
        queued_ns = requests[0].queued_ns
        if queued_ns == self._clock.now:
            self._enqueue(requests)
        else:
            self._at(queued_ns, lambda: self._enqueue(requests))

    def _note_queued(self, requests: list[Request]) -> None:
        """Note when they will be through the front end, which takes them for one."""
        delay_ns = self._front_end_ns(requests[0]) if self._fleet.front_end else 0
        for request in requests:
            request.queued_ns = self._clock.now + delay_ns

    def _at(self, time_ns: int, action: Callable[[], None]) -> None:
        instant = Instant(self._clock, time_ns - self._clock.now)
        instant.callbacks = [lambda _: action()]

    def _front_end_ns(self, request: Request) -> int:
        """Return how long a request that comes now is in a front end.

        With a common queue it takes the one that is free first.
        """
        front_end, now_ns = self._fleet.front_end, self._clock.now
        assert front_end is not None
        free_ns = self._front_end_free_ns
        server = request.replica
        if server < 0:
            server = min(range(len(free_ns)), key=free_ns.__getitem__)
        ends_ns = max(now_ns, free_ns[server]) + front_end.busy_ns(request.prompt_tokens)
        free_ns[server] = ends_ns
        return ends_ns + front_end.rest_ns - now_ns

    def _enqueue(self, requests: list[Request]) -> None:
        """Put requests into the common queue, unless their client is gone."""
        present = [request for request in requests if request.number not in self._gone]
        for request in present:
            self._replicas[0].scheduler.enqueue(request)
        if present:
            self.requeued()

    def requeued(self) -> None:
        """Let the first replica that sleeps look at the queue, if it is shared."""
        if self._fleet.router.shares_queue:
            for replica in self._replicas:
                if replica.idle:
                    replica.wake()
                    break

    # Requests leave

    def finished(self, request: Request) -> None:
        """Take a request that has ended now: its answer is complete, or it was abandoned."""
        if not self._fleet.router.shares_queue:
            self._loads[request.replica].remove(request)
        if request.number in self._gone:
            self._leave(request, TIMED_OUT)
        else:
            self._leave(request, FINISHED)
            self._clients.left(request, answered=True)
        replica = self._replicas[max(0, request.replica)]
        replica.catch_up()
        steps = replica.step - self._written_steps[replica.index]
        if steps * self._fleet.replicas >= recorder.STEPS_IN_A_CHUNK:
            self._flush()

    def give_up(self, number: int) -> None:
        """Free what a request holds whose client is gone; a step in flight is completed first."""
        request, now_ns = self._present[number], self._clock.now
        replica = self._replicas[max(0, request.replica)]
        replica.catch_up(late=True)
        if request.first_token_ns > now_ns:
            request.first_token_ns = -1  # it is foreseen
        self._gone[number] = _Gone(
            now_ns, request.first_token_ns, replica.delivered_tokens(request)
        )
        if request.queued_ns <= now_ns:
            replica.abort(request)
            return
        # The front end drops it when its turn comes.
        if not self._fleet.router.shares_queue:
            replica.forget(request)
        self._at(request.queued_ns, lambda: self.finished(request))
        request.queued_ns = -1

    def _delivered_tokens(self, request: Request) -> int:
        """Return how many tokens of its answer the client has got by now."""
        return self._replicas[max(0, request.replica)].delivered_tokens(request)

    def _leave(self, request: Request, outcome: int) -> None:
        """Write the row of a request that leaves now; an unfinished one has no finish time."""
        now_ns = self._clock.now
        number = request.number
        del self._present[number]
        del self._answers_tokens[number]
        finish_ns = -1 if outcome == UNFINISHED else now_ns
        if request.queued_ns > now_ns:
            request.queued_ns = -1  # the run is cut off while it is in the front end
        first_token_ns, output_tokens = request.first_token_ns, request.generated_tokens
        if outcome == FINISHED:
            require(
                request.arrival_ns
                <= request.queued_ns
                <= request.admitted_ns
                < first_token_ns
                <= now_ns,
                "a request arrives, waits, is admitted, gets its first token and finishes",
            )
        elif outcome == REJECTED:
            row = (-1, now_ns, -1, number, REJECTION, request.prompt_tokens, 0)
            self._recorder.add("events", *row)
        gone = self._gone.pop(number, None)
        if gone is not None:
            outcome, finish_ns = TIMED_OUT, gone.time_ns
            first_token_ns, output_tokens = gone.first_token_ns, gone.output_tokens
        self._population.note_tokens(request)
        self._population.leave(request.arrival_ns, now_ns, outcome)
        self._unwritten_requests += 1
        self._recorder.add(
            "requests",
            number,
            request.group,
            request.session,
            request.attempt,
            request.traffic_class,
            request.replica if request.admitted_ns >= 0 else -1,
            request.prompt_tokens,
            request.max_tokens,
            output_tokens,
            request.arrival_ns,
            request.queued_ns,
            request.admitted_ns,
            first_token_ns,
            finish_ns,
            outcome,
            request.preemptions,
            request.recomputed_tokens,
            request.cached_tokens,
            request.hit_tokens - request.cached_tokens,
        )
        if self._unwritten_requests >= recorder.REQUESTS_IN_A_CHUNK:
            self._flush()

    def _flush(self) -> None:
        """Let a chunk of rows go, with the steps that have started by now."""
        self._unwritten_requests = 0
        for replica in self._replicas:
            replica.catch_up()
        written = self._recorder.flush(self._clock.now)
        self._written_steps = list(map(add, self._written_steps, written))

    def _answer_tokens(self, request: RequestView) -> int:
        return self._answers_tokens[request.number]

    def _checked(self, sink: Sink) -> Sink:
        """Wrap the sink: laws are checked, and progress is told, as chunks leave."""

        def checked(table: str, rows: NDArray[np.int64]) -> None:
            if table == "steps":
                if self._until_ns is not None:  # a step may be scheduled before it starts
                    rows = rows[rows[:, STEP_START] < self._until_ns]
                self._step_laws.check(rows)
            elif table == "events":
                self._step_laws.note_events(rows)
            sink(table, rows)
            if self._progress is not None:
                self._progress(self._clock.now, self._population.left)

        return checked

    def _check_laws(self, drained: bool) -> None:
        self._population.check()
        if not drained:
            return
        for allocator in self._allocators:
            allocator.check()
            all_back = allocator.taken_tokens == allocator.resident_tokens
            require(all_back, "all KV slots come back")
        for replica in self._replicas:
            check_swap_space(replica.scheduler.swap_space)
        self._step_laws.check_tokens(self._population)
        require(
            sum(replica.held_tokens + replica.inside_tokens for replica in self._replicas) == 0,
            "no KV slot is held for a request that has left",
        )
