"""Runs a fleet by the compiled loop, and writes rows in the order of the cluster's."""

import numpy as np

from kvsim.engine import recorder
from kvsim.engine.allocators import KVAllocator
from kvsim.engine.allocators._prefix_cache import PrefixCachingPool
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.compiled import layout
from kvsim.engine.compiled.layout import (
    ADMITTED_NS,
    ANSWER,
    CAPACITY_TOKENS,
    COMPUTED,
    DISCARDED_TOKENS,
    DONE,
    FIRST_NS,
    FREE_BLOCKS,
    FULL,
    HELD_TOKENS,
    INSIDE_TOKENS,
    LOST_TOKENS,
    MAX_TOKENS,
    NEVER_NS,
    NOW_NS,
    PAUSES,
    PREEMPTIONS,
    QUEUED_NS,
    RECOMPUTED,
    REPLICA,
    STEP,
    STUCK,
    Cost,
    Ints,
    Replicas,
)
from kvsim.engine.compiled.machine_code import Advance
from kvsim.engine.compiled.price import cost_arrays
from kvsim.engine.compiled.state import known_requests, pool_of, replicas_of
from kvsim.engine.compiled.unwritten import Unwritten
from kvsim.engine.fleet import FINISHED, REJECTED, REJECTION, Fleet, Progress, RunTotals
from kvsim.engine.laws import Population, StepLaws
from kvsim.engine.queues import new_queue
from kvsim.engine.recorder import Sink
from kvsim.engine.schedulers.vllm import VllmScheduler
from kvsim.errors import require
from kvsim.tables import EVENTS, REQUESTS
from kvsim.workload.requests import RequestTable


def is_plain(requests: RequestTable, fleet: Fleet) -> bool:
    """Tell whether the compiled loop can do what these clients and this fleet do."""
    waits = (requests.delay_ns, requests.timeout_ns, requests.stop_ns, requests.beams)
    config = fleet.config
    allocator = fleet.build_allocator(lambda _: 0)
    return (
        all(column is None for column in waits)
        and not requests.gates
        and _routes_plainly(fleet)
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


def _routes_plainly(fleet: Fleet) -> bool:
    """Tell whether the least loaded of all replicas is chosen, or of some that are drawn."""
    router = fleet.router
    if router.shares_queue:
        return False
    return fleet.replicas == 1 or router.is_blind or bool(router.least and not router.view_delay_ns)


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
    cost, known = cost_arrays(fleet.cost), known_requests(requests, fleet)
    assert cost is not None, "it is a plain case"
    if fleet.config.enable_prefix_caching:
        rehearsal = replicas_of(fleet, requests, known.copy(), NEVER_NS)
        if not _stays_plain(Unwritten(rehearsal), loop, cost):
            return None
    pause_steps = -(-recorder.STEPS_IN_A_CHUNK // fleet.replicas)
    replicas = replicas_of(fleet, requests, known, pause_steps)
    run = _Run(requests, replicas, sink, progress)
    return run.to_the_end(loop, cost), pool_of(fleet).capacity_tokens


def _stays_plain(rows: Unwritten, loop: Advance, cost: Cost) -> bool:
    """Run to the end for nothing but to see whether anybody is preempted; rows are lost."""
    while (outcome := loop(rows.replicas, cost)) == FULL:
        rows.forget_all()
    return outcome == DONE


class _Run:
    """A run, and what of its rows has not been written."""

    def __init__(
        self,
        table: RequestTable,
        replicas: Replicas,
        sink: Sink,
        progress: Progress | None,
    ) -> None:
        self._table, self._sink, self._progress = table, sink, progress
        self._rows = Unwritten(replicas)
        self._at, self._requests = replicas.at, replicas.requests
        self._free_blocks = replicas.at[:, FREE_BLOCKS].copy()
        # In the order in which they come.
        self._rejected = np.flatnonzero(replicas.requests[:, REPLICA] == layout.REJECTED)
        self._laws = StepLaws(int(replicas.limits[CAPACITY_TOKENS]), len(replicas.at))
        self._left = 0

    def to_the_end(self, loop: Advance, cost: Cost) -> RunTotals:
        """Go on until all requests have left; check the laws."""
        at = self._at
        while True:
            outcome = loop(self._rows.replicas, cost)
            if outcome == FULL:
                self._rows.make_room()
                continue
            require(outcome != STUCK, "a replica with work makes progress")
            pausing = np.flatnonzero(at[:, PAUSES]).tolist()
            first = min(pausing, key=lambda each: (at[each, NOW_NS], each), default=None)
            left = self._leaving(first)
            if len(left) >= recorder.REQUESTS_IN_A_CHUNK:
                left = left[: recorder.REQUESTS_IN_A_CHUNK]
            elif first is None:
                break
            else:
                at[first, PAUSES] = 0
            if len(left):
                self._flush(left, int(left[-1, 1]), int(left[-1, 2]))
        self._flush(left, None, 0)
        self._check_laws()
        ends_ns = [*at[:, NOW_NS].tolist(), *self._table.arrival_ns[-1:].tolist()]
        return RunTotals(max(ends_ns), int(at[:, STEP].sum()), 0, ())

    def _leaving(self, first: int | None) -> Ints:
        """Return who leaves up to the pause of a replica: request, time, replica; in that order.

        None: up to the end.
        """
        left, rejected = self._rows.left(), self._rejected
        arrival_ns = self._table.arrival_ns[rejected]
        if first is not None:
            until_ns = self._at[first, NOW_NS]
            arrival_ns = arrival_ns[: np.searchsorted(arrival_ns, until_ns, "right")]
            rejected = rejected[: len(arrival_ns)]
        none = np.full(len(rejected), -1)
        left = np.concatenate([np.stack([rejected, arrival_ns, none], axis=1), left])
        left = left[np.lexsort((left[:, 2], left[:, 1]))]
        if first is None:
            return left
        its_own = np.flatnonzero((left[:, 1] == until_ns) & (left[:, 2] == first))
        # None is left if a chunk of requests has just ended with it.
        return left[: its_own[0] + 1 if len(its_own) else 0]

    def _flush(self, left: Ints, until_ns: int | None, index: int) -> None:
        """Write those who leave, what happened up to an instant of a replica, and its past steps.

        None: up to the end.
        """
        rejected = left[left[:, 2] < 0, 0]
        self._rejected = self._rejected[len(rejected) :]
        happened = self._rows.take_events(until_ns, index)
        happened = np.concatenate([_rejections(self._table, rejected), happened])
        self._write("requests", self._request_rows(left[:, 0], left[:, 1]))
        self._write("events", happened[np.lexsort((happened[:, 0], happened[:, 1]))])
        self._write("steps", self._rows.take_steps(until_ns))
        self._rows.forget_left(left[:, 0])
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
        table, requests = self._table, self._requests[rows]
        served = requests[:, REPLICA] >= 0
        columns = {
            "request": rows,
            "group": table.group[rows],
            "session": (table.group if table.session is None else table.session)[rows],
            "class": 0 if table.traffic_class is None else table.traffic_class[rows],
            "replica": requests[:, REPLICA],
            "prompt_tokens": table.prompt_tokens[rows],
            "max_tokens": requests[:, MAX_TOKENS],
            "output_tokens": np.where(served, requests[:, ANSWER], 0),
            "arrival_ns": table.arrival_ns[rows],
            "queued_ns": requests[:, QUEUED_NS],
            "admitted_ns": requests[:, ADMITTED_NS],
            "first_token_ns": requests[:, FIRST_NS],
            "finish_ns": left_ns,
            "outcome": np.where(served, FINISHED, REJECTED),
            "preemptions": requests[:, PREEMPTIONS],
            "recomputed_tokens": requests[:, RECOMPUTED],
        }
        written = np.zeros((len(REQUESTS), len(rows)), dtype=np.int64)
        for place, column in enumerate(REQUESTS):
            written[place] = columns.get(column.name, 0)
        return written.T

    def _check_laws(self) -> None:
        at, requests = self._at, self._requests
        served = requests[:, REPLICA] >= 0
        admitted_ns, answers = requests[served, ADMITTED_NS], requests[served, ANSWER]
        population = Population()
        population.generated_tokens = int(answers.sum())
        population.answers = len(answers)
        population.discarded_tokens = int(at[:, DISCARDED_TOKENS].sum())
        population.computed_tokens = int(requests[:, COMPUTED].sum() + at[:, LOST_TOKENS].sum())
        require(self._left == len(requests), "every request has one outcome")
        require(bool((at[:, FREE_BLOCKS] == self._free_blocks).all()), "all KV slots come back")
        nothing_held = not (at[:, HELD_TOKENS] + at[:, INSIDE_TOKENS]).any()
        require(nothing_held, "no KV slot is held for a request that has left")
        in_order = requests[served, QUEUED_NS] <= admitted_ns
        in_order &= admitted_ns < requests[served, FIRST_NS]
        require(bool(in_order.all()), "a request waits, is admitted and gets its first token")
        self._laws.check_tokens(population)


def _rejections(requests: RequestTable, rows: Ints) -> Ints:
    """Return the events of requests that are rejected as they come."""
    events = np.zeros((len(rows), len(EVENTS)), dtype=np.int64)
    events[:, 0] = events[:, 2] = -1
    events[:, 1], events[:, 3], events[:, 4] = requests.arrival_ns[rows], rows, REJECTION
    events[:, 5] = requests.prompt_tokens[rows]
    return events
