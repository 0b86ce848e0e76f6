"""Runs a fleet by the compiled loop: replica by replica, and rows in the order of the cluster's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.engine import cluster
from kvsim.engine.allocators import KVAllocator
from kvsim.engine.allocators._prefix_cache import PrefixCachingPool
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.cluster import (
    FINISHED,
    REJECTED,
    REJECTION,
    Fleet,
    Progress,
    RunTotals,
)
from kvsim.engine.compiled.layout import Ints
from kvsim.engine.compiled.machine_code import Advance
from kvsim.engine.compiled.price import cost_arrays
from kvsim.engine.compiled.replica import CompiledReplica
from kvsim.engine.laws import Population, StepLaws
from kvsim.engine.recorder import Sink
from kvsim.engine.schedulers.queues import new_queue
from kvsim.engine.schedulers.vllm import VllmScheduler
from kvsim.errors import require
from kvsim.tables import EVENTS as EVENT_COLUMNS
from kvsim.tables import REQUESTS
from kvsim.workload.requests import NO_LIMIT, RequestTable


def is_plain(requests: RequestTable, fleet: Fleet) -> bool:
    """Tell whether the compiled loop can do what these clients and this fleet do."""
    waits = (requests.delay_ns, requests.timeout_ns, requests.stop_ns, requests.beams)
    config, router = fleet.config, fleet.router
    allocator = fleet.build_allocator(lambda _: 0)
    return (
        all(column is None for column in waits)
        and not requests.gates
        and not router.shares_queue
        and (router.is_blind or fleet.replicas == 1)
        and (type(allocator) is PagedPool or _finds_nothing(requests, allocator))
        and config.scheduling_policy == "fcfs"
        and config.scheduler_reserve_full_isl
        and not config.kv_groups
        and not config.long_prefill_token_threshold_adaptive
        and config.prefill_schedule_interval == 1
        and type(fleet.build_scheduler(config, allocator, new_queue("fcfs"))) is VllmScheduler
        and fleet.refuses_hopeless
        and not fleet.copy_ns_per_token
        and fleet.plans_ahead
        and cost_arrays(fleet.cost) is not None
    )


def _finds_nothing(requests: RequestTable, allocator: KVAllocator) -> bool:
    """Tell whether a prefix cache finds nothing, as long as nobody is preempted."""
    alone = requests.segments is None and np.bincount(requests.group).max(initial=1) == 1
    return type(allocator) is PrefixCachingPool and alone


def run_compiled(
    requests: RequestTable,
    fleet: Fleet,
    loop: Advance,
    sink: Sink,
    progress: Progress | None = None,
) -> tuple[RunTotals, int] | None:
    """Run a request table on a fleet: a plain case.

    Rows go to `sink` in chunks: those that `Cluster` writes, in its order. `loop` is the machine
    code, or its source.

    Returns:
        What the run did, and the KV slots of one replica; None, and no rows, if somebody is
        preempted whose prefix is cached: he would find it again.

    Raises:
        BrokenLawError: kvsim contradicts itself.
    """
    sent = _Sent.of(requests, fleet)
    if fleet.config.enable_prefix_caching:
        rehearsal = _replicas(requests, sent, fleet, loop)
        if not all(replica.stays_plain() for replica in rehearsal):
            return None
    run = _Run(requests, sent, _replicas(requests, sent, fleet, loop), sink, progress)
    return run.to_the_end(), run.kv_capacity_tokens


def _replicas(
    requests: RequestTable, sent: "_Sent", fleet: Fleet, loop: Advance
) -> list[CompiledReplica]:
    """Return all replicas, each with its requests still to come."""
    pool, cost = fleet.build_allocator(lambda _: 0), cost_arrays(fleet.cost)
    assert isinstance(pool, PagedPool)
    assert cost is not None, "it is a plain case"
    return [
        CompiledReplica(index, fleet, pool, (loop, cost), *sent.to(index, fleet, requests))
        for index in range(fleet.replicas)
    ]


class _Run:
    """All replicas, and what of their rows has not been written."""

    def __init__(
        self,
        requests: RequestTable,
        sent: "_Sent",
        replicas: list[CompiledReplica],
        sink: Sink,
        progress: Progress | None,
    ) -> None:
        self._requests, self._sent, self._replicas = requests, sent, replicas
        self._sink, self._progress = sink, progress
        self._rejected = np.flatnonzero(sent.replica < 0)  # in the order in which they came
        self._chunk_steps = -(-cluster.STEPS_IN_A_CHUNK // len(replicas))
        self.kv_capacity_tokens = replicas[0].kv_capacity_tokens
        self._laws = StepLaws(self.kv_capacity_tokens, len(replicas))
        self._left = 0

    def to_the_end(self) -> RunTotals:
        """Go on until all requests have left; check the laws."""
        while True:
            for replica in self._replicas:
                replica.go_on(self._chunk_steps)
            paused = [each for each in self._replicas if each.pauses]
            first = min(paused, key=lambda each: (each.now_ns, each.index), default=None)
            left = self._leaving()
            count = len(left)
            if first is not None:
                up_to_it = (left[:, 1] == first.now_ns) & (left[:, 2] == first.index)
                count = int(np.argmax(up_to_it)) + 1
            if count >= cluster.REQUESTS_IN_A_CHUNK:
                count = cluster.REQUESTS_IN_A_CHUNK
            elif first is None:
                break
            else:
                first.pauses = False
            self._flush(left[:count], int(left[count - 1, 1]), int(left[count - 1, 2]))
        self._flush(left, None, 0)
        self._check_laws()
        ends_ns = [each.now_ns for each in self._replicas]
        ends_ns += self._requests.arrival_ns[self._requests.arrival_ns.size - 1 :].tolist()
        return RunTotals(max(ends_ns), sum(each.steps for each in self._replicas), 0, ())

    def _leaving(self) -> Ints:
        """Return who leaves and isn't written: row, time, replica; in the order of leaving."""
        rejected = self._rejected
        none = np.full(len(rejected), -1)
        found = [np.stack([rejected, self._requests.arrival_ns[rejected], none], axis=1)]
        found += [each.left() for each in self._replicas]
        left = np.concatenate(found)
        return left[np.lexsort((left[:, 2], left[:, 1]))]

    def _flush(self, left: Ints, until_ns: int | None, index: int) -> None:
        """Write those who leave, what happened up to an instant of a replica, and its past steps.

        None: up to the end.
        """
        rejected = left[left[:, 2] < 0, 0]
        self._rejected = self._rejected[len(rejected) :]
        events = [_rejections(self._requests, rejected)]
        events += [each.take_events(until_ns, index) for each in self._replicas]
        happened = np.concatenate(events)
        order = np.lexsort((happened[:, 0], happened[:, 1]))
        self._write("requests", self._request_rows(left[:, 0], left[:, 1]))
        self._write("events", happened[order])
        steps = [each.take_steps(until_ns) for each in self._replicas]
        self._write("steps", np.concatenate(steps))
        for each in self._replicas:
            each.forget_left(int((left[:, 2] == each.index).sum()))
        self._left += len(left)
        if self._progress is not None and until_ns is not None:
            self._progress(until_ns, self._left)

    def _write(self, table: str, rows: Ints) -> None:
        if not len(rows):
            return
        if table == "steps":
            self._laws.check(rows)
        elif table == "events":
            self._laws.note_events(rows)
        self._sink(table, rows)

    def _request_rows(self, rows: Ints, left_ns: Ints) -> Ints:
        """Return the rows of requests that leave."""
        requests, sent = self._requests, self._sent
        served = sent.replica[rows] >= 0
        columns = {
            "request": rows,
            "group": requests.group[rows],
            "session": (requests.group if requests.session is None else requests.session)[rows],
            "class": 0 if requests.traffic_class is None else requests.traffic_class[rows],
            "replica": sent.replica[rows],
            "prompt_tokens": requests.prompt_tokens[rows],
            "max_tokens": sent.max_tokens[rows],
            "output_tokens": np.where(served, sent.answer[rows], 0),
            "arrival_ns": requests.arrival_ns[rows],
            "queued_ns": sent.queued_ns[rows],
            "admitted_ns": -1,
            "first_token_ns": -1,
            "finish_ns": left_ns,
            "outcome": np.where(served, FINISHED, REJECTED),
        }
        table = np.zeros((len(rows), len(REQUESTS)), dtype=np.int64)
        for place, column in enumerate(REQUESTS):
            table[:, place] = columns.get(column.name, 0)
        for replica in self._replicas:
            mine = sent.replica[rows] == replica.index
            replica.fill_in(table, mine, sent.place[rows[mine]])
        return table

    def _check_laws(self) -> None:
        population = Population()
        population.arrived = len(self._requests)
        population.left = self._left
        for replica in self._replicas:
            replica.count_in(population)
        require(population.left == population.arrived, "every request has one outcome")
        self._laws.check_tokens(population)


def _rejections(requests: RequestTable, rows: Ints) -> Ints:
    """Return the events of requests that are rejected as they come."""
    events = np.zeros((len(rows), len(EVENT_COLUMNS)), dtype=np.int64)
    events[:, 0] = events[:, 2] = -1
    events[:, 1], events[:, 3], events[:, 4] = requests.arrival_ns[rows], rows, REJECTION
    events[:, 5] = requests.prompt_tokens[rows]
    return events


@dataclass(frozen=True, slots=True)
class _Sent:
    """What becomes of the requests before they are queued; shape (requests,).

    Attributes:
        replica: Where they go, -1 for those that are rejected.
        place: Their place among those of the replica.
        max_tokens: As the engine knows it.
        answer: Tokens that come.
        queued_ns: Their front end is done; -1 for those that are rejected.
    """

    replica: Ints
    place: Ints
    max_tokens: Ints
    answer: Ints
    queued_ns: Ints

    @classmethod
    def of(cls, requests: RequestTable, fleet: Fleet) -> "_Sent":
        longest, size = fleet.config.max_model_len, fleet.config.block_size
        pool = fleet.build_allocator(lambda _: 0)
        prompt, limit = requests.prompt_tokens, requests.max_tokens
        room = np.maximum(1, longest - prompt)
        max_tokens = np.where(limit == NO_LIMIT, room, np.minimum(limit, room))
        slots = np.minimum(prompt + max_tokens, longest) - 1
        fits = (prompt > 0) & (prompt < longest)
        fits &= -(-slots // size) * size <= pool.capacity_tokens
        replica, place = np.full(len(prompt), -1), np.zeros(len(prompt), dtype=np.int64)
        replica[fits] = _choices(fleet, int(fits.sum()))
        queued_ns = np.where(fits, requests.arrival_ns, -1)
        for index in range(fleet.replicas):
            mine = replica == index
            place[mine] = np.arange(mine.sum())
            queued_ns[mine] = _through_front_end(fleet, requests.arrival_ns[mine], prompt[mine])
        answer = np.minimum(requests.output_tokens, max_tokens)
        return cls(replica, place, max_tokens, answer, queued_ns)

    def to(self, index: int, fleet: Fleet, requests: RequestTable) -> tuple[Ints, Ints]:
        """Return the rows of a replica's requests, and what is known of these: (GIVEN, rows)."""
        rows = np.flatnonzero(self.replica == index)
        prompt, answer = requests.prompt_tokens[rows], self.answer[rows]
        max_tokens = self.max_tokens[rows]
        # The last token of an answer never gets a slot (R10), but where it is a surprise (R40).
        surprise = (answer < max_tokens) if fleet.config.async_scheduling else 0
        final = prompt + answer - 1 + surprise
        return rows, np.stack([self.queued_ns[rows], prompt, max_tokens, answer, final])


def _choices(fleet: Fleet, requests: int) -> Sequence[int]:
    if fleet.replicas == 1:
        return [0] * requests
    everywhere: Sequence[None] = [None] * fleet.replicas
    choose = fleet.router.choose
    return [choose(None, everywhere) for _ in range(requests)]  # type: ignore[arg-type]  # blind


def _through_front_end(fleet: Fleet, arrival_ns: Ints, prompt: Ints) -> Ints:
    """Return when requests are through a front end that takes one after the other."""
    front_end = fleet.front_end
    if front_end is None:
        return arrival_ns
    busy_ns = front_end.busy_each_ns(prompt)
    worked_ns = np.cumsum(busy_ns)
    ends_ns = np.maximum.accumulate(arrival_ns - (worked_ns - busy_ns)) + worked_ns
    return ends_ns + front_end.rest_ns
