"""Stretches that are passed at once give the rows that single steps give, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from kvsim.cost.front_end import FrontEnd
from kvsim.engine import recorder, replica
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.clock import Clock
from kvsim.engine.config import EngineConfig
from kvsim.engine.routers.least_tokens import LeastTokens
from kvsim.engine.routers.prefix_aware import PrefixAware
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.engine.routers.shared_queue import SharedQueue
from tests.engine.harness import LinearCost, request_table, run
from tests.engine.test_clients import SMALL, random_clients
from tests.engine.test_reference import random_scenario

ROUTERS = [RoundRobin(), LeastTokens(), PrefixAware(), SharedQueue()]


def assert_same(requests, config, cost, **options):
    """Run both ways; return how many events each of them needed."""
    singly = run(requests, config, cost, plans_ahead=False, **options)
    ahead = run(requests, config, cost, **options)
    for name, columns in singly.tables.items():
        for column, values in columns.items():
            assert np.array_equal(values, ahead.tables[name][column]), (name, column)
    for total in ("end_ns", "steps", "retried_rows"):
        assert getattr(singly.totals, total) == getattr(ahead.totals, total)
    return singly.totals.events, ahead.totals.events


@pytest.fixture(params=[1, 3], ids=["all", "longer"])
def _least(request, monkeypatch):
    """Plan even single steps, or only what pays."""
    monkeypatch.setattr(replica, "LEAST_PLANNED_STEPS", request.param)


@pytest.mark.usefixtures("_least")
@pytest.mark.parametrize("group", range(10))
def test_one_replica(group):
    """Prefix caching, windows, priorities, pacing, preemption, both layouts, both loops."""
    saved = 0
    for seed in range(group * 12, group * 12 + 12):
        requests, config, cost, layout = random_scenario(seed)
        singly, ahead = assert_same(requests, config, cost, layout=layout)
        saved += singly - ahead
    assert saved > 100


@pytest.mark.usefixtures("_least")
@pytest.mark.parametrize("group", range(4))
def test_clients_that_wait_give_up_and_retry(group, monkeypatch):
    """Closed loops, sessions, deadlines, front ends, routers that look, runs that are cut."""
    monkeypatch.setattr(recorder, "STEPS_IN_A_CHUNK", 30)
    for seed in range(group * 12, group * 12 + 12):
        rng = np.random.default_rng(seed)
        config = replace(
            SMALL,
            enable_prefix_caching=bool(rng.integers(2)),
            async_scheduling=bool(rng.integers(2)),
            num_gpu_blocks=int(rng.choice([20, 200])),
        )
        front_end = FrontEnd(per_prompt_token_s=5e-9, request_s=3e-9, busy_s=1e-9)
        assert_same(
            random_clients(seed),
            config,
            LinearCost(7, 1, 1),
            replicas=int(rng.integers(1, 5)),
            routing=ROUTERS[rng.integers(len(ROUTERS))],
            front_end=front_end if rng.integers(2) else None,
            until_ns=int(rng.integers(1, 20_000)) if rng.integers(2) else None,
        )


@pytest.mark.parametrize(
    "seeds",
    [range(40), pytest.param(range(40, 3_000), marks=pytest.mark.prove)],
    ids=["some", "many"],
)
def test_any_clients_with_any_engine(seeds):
    """What the two tests above draw, together: who gives up may just have been preempted."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        _, config, cost, layout = random_scenario(seed)
        config = replace(config, scheduler_reserve_full_isl=True)  # else some would livelock (R34)
        requests = random_clients(seed)
        hasty = rng.integers(50, 600, len(requests)) * rng.integers(0, 2, len(requests))
        first = np.searchsorted(requests.group, requests.group)  # a group has one client
        assert_same(
            replace(requests, timeout_ns=hasty[first]),
            config,
            cost,
            layout=layout,
            replicas=int(rng.integers(1, 4)),
            routing=ROUTERS[rng.integers(len(ROUTERS))],
        )


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_steps_at_the_same_instant(async_scheduling):
    """Replicas in step with one another, and arrivals at the ends of steps."""
    config = EngineConfig(8, 256, 4096, 400, 16, async_scheduling=async_scheduling)
    rows = [(time, 16, 40, 0) for time in (*[0] * 6, 10, 10, 60, 60, 100, 250, 250) for _ in "abc"]
    for routing in ROUTERS:
        assert_same(request_table(rows), config, LinearCost(10), replicas=3, routing=routing)


def test_who_is_preempted_with_a_first_token_in_flight_may_give_up():
    """Step 4 runs from 400 to 500 and has the second prompt, which step 5 preempts at 400.

    Too few steps are quiet to plan any, so nothing may have been noted ahead.
    """
    config = EngineConfig(4, 64, 96, 5, block_size=4, async_scheduling=True)
    requests = request_table([(0, 4, 10, 10), (250, 8, 5, 5)])
    requests = replace(requests, timeout_ns=np.array([0, 200]))
    assert_same(requests, config, LinearCost(100))
    (left, late) = run(requests, config, LinearCost(100)).tables["requests"]["preemptions"]
    assert (left, late) == (1, 0)


def test_a_long_answer_is_a_handful_of_events():
    rows = [(0, 100, 50_000, 0)] * 3
    config = EngineConfig(8, 512, 60_000, 20_000, 16)
    singly, ahead = assert_same(request_table(rows), config, LinearCost(100, 1, 1), layout=Paged())
    assert singly > 50_000
    assert ahead <= 50_000 / replica.MOST_PLANNED_STEPS + 20


def test_alarms_that_were_moved_pass_no_time():
    """The clock stops at the last event for which anybody waits."""
    rows = [(0, 10, 1_000, 0), (500, 10, 2, 0)]
    trace = run(request_table(rows), SMALL, LinearCost(10))
    assert trace.totals.end_ns == trace.tables["requests"]["finish_ns"].max()
    assert isinstance(Clock().count_events(), int)
