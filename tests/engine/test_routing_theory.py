"""Routers against queueing theory: what each queue does, mean waits, and their known order.

Replicas are single servers with exponential service, as in `test_theory.py`; arrivals are Poisson.
"""

from itertools import pairwise
from math import comb

import numpy as np
import pytest
from scipy import stats
from scipy.sparse import lil_matrix, linalg

from kvsim.engine import routers
from kvsim.engine.config import EngineConfig
from kvsim.engine.routers.least_requests import LeastRequests
from kvsim.engine.routers.power_of_two import PowerOfTwo
from kvsim.engine.routers.random import Random
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.engine.routers.shared_queue import SharedQueue
from kvsim.policy import policies_in
from kvsim.rng import stream
from kvsim.units import NS_PER_S
from tests.engine.harness import LinearCost, request_table, run
from tests.engine.oracles import lindley_waits, mean_wait_mmc
from tests.engine.test_theory import assert_interval

SERVICE_NS = 1_000  # mean; a token lasts a nanosecond
LONGEST_NS = 32 * 1024  # exceeded once in 1e14 requests
SERVER = EngineConfig(
    max_num_seqs=1,
    max_num_batched_tokens=LONGEST_NS,
    max_model_len=LONGEST_NS,
    num_gpu_blocks=34,
    block_size=1024,
)


class Seeded:
    """A policy whose router draws from a stream of this run."""

    def __init__(self, policy, seed):
        self.policy, self.seed = policy, seed

    def build(self, rng):
        return self.policy.build(stream(self.seed, "routing"))


def served(policy, load, replicas, count, seed):
    """Arrivals, services, waits (all ns) and replicas of requests that each take one step."""
    rng = stream(seed, "routing theory")
    arrivals = np.cumsum(rng.exponential(SERVICE_NS / replicas / load, count)).astype(np.int64)
    services = np.rint(rng.exponential(SERVICE_NS, count)).clip(1, LONGEST_NS - 1).astype(np.int64)
    ones = np.ones_like(arrivals)
    rows = np.stack([arrivals, services, ones, ones], axis=1).tolist()
    routing = Seeded(policy, seed)
    trace = run(request_table(rows), SERVER, LinearCost(0, 1), replicas=replicas, routing=routing)
    requests = trace.tables["requests"]
    order = requests["request"].argsort()
    waits = (requests["admitted_ns"] - requests["arrival_ns"])[order]
    return arrivals, services, waits, requests["replica"][order]


def mean_waits(policy, load, replicas, count, runs):
    """Mean waits, in services, of independent runs without their first fifth.

    The same seed gives all policies the same requests.
    """
    return np.array(
        [
            served(policy, load, replicas, count, seed)[2][count // 5 :].mean() / SERVICE_NS
            for seed in range(runs)
        ]
    )


def mean_wait_of_choices(servers, choices, load, longest):
    """Mean wait, in services, if each arrival joins the shortest of `choices` queues drawn.

    The stationary distribution of the Markov chain of queue lengths, in ascending order, cut off
    at `longest`: 1 choice is M/M/1, as many as servers is joining the shortest of all queues.
    """
    states = {}

    def walk(lengths):
        if len(lengths) == servers:
            states[lengths] = len(states)
            return
        for length in range(lengths[-1] if lengths else 0, longest + 1):
            walk((*lengths, length))

    walk(())
    rates = lil_matrix((len(states), len(states)))

    def move(start, place, by, rate):
        end = list(start)
        end[place] += by
        there = states.get(tuple(sorted(end)))
        if there is not None and end[place] >= 0:
            rates[there, states[start]] += rate
            rates[states[start], states[start]] -= rate

    for lengths in states:
        for rank in range(servers):
            # The shortest of the drawn has this rank: the others are drawn among the longer ones.
            chance = comb(servers - 1 - rank, choices - 1) / comb(servers, choices)
            move(lengths, rank, 1, servers * load * chance)
            move(lengths, rank, -1, 1.0)
    rates[0, :] = 1.0  # the probabilities sum to one
    right = np.zeros(len(states))
    right[0] = 1.0
    probabilities = linalg.spsolve(rates.tocsc(), right)
    present = np.array([sum(lengths) for lengths in states]) @ probabilities
    return present / (servers * load) - 1


def mean_wait_of_many(load):
    """Mean wait, in services, of the better of two queues among infinitely many.

    Mitzenmacher, "The power of two choices in randomized load balancing" (2001): the mean time in
    the system is the sum over i >= 1 of load^(2^i - 2).
    """
    return sum(load ** (2**i - 2) for i in range(2, 12))


def random_wait(load):
    """Poisson arrivals that are split at random stay Poisson: M/M/1."""
    return mean_wait_mmc(1, load, 1.0)


ROUTERS = [kind() for kind in policies_in(routers) if kind is not SharedQueue]


@pytest.mark.parametrize("policy", ROUTERS, ids=lambda policy: policy.kind)
def test_whatever_is_chosen_each_replica_is_a_lindley_recursion(policy):
    arrivals, services, waits, replica = served(policy, 0.8, 4, 800, seed=0)
    for index in range(4):
        mine = replica == index
        assert waits[mine].tolist() == lindley_waits(arrivals[mine], services[mine])


def test_the_markov_chain_gives_what_formulas_give():
    for servers, longest in ((1, 60), (2, 50)):
        one = mean_wait_of_choices(servers, 1, 0.7, longest)
        assert one == pytest.approx(random_wait(0.7), rel=1e-4)
    common_queue = mean_wait_mmc(3, 3 * 0.7, 1.0)
    shortest, two = (mean_wait_of_choices(3, choices, 0.7, 16) for choices in (3, 2))
    assert common_queue < shortest < two < random_wait(0.7)


@pytest.mark.parametrize(
    ("policy", "theory"),
    [
        pytest.param(Random(), lambda: random_wait(0.7), id="random"),
        pytest.param(PowerOfTwo(), lambda: mean_wait_of_choices(3, 2, 0.7, 20), id="two"),
        pytest.param(LeastRequests(), lambda: mean_wait_of_choices(3, 3, 0.7, 16), id="shortest"),
        pytest.param(SharedQueue(), lambda: mean_wait_mmc(3, 3 * 0.7, 1.0), id="common"),
    ],
)
@pytest.mark.parametrize(
    ("count", "runs", "widest"),
    [
        pytest.param(2_000, 12, 0.35, id="short"),
        pytest.param(20_000, 20, 0.08, id="long", marks=pytest.mark.prove),
    ],
)
def test_three_replicas_wait_as_the_theory_says(policy, theory, count, runs, widest):
    assert_interval(mean_waits(policy, 0.7, 3, count, runs), theory(), widest)


SIZES = [
    pytest.param(1_200, 8, id="short"),
    pytest.param(20_000, 12, id="long", marks=pytest.mark.prove),
]


@pytest.mark.parametrize(("count", "runs"), SIZES)
def test_the_known_order_of_waiting_times(count, runs):
    """Eight replicas at load 0.9; paired differences, whose 99 % intervals lie above zero."""
    policies = [Random(), RoundRobin(), PowerOfTwo(), LeastRequests(), SharedQueue()]
    waits = [mean_waits(policy, 0.9, 8, count, runs) for policy in policies]
    for worse, better in pairwise(waits):
        assert_longer(worse, better)


def assert_longer(worse, better):
    """The 99 % t-interval of the paired differences lies above zero."""
    gain = worse - better
    assert gain.mean() - stats.t.ppf(0.995, len(gain) - 1) * stats.sem(gain) > 0, gain


@pytest.mark.parametrize(
    ("replicas", "count", "runs", "widest"),
    [
        pytest.param(32, 5_000, 6, 0.2, id="short"),
        pytest.param(64, 100_000, 8, 0.04, id="long", marks=pytest.mark.prove),
    ],
)
def test_two_choices_of_many_approach_the_mean_field(replicas, count, runs, widest):
    """Finite fleets wait longer, by about 1 / replicas: no more than scaled from exactly three."""
    limit = mean_wait_of_many(0.7)
    excess = (mean_wait_of_choices(3, 2, 0.7, 20) - limit) * 3 / replicas
    means = mean_waits(PowerOfTwo(), 0.7, replicas, count, runs)
    half = stats.t.ppf(0.995, runs - 1) * stats.sem(means)
    assert half <= widest * limit
    assert limit - half <= means.mean() <= limit + excess + half


@pytest.mark.parametrize(("count", "runs"), SIZES)
def test_old_loads_make_requests_herd(count, runs):
    """With loads ten services old, joining the shortest queue is worse than tossing coins.

    All that arrive meanwhile go to the same replica; two choices spread them (Mitzenmacher, "How
    useful is old information?", 2000).
    """
    old_s = 10 * SERVICE_NS / NS_PER_S
    policies = {
        "herd": LeastRequests(view_delay_s=old_s),
        "coins": Random(),
        "old": PowerOfTwo(view_delay_s=old_s),
        "all": LeastRequests(),
    }
    waits = {name: mean_waits(policy, 0.7, 8, count, runs) for name, policy in policies.items()}
    for worse, better in (("herd", "coins"), ("herd", "old"), ("coins", "all")):
        assert_longer(waits[worse], waits[better])
