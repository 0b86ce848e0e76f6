"""What a run costs, in counts that don't depend on the machine."""

from collections import Counter, deque
from dataclasses import replace

import numpy as np
import pytest

import kvsim.engine.cluster
from kvsim.engine.allocators import PoolShape
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.clock import Clock
from kvsim.engine.cluster import Cluster
from kvsim.engine.config import EngineConfig
from kvsim.engine.fleet import Fleet
from kvsim.engine.request import Request
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.engine.schedulers.vllm import VllmScheduler
from tests.engine.harness import LinearCost, request_table, run

BLOCK = 16


def config(max_num_seqs=256, blocks=20_000, budget=2048):
    return EngineConfig(max_num_seqs, budget, 4096, blocks, BLOCK)


def random_requests(seed, count=200, gap=400):
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.integers(0, count * gap, count))
    arrivals[: count // 10] = arrivals[0]  # some at the same instant
    rows = zip(arrivals, rng.integers(1, 600, count), rng.integers(1, 300, count), strict=True)
    return request_table([(int(arrival), int(p), int(o), 0) for arrival, p, o in rows])


@pytest.fixture
def events(monkeypatch):
    """Count all events that SimPy is given, by class."""
    counted = Counter()
    schedule = Clock.schedule

    def counting(self, event, *arguments, **options):
        counted[type(event).__name__] += 1
        schedule(self, event, *arguments, **options)

    monkeypatch.setattr(Clock, "schedule", counting)
    return counted


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("gap", [40, 40_000])
def test_step_by_step_events_are_steps_arrivals_and_wake_ups(events, replicas, gap):
    requests = random_requests(1, gap=gap)
    totals = run(
        requests, config(), LinearCost(100, 1), replicas=replicas, plans_ahead=False
    ).totals
    instants = len(np.unique(requests.arrival_ns[requests.arrival_ns > 0]))
    wake_ups = events.pop("Alarm") - totals.steps
    assert 0 < wake_ups <= instants * replicas
    assert totals.events == totals.steps + wake_ups + instants + 2 + replicas
    assert events == {
        "Instant": instants,
        "Initialize": 1 + replicas,  # the source and the step loops start
        "Process": 1,  # the source ends
    }


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("gap", [4_000, 40_000, 400_000])
def test_events_go_with_requests_not_with_steps(gap, async_scheduling):
    """Arrival and end, and steps that do more than decode: a few alarms for each request."""
    requests = random_requests(1, gap=gap)
    engine = replace(config(), async_scheduling=async_scheduling)
    totals = run(requests, engine, LinearCost(100, 1)).totals
    assert totals.events <= 9 * len(requests)
    assert totals.steps > 25 * len(requests) or gap == 4_000


def test_neither_requests_nor_tokens_are_events(events):
    """One request of 100 tokens, and 256 such at once, make the same few events."""
    for count in (1, 256):
        run(request_table([(0, 1, 100, 0)] * count), config(), LinearCost())
    assert events == {"Alarm": 2 * 2, "Initialize": 4, "Process": 2}


class CountingPool(PagedPool):
    """The production pool, with a count of its calls."""

    calls: Counter

    def shortage(self, *arguments, **options):
        self.calls["shortage"] += 1
        return super().shortage(*arguments, **options)

    def allocate(self, *arguments):
        self.calls["allocate"] += 1
        return super().allocate(*arguments)

    def append(self, *arguments):
        self.calls["append"] += 1
        return super().append(*arguments)

    def free(self, *arguments):
        self.calls["free"] += 1
        return super().free(*arguments)


class CountingRequest(Request):
    """The production request, with a count of every look at it and every change."""

    touches = 0

    def __getattribute__(self, name):
        CountingRequest.touches += 1
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        CountingRequest.touches += 1
        super().__setattr__(name, value)


class CountingScheduler(VllmScheduler):
    """The production scheduler; notes (changes, waiting, touches) of each step as a whole."""

    notes: list

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._changes = self._waiting_seqs = 0

    def enqueue(self, request):
        self._changes += 1
        super().enqueue(request)

    def decode(self, request, step):
        self._changes += 1
        super().decode(request, step)

    def finish(self, request, step):
        self._changes += 1
        super().finish(request, step)

    def quiet_steps(self, step, most):
        return 0  # each step is to be seen

    def schedule(self, step, in_flight=0):
        if step:  # the one before is over: its results, and the arrivals meanwhile, count
            self.notes.append((self._changes, self._waiting_seqs, CountingRequest.touches))
        CountingRequest.touches = 0
        plan = super().schedule(step, in_flight)
        self._changes = len(plan.chunks) + len(plan.grown) + len(plan.preempted)
        self._waiting_seqs = len(self.waiting)
        return plan


def counted_run(requests, engine, sink=lambda *_: None):
    """Return totals, and the allocator's calls."""
    calls = Counter()

    def build_allocator(_):
        pool = CountingPool(PoolShape(engine.num_gpu_blocks, BLOCK, engine.max_model_len))
        pool.calls = calls
        return pool

    def build_scheduler(settings, allocator, waiting: deque):
        scheduler = CountingScheduler(settings, allocator, waiting)
        scheduler.notes = notes
        return scheduler

    notes: list = []
    fleet = Fleet(
        engine, 1, RoundRobin().build(np.random.default_rng(0)), build_allocator,
        LinearCost(100, 1),
        build_scheduler=build_scheduler,
    )  # fmt: skip
    return Cluster(requests, fleet, sink).run(), calls, notes


@pytest.mark.parametrize("max_num_seqs", [1, 8, 256])
@pytest.mark.parametrize("budget", [2048, 300])
def test_the_allocator_is_called_once_for_each_block_of_an_answer(max_num_seqs, budget):
    """However many sequences decode together, and besides once for each chunk of a prompt."""
    requests = random_requests(2)
    tables = {"steps": [], "requests": [], "events": []}
    engine = config(max_num_seqs, budget=max(budget, max_num_seqs))
    _, calls, _ = counted_run(requests, engine, lambda name, rows: tables[name].append(rows))
    prompt_blocks = -(-requests.prompt_tokens // BLOCK)
    blocks = -(-(requests.prompt_tokens + requests.output_tokens - 1) // BLOCK)
    chunks = int(sum(rows[:, 4].sum() for rows in tables["steps"]))  # prefill_seqs
    assert calls["allocate"] == calls["free"] == len(requests)
    assert calls["append"] == int((blocks - prompt_blocks).sum()) + chunks - len(requests)
    assert chunks > len(requests) or budget == 2048


@pytest.mark.parametrize("max_num_seqs", [2, 20, 256])
def test_a_step_touches_the_requests_that_change_and_no_others(monkeypatch, max_num_seqs):
    monkeypatch.setattr(kvsim.engine.cluster, "Request", CountingRequest)
    totals, calls, notes = counted_run(random_requests(3, gap=100), config(max_num_seqs))
    assert len(notes) == totals.steps - 1
    quiet = [touches for changes, waiting, touches in notes if not (changes or waiting)]
    assert not any(quiet)
    assert max_num_seqs == 2 or len(quiet) >= 20
    for changes, waiting, touches in notes:
        assert touches <= 40 * changes + (8 if waiting else 0)  # the head is looked at again
    assert calls["shortage"] <= totals.steps + len(random_requests(3))


def test_touches_do_not_grow_with_the_batch(monkeypatch):
    """Per request, a batch of 200 costs what a batch of 10 does: nothing is done for each pair."""
    monkeypatch.setattr(kvsim.engine.cluster, "Request", CountingRequest)
    each = {}
    for count in (10, 200):
        requests = request_table([(0, 1 + number % BLOCK, 160, 0) for number in range(count)])
        _, _, notes = counted_run(requests, config())
        each[count] = sum(touches for _, _, touches in notes) / count
    assert each[200] <= 1.1 * each[10]
