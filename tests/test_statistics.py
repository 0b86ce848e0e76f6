"""Intervals, warm-up and effective counts, against their definitions and against laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvsim.rng import stream
from kvsim.statistics import (
    batch_interval,
    effective_count,
    mean_interval,
    t_quantile,
    warm_up_of,
)

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50)


@given(VALUES, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_is_scipys(values, confidence):
    found = mean_interval(values, confidence)
    spread = stats.sem(values)
    low, high = (
        (np.mean(values), np.mean(values))
        if spread == 0
        else stats.t.interval(confidence, len(values) - 1, np.mean(values), spread)
    )
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-6)
    assert found.half_width == pytest.approx((high - low) / 2, rel=1e-6, abs=1e-6)
    assert found.count == len(values)


def test_one_value_says_nothing_of_the_bounds():
    found = mean_interval([3.0])
    assert (found.mean, found.low, found.high, found.half_width) == (3.0, None, None, None)


@pytest.mark.parametrize("of", [mean_interval, batch_interval])
def test_no_value_is_refused(of):
    with pytest.raises(ValueError, match="no values"):
        of([])


def test_intervals_hold_the_mean_as_often_as_they_say():
    rng = stream(0, "coverage")
    held = [
        found.low <= 5 <= found.high
        for found in (mean_interval(rng.normal(5, 2, 6), 0.9) for _ in range(2_000))
    ]
    assert np.mean(held) == pytest.approx(0.9, abs=0.025)


@pytest.mark.parametrize("degrees", [1, 2, 9, 63, 1e6])
def test_the_quantile_is_students(degrees):
    assert t_quantile(0.95, degrees) == pytest.approx(stats.t.ppf(0.975, degrees))


def mser_5(series):
    """The rule as it is written down, without sums kept from one cut to the next."""
    means = [np.mean(series[at : at + 5]) for at in range(0, len(series) - len(series) % 5, 5)]
    cuts = range(len(means) // 2 + 1)
    return 5 * min(cuts, key=lambda cut: np.var(means[cut:]) / len(means[cut:]))


@pytest.mark.parametrize("seed", range(20))
def test_warm_up_is_mser_5(seed):
    rng = stream(seed, "warm-up")
    size = int(rng.integers(10, 400))
    series = rng.normal(0, 1, size) + 5 * np.exp(-np.arange(size) / rng.uniform(1, 100))
    assert warm_up_of(series) == mser_5(series)


def test_warm_up_ends_where_a_ramp_ends():
    rng = stream(1, "ramp")
    series = np.minimum(np.arange(1_000) / 200, 1) * 50 + rng.normal(0, 1, 1_000)
    assert 180 <= warm_up_of(series) <= 240


@pytest.mark.parametrize("series", [[], [1.0] * 9, [2.0] * 100])
def test_nothing_is_cut_where_nothing_is_known_or_changes(series):
    assert warm_up_of(series) == 0


def test_at_most_half_is_warm_up():
    assert warm_up_of(np.arange(1_000.0)) == 500


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_the_effective_count_is_that_of_an_autoregression(correlation):
    # Of x[i] = a x[i-1] + noise the variance of the mean is (1 + a) / (1 - a) times that of
    # independent values.
    counts = []
    for seed in range(20):
        noise = stream(seed, "ar").normal(0, 1, 20_000)
        series = np.zeros_like(noise)
        for i in range(1, len(noise)):
            series[i] = correlation * series[i - 1] + noise[i]
        counts.append(effective_count(series))
    expected = 20_000 * (1 - correlation) / (1 + correlation)
    assert np.mean(counts) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("series", [[], [1.0], [4.0] * 50, [1.0, 2.0, 3.0]])
def test_few_or_equal_observations_count_in_full(series):
    assert effective_count(series) == len(series)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=300))
def test_the_effective_count_is_between_one_and_all(series):
    assert 1 <= effective_count(series) <= len(series)


def test_batches_are_of_equal_length_and_leave_out_the_first():
    found = batch_interval(np.arange(103.0), batches=10)
    means = [np.mean(np.arange(3.0 + 10 * i, 13.0 + 10 * i)) for i in range(10)]
    assert found == mean_interval(means)


def test_batches_hold_the_mean_of_a_correlated_series():
    held = 0
    for seed in range(100):
        noise = stream(seed, "batches").normal(0, 1, 4_000)
        series = np.convolve(noise, np.ones(20) / 20, mode="valid")
        found = batch_interval(series)
        held += found.low <= 0 <= found.high
    assert held >= 88
