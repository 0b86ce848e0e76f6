from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import kvsim.workload.arrivals
from kvsim.errors import InputError
from kvsim.policy import policies_in
from kvsim.rng import stream
from kvsim.workload.arrivals.all_at_once import AllAtOnce
from kvsim.workload.arrivals.constant import Constant
from kvsim.workload.arrivals.gamma import Gamma
from kvsim.workload.arrivals.poisson import Poisson
from kvsim.workload.arrivals.trace import TraceArrivals
from kvsim.workload.traces.azure import HEADER

SECOND = 10**9
PROCESSES = [
    Poisson(rate_per_s=5.0),
    Gamma(rate_per_s=5.0, burstiness=0.3),
    Gamma(rate_per_s=5.0, burstiness=4.0),
    Constant(rate_per_s=5.0),
]


def rng(seed=0):
    return stream(seed, "arrivals")


def trace(folder: Path, seconds, **parameters) -> TraceArrivals:
    rows = []
    for i, tick in enumerate(round(second * 10**7) for second in seconds):
        minute, second, fraction = tick // 10**7 // 60, tick // 10**7 % 60, tick % 10**7
        rows.append(f"2023-11-16 18:{minute:02}:{second:02}.{fraction:07},{i + 1},{i + 9}")
    (folder / "t.csv").write_text("\r\n".join([HEADER, *rows]))
    data = {"kind": "trace", "file": "t.csv", **parameters}
    return TraceArrivals.model_validate(data, context={"base_dir": folder})


def test_these_are_all_the_processes():
    kinds = [policy.model_fields["kind"].default for policy in policies_in(kvsim.workload.arrivals)]
    assert kinds == ["all_at_once", "constant", "gamma", "poisson", "trace"]


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 9000))
def test_a_count_gives_so_many_sorted_arrivals(process, seed, count):
    drawn = process.arrivals(count, None, rng(seed))
    assert len(drawn.times_ns) == count
    assert drawn.times_ns.dtype == np.int64
    assert drawn.times_ns[0] >= 0
    assert (np.diff(drawn.times_ns) >= 0).all()
    assert drawn.horizon_ns == drawn.times_ns[-1] + 1


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
@given(seed=st.integers(0, 2**32), shorter=st.integers(1, 1500), longer=st.integers(1, 1500))
def test_a_longer_run_begins_like_a_shorter_one(process, seed, shorter, longer):
    shorter, longer = sorted([shorter, longer])
    short = process.arrivals(None, shorter * SECOND, rng(seed))
    long = process.arrivals(None, longer * SECOND, rng(seed))
    counted = process.arrivals(len(long.times_ns) + 1, None, rng(seed))
    assert short.horizon_ns == shorter * SECOND
    assert np.array_equal(short.times_ns, long.times_ns[long.times_ns < short.horizon_ns])
    assert np.array_equal(long.times_ns, counted.times_ns[:-1])
    assert counted.times_ns[-1] >= long.horizon_ns


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_with_count_and_duration_whichever_ends_first(process):
    many = process.arrivals(10**6, 10 * SECOND, rng())
    assert many.horizon_ns == 10 * SECOND
    assert many.times_ns[-1] < 10 * SECOND
    few = process.arrivals(3, 10 * SECOND, rng())
    assert len(few.times_ns) == 3
    assert few.horizon_ns == few.times_ns[-1] + 1


@pytest.mark.parametrize("process", [*PROCESSES, AllAtOnce()], ids=repr)
def test_endless_arrivals_are_refused(process):
    with pytest.raises(InputError, match="num_requests"):
        process.arrivals(None, None, rng())


@pytest.mark.parametrize(
    ("process", "count"),
    [
        (Poisson(rate_per_s=1e-4), 2_000_000),
        (Gamma(rate_per_s=1e-4, burstiness=0.01), 2_000_000),
        (Constant(rate_per_s=1e-4), 10**8),
    ],
    ids=repr,
)
def test_arrivals_that_last_longer_than_the_clock_are_refused(process, count):
    with pytest.raises(InputError, match=r"last more than 1e\+09 s"):
        process.arrivals(count, None, rng())
    longest = process.arrivals(count, 10**9 * SECOND, rng())
    assert (np.diff(longest.times_ns) >= 0).all()
    assert 0 <= longest.times_ns[0] <= longest.times_ns[-1] < 10**18


def test_a_trace_slowed_beyond_the_clock_is_refused(tmp_path):
    process = trace(tmp_path, [0, 3000], rate_scale=1e-6)
    with pytest.raises(InputError, match="last more than"):
        process.arrivals(None, None, rng())


@pytest.mark.parametrize("rate", [0.5, 40.0])
@pytest.mark.parametrize("burstiness", [None, 0.25, 1.0, 9.0])
def test_gaps_follow_their_law_on_twenty_seeds(rate, burstiness):
    """Kolmogorov-Smirnov p-values of 20 seeds are uniform: no pattern, and none tiny."""
    if burstiness is None:
        process, law = Poisson(rate_per_s=rate), stats.expon(scale=1 / rate)
    else:
        process = Gamma(rate_per_s=rate, burstiness=burstiness)
        law = stats.gamma(burstiness, scale=1 / (rate * burstiness))
    p_values = []
    for seed in range(20):
        times_ns = process.arrivals(4000, None, rng(seed)).times_ns
        gaps_s = np.diff(times_ns, prepend=0) / SECOND
        p_values.append(stats.kstest(gaps_s, law.cdf).pvalue)
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
    assert min(p_values) > 1e-5


@given(rate=st.floats(0.01, 1e4), count=st.integers(1, 500))
def test_constant_arrivals_are_a_metronome(rate, count):
    times = Constant(rate_per_s=rate).arrivals(count, None, rng()).times_ns
    expected = np.arange(count) / rate * SECOND
    assert np.abs(times - expected).max() <= 0.5 + expected.max() * 1e-15
    assert times[0] == 0


def test_a_batch_arrives_at_once_and_has_no_horizon():
    drawn = AllAtOnce().arrivals(7, None, rng())
    assert drawn.times_ns.tolist() == [0] * 7
    assert drawn.horizon_ns == 0


def test_a_trace_replays_times_and_lengths(tmp_path):
    drawn = trace(tmp_path, [0, 0.5, 2.25, 2.25]).arrivals(None, None, rng())
    assert drawn.times_ns.tolist() == [0, SECOND // 2, 9 * SECOND // 4, 9 * SECOND // 4]
    assert drawn.horizon_ns == 9 * SECOND // 4 + 1
    assert [drawn.recorded.prompt_tokens.tolist(), drawn.recorded.output_tokens.tolist()] == [
        [1, 2, 3, 4],
        [9, 10, 11, 12],
    ]


def test_a_cut_starts_the_clock_and_lasts_to_its_end(tmp_path):
    cut = trace(tmp_path, [0, 1, 2, 3, 4, 5], start_s=1.5, end_s=4.0, rate_scale=2.0)
    drawn = cut.arrivals(None, None, rng())
    assert drawn.times_ns.tolist() == [SECOND // 4, 3 * SECOND // 4]
    assert drawn.recorded.prompt_tokens.tolist() == [3, 4]
    assert drawn.horizon_ns == 5 * SECOND // 4


@given(
    ticks=st.lists(st.integers(0, 3 * 10**9), min_size=2, max_size=40).map(sorted),
    scale=st.sampled_from([0.5, 2.0, 4.0]),
)
def test_scaling_by_powers_of_two_is_exact(tmp_path_factory, ticks, scale):
    folder = tmp_path_factory.mktemp("t")
    seconds = [tick / 10**7 for tick in ticks]
    plain = trace(folder, seconds).arrivals(None, None, rng()).times_ns
    scaled = trace(folder, seconds, rate_scale=scale).arrivals(None, None, rng())
    assert (scaled.times_ns * scale == plain).all()
    assert scaled.horizon_ns > scaled.times_ns[-1]


def test_count_and_duration_cut_a_trace(tmp_path):
    process = trace(tmp_path, [0, 1, 2, 3, 4])
    first = process.arrivals(2, None, rng())
    assert first.times_ns.tolist() == [0, SECOND]
    assert first.horizon_ns == SECOND + 1
    early = process.arrivals(None, 3 * SECOND, rng())
    assert early.times_ns.tolist() == [0, SECOND, 2 * SECOND]
    assert early.horizon_ns == 3 * SECOND
    assert len(early.recorded) == 3


@pytest.mark.parametrize(
    ("parameters", "count", "duration_s", "complaint"),
    [
        ({}, 6, None, "holds 5 requests"),
        ({"rate_scale": 2.0}, None, 3, "lasts 2 s"),
        ({"end_s": 9.0}, None, None, "ends after 4 s"),
        ({"start_s": 4.5}, None, None, "no request"),
        ({"start_s": 1.2, "end_s": 1.9}, None, None, "no request"),
    ],
)
def test_asking_a_trace_for_more_than_it_holds_is_refused(
    tmp_path, parameters, count, duration_s, complaint
):
    process = trace(tmp_path, [0, 1, 2, 3, 4], **parameters)
    with pytest.raises(InputError, match=complaint):
        process.arrivals(count, duration_s and duration_s * SECOND, rng())
