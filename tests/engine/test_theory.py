"""The simulator against queueing theory: exact recursions first, then formulas with intervals.

A request of one output token is one step that lasts as long as its prompt is; with a batch of one
a replica is a single server.
"""

import numpy as np
import pytest
from scipy import stats

from kvsim.engine.config import EngineConfig
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.engine.routers.shared_queue import SharedQueue
from kvsim.rng import stream
from tests.engine.harness import LinearCost, request_table, run
from tests.engine.oracles import (
    kiefer_wolfowitz_waits,
    lindley_waits,
    mean_wait_mg1,
    mean_wait_mmc,
)

MEAN_TOKENS = 10_000
LONGEST_TOKENS = 2_000_000
SERVER = EngineConfig(
    max_num_seqs=1,
    max_num_batched_tokens=LONGEST_TOKENS,
    max_model_len=LONGEST_TOKENS,
    num_gpu_blocks=2 * LONGEST_TOKENS // 1024 + 3,
    block_size=1024,
)
ONE_NS_A_TOKEN = LinearCost(fixed_ns=0, token_ns=1)


def waits_of(arrivals, services, replicas=1, routing=None):
    """Waiting times by arrival, in ns, of requests that each take one step."""
    ones = np.ones_like(arrivals)
    rows = np.stack([arrivals, services, ones, ones], axis=1)
    table = request_table([tuple(map(int, row)) for row in rows])
    trace = run(table, SERVER, ONE_NS_A_TOKEN, replicas=replicas, routing=routing)
    requests = trace.tables["requests"]
    order = requests["request"].argsort()
    assert (requests["finish_ns"] - requests["admitted_ns"])[order].tolist() == services.tolist()
    return (requests["admitted_ns"] - requests["arrival_ns"])[order]


def drawn(name, seed, count, mean_gap, services=None):
    rng = stream(seed, name)
    arrivals = np.cumsum(rng.exponential(mean_gap, count)).astype(np.int64)
    drawn_services = rng.exponential(MEAN_TOKENS, count) if services is None else services(rng)
    return arrivals, np.clip(np.rint(drawn_services), 1, LONGEST_TOKENS - 1).astype(np.int64)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mean_gap", [1_000, 11_000, 40_000])
def test_batch_of_one_is_the_lindley_recursion(seed, mean_gap):
    arrivals, services = drawn("lindley", seed, 1500, mean_gap)
    arrivals[100:110] = arrivals[100]  # simultaneous arrivals keep their order
    assert waits_of(arrivals, services).tolist() == lindley_waits(arrivals, services)


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_shared_queue_is_the_kiefer_wolfowitz_recursion(seed, servers):
    arrivals, services = drawn("kiefer", seed, 1500, 11_000 / servers)
    arrivals[50:55] = arrivals[50]
    waits = waits_of(arrivals, services, servers, SharedQueue())
    assert waits.tolist() == kiefer_wolfowitz_waits(arrivals, services, servers)


def test_round_robin_is_that_many_lindley_recursions():
    arrivals, services = drawn("round robin", 0, 1500, 4_000)
    waits = waits_of(arrivals, services, 3, RoundRobin())
    for replica in range(3):
        mine = slice(replica, None, 3)
        assert waits[mine].tolist() == lindley_waits(arrivals[mine], services[mine])


def assert_interval(samples, expected, widest=0.08):
    """The 99 % t-interval of independent replications holds the theory, and is narrow."""
    mean = np.mean(samples)
    half = stats.t.ppf(0.995, len(samples) - 1) * stats.sem(samples)
    assert abs(mean - expected) <= half, (mean, half, expected)
    assert half <= widest * expected, (mean, half, expected)


def replications(mean_gap, count, runs, services=None, replicas=1, routing=None):
    """Mean waits of independent runs, each without its first fifth."""
    means = []
    for seed in range(runs):
        arrivals, drawn_services = drawn("theory", seed, count, mean_gap, services)
        waits = waits_of(arrivals, drawn_services, replicas, routing)
        means.append(waits[count // 5 :].mean())
    return means


SIZES = [
    pytest.param(6_000, 16, 0.25, id="short"),
    pytest.param(100_000, 24, 0.02, id="long", marks=pytest.mark.prove),
]


@pytest.mark.parametrize(("count", "runs", "widest"), SIZES)
def test_mm1(count, runs, widest):
    gap = MEAN_TOKENS / 0.6
    means = replications(gap, count, runs)
    assert_interval(means, mean_wait_mmc(1, 1 / gap, 1 / MEAN_TOKENS), widest)


@pytest.mark.parametrize(
    ("count", "runs", "widest"),
    [
        pytest.param(6_000, 16, 0.25, id="short"),
        pytest.param(100_000, 40, 0.02, id="long", marks=pytest.mark.prove),
    ],
)
def test_mmc(count, runs, widest):
    gap = MEAN_TOKENS / 3 / 0.7
    means = replications(gap, count, runs, replicas=3, routing=SharedQueue())
    assert_interval(means, mean_wait_mmc(3, 1 / gap, 1 / MEAN_TOKENS), widest)


@pytest.mark.parametrize(("count", "runs", "widest"), SIZES)
def test_mg1(count, runs, widest):
    def two_sizes(rng):
        return np.where(rng.random(count) < 0.9, 5_000.0, 55_000.0)

    gap = MEAN_TOKENS / 0.6
    means = replications(gap, count, runs, two_sizes)
    second_moment = 0.9 * 5_000**2 + 0.1 * 55_000**2
    assert_interval(means, mean_wait_mg1(1 / gap, MEAN_TOKENS, second_moment), widest)


SHARED = [
    pytest.param(1_500, 12, 0.25, id="short"),
    pytest.param(20_000, 20, 0.03, id="long", marks=pytest.mark.prove),
]
OUTPUTS = {
    "constant": lambda rng, count: np.full(count, 60),
    "two sizes": lambda rng, count: np.where(rng.random(count) < 0.8, 25, 200),
}


@pytest.mark.parametrize("law", OUTPUTS)
@pytest.mark.parametrize(("count", "runs", "widest"), SHARED)
def test_steps_proportional_to_the_batch_are_processor_sharing(law, count, runs, widest):
    # Each step gives one token to each sequence and lasts a microsecond for each: a sequence of
    # n tokens gets 1 / (number present) of the server. Mean sojourn: service / (1 - load).
    unit_ns, mean_tokens, load = 1_000, 60, 0.6
    config = EngineConfig(64, 64, 1_024, 64 * 64 + 1)
    means = []
    for seed in range(runs):
        rng = stream(seed, "sharing")
        gaps_ns = rng.exponential(mean_tokens * unit_ns / load, count)
        arrivals = np.cumsum(gaps_ns).astype(np.int64)
        outputs = OUTPUTS[law](rng, count)
        table = request_table(
            [(int(a), 1, int(o), int(o)) for a, o in zip(arrivals, outputs, strict=True)]
        )
        rows = run(table, config, LinearCost(0, unit_ns)).tables["requests"]
        sojourns = rows["finish_ns"] - rows["arrival_ns"]
        means.append(sojourns[rows["request"] >= count // 5].mean())
    assert_interval(means, mean_tokens * unit_ns / (1 - load), widest)


def test_an_idle_replica_takes_over_what_another_preempts():
    """Both requests are admitted by the first replica, whose pool can't hold their answers."""
    config = EngineConfig(8, 64, 160, 12, block_size=16)
    rows = request_table([(0, 60, 90, 0), (0, 60, 90, 0)])
    trace = run(rows, config, LinearCost(1, 1), replicas=2, routing=SharedQueue())
    requests = trace.tables["requests"]
    assert requests["preemptions"].tolist() == [0, 1] or requests["preemptions"].sum() == 1
    assert set(requests["replica"].tolist()) == {0, 1}
