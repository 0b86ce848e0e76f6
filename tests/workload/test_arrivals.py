from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

import kvsim.workload.arrivals
from kvsim.errors import InputError
from kvsim.policy import policies_in
from kvsim.rng import stream
from kvsim.workload.arrivals.all_at_once import AllAtOnce
from kvsim.workload.arrivals.bursts import Bursts
from kvsim.workload.arrivals.constant import Constant
from kvsim.workload.arrivals.day_curve import DayCurve
from kvsim.workload.arrivals.gamma import Gamma
from kvsim.workload.arrivals.poisson import Poisson
from kvsim.workload.arrivals.stages import Stages
from kvsim.workload.arrivals.trace import TraceArrivals
from kvsim.workload.traces.azure import HEADER

SECOND = 10**9
PROCESSES = [
    Poisson(rate_per_s=5.0),
    Gamma(rate_per_s=5.0, burstiness=0.3),
    Gamma(rate_per_s=5.0, burstiness=4.0),
    Constant(rate_per_s=5.0),
    Bursts(base_rate_per_s=0.0, burst_rate_per_s=30.0, mean_burst_s=3.0, mean_gap_s=20.0),
    DayCurve.model_validate(
        {
            "points": [{"time_s": 20, "rate_per_s": 0}, {"time_s": 300, "rate_per_s": 9}],
            "period_s": 500.0,
            "start_s": 1290.0,
        }
    ),
    DayCurve.model_validate(
        {
            "points": [{"hour": 3, "rate_per_s": 4}, {"hour": 14, "rate_per_s": 10}],
            "burstiness": 0.5,
            "noise_cv": 0.4,
            "noise_period_s": 7.0,
        }
    ),
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
    assert kinds == [
        "all_at_once", "bursts", "closed_loop", "constant", "day_curve", "gamma", "poisson",
        "stages", "trace",
    ]  # fmt: skip


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
    many = process.arrivals(10**6, 1000 * SECOND, rng())
    assert many.horizon_ns == 1000 * SECOND
    assert many.times_ns[-1] < 1000 * SECOND
    few = process.arrivals(3, 1000 * SECOND, rng())
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
        (
            Bursts(base_rate_per_s=0, burst_rate_per_s=1e-4, mean_burst_s=1e7, mean_gap_s=1e7),
            2_000_000,
        ),
        (
            DayCurve.model_validate({"points": [{"hour": 0, "rate_per_s": 1e-4}]}),
            2_000_000,
        ),
    ],
    ids=repr,
)
def test_arrivals_that_last_longer_than_the_clock_are_refused(process, count):
    with pytest.raises(InputError, match=r"last more than 1e\+09 s"):
        process.arrivals(count, None, rng())
    longest = process.arrivals(count, 10**9 * SECOND, rng())
    assert (np.diff(longest.times_ns) >= 0).all()
    assert 0 <= longest.times_ns[0] <= longest.times_ns[-1] < 10**18


BUSY = {"points": [{"hour": 0, "rate_per_s": 1e6}]}
QUIET = {"points": [{"hour": 0, "rate_per_s": 1e-3}]}


@pytest.mark.parametrize(
    ("process", "duration_s", "complaint"),
    [
        (Constant(rate_per_s=1e6), 1000, r"1e\+09 requests .* more than the 1e\+08"),
        (DayCurve.model_validate(BUSY), 1000, r"1e\+09 requests .* more than the 1e\+08"),
        (
            DayCurve.model_validate({**QUIET, "noise_cv": 0.1, "noise_period_s": 1e-3}),
            10**5,
            r"changes 1e\+08 times within the run.*a longer noise_period_s",
        ),
        (
            DayCurve.model_validate({**QUIET, "period_s": 1e-3}),
            10**5,
            r"changes 1e\+08 times within the run.*a longer period_s",
        ),
        (
            Bursts(base_rate_per_s=0, burst_rate_per_s=1, mean_burst_s=1e-3, mean_gap_s=1e-3),
            10**5,
            r"changes 1e\+08 times within the run.*longer mean_burst_s",
        ),
    ],
)
def test_absurd_sizes_are_refused_before_they_are_drawn(process, duration_s, complaint):
    with pytest.raises(InputError, match=complaint):
        process.arrivals(None, duration_s * SECOND, rng())


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


# Stages


PLAN = [
    {"rate_per_s": 4, "duration_s": 30},
    {"rate_per_s": 0, "duration_s": 5},
    {"rate_per_s": 10, "num_requests": 77, "ramp": True, "spacing": "gamma", "burstiness": 0.2},
    {"rate_per_s": 2.5, "duration_s": 9.9, "spacing": "constant"},
]
PLAN_ENDS = [0, 30, 35, 50.4, 60.3]  # 77 requests on a ramp from 0 to 10 per second: 15.4 s
PLAN_COUNTS = [120, 0, 77, 24]


def stages(plan=PLAN, **parameters) -> Stages:
    return Stages.model_validate({"stages": plan, **parameters})


@pytest.mark.parametrize("seed", range(20))
def test_stages_send_what_a_benchmark_client_sends(seed):
    drawn = stages().arrivals(None, None, rng(seed))
    seconds = drawn.times_ns / SECOND
    assert np.histogram(seconds, PLAN_ENDS)[0].tolist() == PLAN_COUNTS
    assert drawn.horizon_ns == 60.3 * SECOND
    assert seconds[-24:] == pytest.approx(50.4 + np.arange(24) * 9.9 / 24, abs=1e-8)


@given(
    rate=st.integers(1, 3000).map(lambda cents: cents / 100),
    duration=st.integers(1, 4000).map(lambda tenths: tenths / 10),
    spacing=st.sampled_from(["constant", "poisson", "gamma"]),
)
def test_the_count_is_rate_times_duration_rounded_down(rate, duration, spacing):
    plan = [{"rate_per_s": rate, "duration_s": duration, "spacing": spacing}]
    times_ns = stages(plan).arrivals(None, None, rng()).times_ns
    assert len(times_ns) == round(rate * 100) * round(duration * 10) // 1000
    assert (times_ns < duration * SECOND).all()


@pytest.mark.parametrize("exact_count", [True, False])
@given(seed=st.integers(0, 2**32), kept=st.integers(1, 3))
def test_more_stages_begin_like_fewer(exact_count, seed, kept):
    every = stages(exact_count=exact_count).arrivals(None, None, rng(seed))
    fewer = stages(PLAN[:kept], exact_count=exact_count).arrivals(None, None, rng(seed))
    assert fewer.horizon_ns == round(PLAN_ENDS[kept] * SECOND)
    assert np.array_equal(fewer.times_ns, every.times_ns[every.times_ns < fewer.horizon_ns])


@given(seed=st.integers(0, 2**32), count=st.integers(1, 221), duration=st.integers(1, 60))
def test_count_and_duration_end_the_stages_sooner(seed, count, duration):
    every = stages().arrivals(None, None, rng(seed)).times_ns
    drawn = stages().arrivals(count, duration * SECOND, rng(seed))
    before = every[every < duration * SECOND]
    assert np.array_equal(drawn.times_ns, before[:count])
    ends_by_count = count < len(before)
    assert drawn.horizon_ns == (before[count - 1] + 1 if ends_by_count else duration * SECOND)


def test_even_stages_are_a_metronome():
    plan = [{"rate_per_s": 8, "duration_s": 5, "spacing": "constant"}]
    for exact_count in (True, False):
        times_ns = stages(plan, exact_count=exact_count).arrivals(None, None, rng()).times_ns
        assert np.array_equal(times_ns, Constant(rate_per_s=8).arrivals(40, None, rng()).times_ns)


def test_very_bursty_stages_keep_their_count():
    plan = [{"rate_per_s": 1, "num_requests": 3, "spacing": "gamma", "burstiness": 0.01}] * 500
    times_ns = stages(plan).arrivals(None, None, rng()).times_ns
    assert np.bincount(times_ns // (3 * SECOND)).tolist() == [3] * 500


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        ([], "at least 1 item"),
        ([{"rate_per_s": 1}], "either duration_s or num_requests"),
        ([{"rate_per_s": 1, "duration_s": 1, "num_requests": 1}], "either duration_s or num_req"),
        ([{"rate_per_s": 0, "num_requests": 1}], "never come"),
        ([{"rate_per_s": 0, "duration_s": 1}], "a rate above 0"),
        ([{"rate_per_s": 1, "duration_s": 1, "burstiness": 2}], "no meaning for spacing poisson"),
        ([{"rate_per_s": 1e6, "duration_s": 1000}], r"1e\+09 requests"),
        ([{"rate_per_s": 1e-4, "num_requests": 10**8}], r"last 1e\+12 s"),
    ],
)
def test_stages_that_make_no_sense_are_refused(plan, complaint):
    with pytest.raises(ValidationError, match=complaint):
        stages(plan)


def test_more_than_the_stages_hold_is_refused_with_every_problem():
    with pytest.raises(InputError) as caught:
        stages().arrivals(222, 61 * SECOND, rng())
    assert [problem.message for problem in caught.value.problems] == [
        "num_requests is 222, but the stages send 221 requests",
        "duration_s is 61, but the stages last 60.3 s",
    ]


# Curves and bursts


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"points": []}, "at least 1 item"),
        ({"points": [{"rate_per_s": 1}]}, "either hour or time_s"),
        ({"points": [{"rate_per_s": 1, "hour": 0, "time_s": 0}]}, "either hour or time_s"),
        ({"points": [{"rate_per_s": 0, "hour": 0}]}, "a rate above 0"),
        ({"points": [{"rate_per_s": 1, "hour": 24}]}, "before period_s"),
        (
            {"points": [{"rate_per_s": 1, "hour": 1}, {"rate_per_s": 1, "time_s": 3600}]},
            "must increase",
        ),
    ],
)
def test_curves_that_make_no_sense_are_refused(parameters, complaint):
    with pytest.raises(ValidationError, match=complaint):
        DayCurve.model_validate(parameters)


def test_bursts_must_stand_out():
    with pytest.raises(ValidationError, match="more than base_rate_per_s"):
        Bursts(base_rate_per_s=2, burst_rate_per_s=2, mean_burst_s=1, mean_gap_s=1)


def test_mean_rates_are_those_of_long_runs():
    curve = DayCurve.model_validate(
        {"points": [{"hour": 6, "rate_per_s": 0}, {"hour": 12, "rate_per_s": 8}], "rate_scale": 0.5}
    )
    assert curve.rate_per_s == pytest.approx(2)
    assert stages().rate_per_s == pytest.approx((120 + 77 + 24.75) / 60.3)
    bursts = Bursts(base_rate_per_s=1, burst_rate_per_s=9, mean_burst_s=10, mean_gap_s=30)
    assert bursts.rate_per_s == pytest.approx(3)


def test_noise_leaves_the_draws_of_other_gaps_alone():
    """A shift of the noise keeps the arrivals' order of gaps: in expected requests they agree."""
    plain = DayCurve.model_validate({"points": [{"hour": 0, "rate_per_s": 5}]})
    noisy = plain.model_copy(update={"noise_cv": 1e-9})
    wanted, got = (p.arrivals(2000, None, rng()).times_ns for p in (plain, noisy))
    assert np.abs(wanted - got).max() < 1000
