"""Medians of replayed graphs, on a GPU that is a clock; how many copies keep operands cold."""

from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.profiling.timing import (
    MAX_COPIES,
    MAX_REPLAYS,
    MIN_CALLS,
    RUNS,
    SAMPLE_MS,
    WARMUPS,
    CpuTimer,
    CudaTimer,
    cold_copies,
)
from tests.profiling.stubs import FakeCuda


def timed(cuda: FakeCuda, *calls_us: float, replays: int = 0) -> float:
    calls = [partial(cuda.spend, us) for us in calls_us]
    return CudaTimer(SimpleNamespace(cuda=cuda), replays).median_us(calls)


@given(st.lists(st.floats(0.5, 1e5), min_size=1, max_size=40))
def test_time_is_the_mean_of_the_calls(calls_us):
    mean = sum(calls_us) / len(calls_us)
    assert timed(FakeCuda(), *calls_us) == pytest.approx(mean)


def test_slow_warm_up_and_a_minority_of_slow_runs_do_not_count():
    replays = 4
    slow = {1, 2, 5}  # of the seven samples

    def slowness(replay: int) -> float:
        if replay < WARMUPS:
            return 10.0
        return 3.0 if (replay - WARMUPS) // replays in slow else 1.0

    assert timed(FakeCuda(slowness), 12.0, replays=replays) == pytest.approx(12.0)


def test_calls_run_before_they_are_captured_and_fill_the_graph():
    cuda = FakeCuda()
    timed(cuda, 1.0, 2.0, 3.0)
    assert cuda.calls_before_capture == 3
    (graph,) = cuda.captured
    assert graph == [1.0, 2.0, 3.0] * 3  # the first multiple that has MIN_CALLS
    assert len(graph) >= MIN_CALLS


@pytest.mark.parametrize("call_us", [0.001, 1.0, 40.0, 1e6])
def test_short_graphs_are_replayed_until_a_sample_is_long(call_us):
    cuda = FakeCuda()
    timed(cuda, call_us)
    in_a_sample = (cuda.replays - WARMUPS - 1) / RUNS  # one is for finding out how many
    once_ms = call_us * MIN_CALLS / 1e3
    assert in_a_sample * once_ms >= SAMPLE_MS or in_a_sample == MAX_REPLAYS
    assert (in_a_sample - 1) * once_ms < SAMPLE_MS or in_a_sample == 1


def test_ranks_of_a_collective_replay_equally_often():
    for call_us in (1.0, 1e4):
        cuda = FakeCuda()
        timed(cuda, call_us, replays=4)
        assert cuda.replays == WARMUPS + RUNS * 4


def test_a_cpu_is_timed_by_the_clock():
    now_ns = 0

    def work(ns: int) -> None:
        nonlocal now_ns
        now_ns += ns

    calls = [partial(work, 3000), partial(work, 5000)]
    assert CpuTimer(lambda: now_ns).median_us(calls) == pytest.approx(4.0)


@given(st.integers(1, 10**11), st.integers(0, 10**9))
def test_copies_take_twice_the_cache_and_no_more_than_that(operand_bytes, cache_bytes):
    copies = cold_copies(operand_bytes, cache_bytes)
    assert 1 <= copies <= MAX_COPIES
    assert copies * operand_bytes >= 2 * cache_bytes or copies == MAX_COPIES
    assert (copies - 1) * operand_bytes < 2 * cache_bytes or copies == 1
