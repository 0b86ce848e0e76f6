import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from kvsim.errors import InputError
from kvsim.rng import stream
from kvsim.workload.arrivals.closed_loop import ClosedLoop

SECOND = 10**9


def rng(seed=0):
    return stream(seed, "arrivals")


def test_by_default_users_start_together_and_do_not_think():
    drawn = ClosedLoop(users=4).arrivals(6, None, rng())
    assert drawn.users.starts_ns.tolist() == [0] * 4
    assert drawn.users.think_ns.tolist() == [0] * 6
    assert drawn.times_ns.tolist() == [0] * 6
    assert drawn.horizon_ns == 0


@given(users=st.integers(1, 500), ramp_up_s=st.integers(0, 10_000))
def test_users_start_evenly_over_the_ramp(users, ramp_up_s):
    starts = ClosedLoop(users=users, ramp_up_s=ramp_up_s).arrivals(1, None, rng()).users.starts_ns
    assert starts.dtype == np.int64
    assert len(starts) == users
    wanted = [user * ramp_up_s * SECOND / users for user in range(users)]
    assert np.abs(starts - wanted).max() <= 1


def test_the_duration_is_the_horizon():
    drawn = ClosedLoop(users=2).arrivals(9, 30 * SECOND, rng())
    assert drawn.horizon_ns == 30 * SECOND
    assert len(drawn.times_ns) == 9


@pytest.mark.parametrize("duration_ns", [None, SECOND])
def test_the_number_of_sessions_must_be_said(duration_ns):
    with pytest.raises(InputError, match="num_requests"):
        ClosedLoop(users=2).arrivals(None, duration_ns, rng())


@pytest.mark.parametrize(("kind", "cv"), [("lognormal", None), ("exponential", 1.0)])
def test_a_variation_is_given_for_lognormal_pauses_and_no_others(kind, cv):
    with pytest.raises(ValidationError, match="think_cv"):
        ClosedLoop(users=2, think_kind=kind, think_cv=cv)


@pytest.mark.parametrize("kind", ["constant", "exponential", "lognormal"])
@given(seed=st.integers(0, 2**32), shorter=st.integers(1, 300), more=st.integers(0, 300))
def test_a_longer_run_begins_with_the_pauses_of_a_shorter_one(kind, seed, shorter, more):
    cv = 1.0 if kind == "lognormal" else None
    process = ClosedLoop(users=2, think_kind=kind, think_mean_s=2.0, think_cv=cv)
    short = process.arrivals(shorter, None, rng(seed)).users.think_ns
    long = process.arrivals(shorter + more, None, rng(seed)).users.think_ns
    assert len(long) == shorter + more
    assert np.array_equal(short, long[:shorter])


@pytest.mark.parametrize(
    ("parameters", "law"),
    [
        ({"think_kind": "exponential"}, stats.expon(scale=4)),
        (
            {"think_kind": "lognormal", "think_cv": 2.0},
            stats.lognorm(np.sqrt(np.log(5)), scale=4 / np.sqrt(5)),
        ),
    ],
)
def test_pauses_follow_their_law_on_twenty_seeds(parameters, law):
    assert law.mean() == pytest.approx(4)
    p_values = []
    for seed in range(20):
        drawn = ClosedLoop(users=1, think_mean_s=4.0, **parameters).arrivals(4000, None, rng(seed))
        p_values.append(stats.kstest(drawn.users.think_ns / SECOND, law.cdf).pvalue)
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
    assert min(p_values) > 1e-5


def test_extreme_pauses_stay_on_the_clock():
    process = ClosedLoop(users=1, think_kind="lognormal", think_mean_s=1e9, think_cv=100.0)
    think_ns = process.arrivals(100_000, None, rng()).users.think_ns
    assert think_ns.min() >= 0
    assert think_ns.max() == 10**18
