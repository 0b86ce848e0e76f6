"""Intervals against what is known of the series that they are taken of."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from kvsim.metrics.catalog import format_range
from kvsim.metrics.uncertainty import across, interval_of, share_interval
from kvsim.statistics import percentile_interval, t_quantile

SEEDS = 400
# An interval of 95 % that holds the truth in p of the cases is seen to do so in 400 of them within
# 3.3 standard deviations: 91.4 % to 98.6 %. Batches of a correlated series are not quite apart.
LEAST, LEAST_CORRELATED, MOST = 0.914, 0.89, 0.9975


def correlated(seed: int, count: int, memory: float) -> np.ndarray:
    """A stationary series of standard normal values, each like the one before."""
    noise = np.random.default_rng(seed).standard_normal(count)
    series = np.empty(count)
    value = 0.0
    for place, step in enumerate(noise):
        value = step if place == 0 else memory * value + math.sqrt(1 - memory**2) * step
        series[place] = value
    return series


@pytest.mark.parametrize(("memory", "count"), [(0.0, 1000), (0.8, 4000)])
@pytest.mark.parametrize("statistic", ["mean", "p50", "p90", "p99"])
def test_intervals_hold_the_truth_in_95_of_100_cases(memory, count, statistic):
    truth = 0.0 if statistic == "mean" else norm.ppf(float(statistic[1:]) / 100)
    held = 0
    for seed in range(SEEDS):
        series = 50 + correlated(seed, count, memory)
        ascending = np.sort(series)
        value = (
            series.mean() if statistic == "mean" else np.percentile(series, float(statistic[1:]))
        )
        found = interval_of(statistic, float(value), series, ascending)
        low = -math.inf if found.low is None else found.low
        high = math.inf if found.high is None else found.high
        assert low <= found.mean <= high
        held += low <= 50 + truth <= high
    assert (LEAST_CORRELATED if memory else LEAST) <= held / SEEDS <= MOST


def test_correlated_requests_count_for_fewer():
    """n (1 − memory) / (1 + memory) independent ones tell the mean as well: a ninth of them."""
    found = [interval_of("mean", 0.0, s, np.sort(s)).count for s in map(memory_of_nine, range(40))]
    # The mean of one over a variance of 20 batches is 19 / 17 of one over the true one.
    spread = 3.5 * np.std(found) / len(found) ** 0.5
    assert np.mean(found) == pytest.approx(4000 / 9 * 19 / 17, abs=spread)


def memory_of_nine(seed: int) -> np.ndarray:
    return correlated(seed, 4000, 0.8)


def test_percentiles_are_numpys_and_bounds_are_values_of_the_series():
    series = np.random.default_rng(5).exponential(size=5000)
    for percent in (1, 12.5, 50, 99):
        found = percentile_interval(series, percent)
        assert found.mean == pytest.approx(np.percentile(series, percent), rel=1e-12)
        assert series.min() <= found.low < found.mean < found.high <= series.max()
        assert found == percentile_interval(series, percent, np.sort(series))


def test_an_end_beyond_all_values_is_open():
    series = np.random.default_rng(1).random(200)
    found = percentile_interval(series, 99)
    assert found.high is None
    assert found.low is not None
    assert percentile_interval(series, 1).low is None
    assert percentile_interval(np.ones(200), 99).high == 1.0


@pytest.mark.parametrize("statistic", ["mean", "p50"])
def test_few_requests_tell_nothing(statistic):
    series = np.arange(19.0)
    assert interval_of(statistic, 9.0, series, series) is None
    assert interval_of(statistic, None, series[:0], series[:0]) is None
    longer = np.arange(20.0)
    assert interval_of(statistic, 9.5, longer, longer) is not None
    assert interval_of("max", 19.0, longer, longer) is None


def test_times_and_shares_stay_within_what_can_be():
    rare = np.zeros(1000, dtype=bool)
    rare[500:503] = True
    assert share_interval(rare).low == 0.0
    assert share_interval(~rare).high == 1.0
    assert share_interval(rare[:3]) is None
    assert (share_interval(rare[:400]).low, share_interval(rare[:400]).high) == (0.0, 0.0)


def test_replications_have_students_interval():
    found = across([1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(7 / 3)
    assert found.low == 0.0  # 2.33 ± 3.79
    assert across([1.0, 2.0, 4.0], signed=True).low == pytest.approx(7 / 3 - 3.794, abs=1e-3)
    assert across([1.0, None]) is across([1.0]) is None
    assert across([-1.0, 2.0]).low < -1.0


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.706205), (2, 4.302653), (19, 2.093024), (1000, 1.962339)]
)
def test_students_t_is_that_of_tables(degrees, expected):
    assert t_quantile(0.95, degrees) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "low", "high", "shown"),
    [
        ("ttft_p99_s", 0.31, 0.351, "310 to 351 ms"),
        ("ttft_p99_s", 0.31, 1.2, "310 ms to 1.2 s"),
        ("ttft_p99_s", 0.31, None, "310 ms or more"),
        ("ttft_p99_s", None, 0.31, "at most 310 ms"),
        ("ttft_p99_s", None, None, ""),
        ("ttft_p99_s", 0.31, 0.31, "310 ms"),
        ("failed_fraction", 0.0, 0.003, "0 to 0.3 %"),
        ("requests_per_s", 8.5, 9.0, "8.5 to 9 requests/s"),
        ("preemptions_total", 8.5, 9.0, "8.5 to 9"),
        ("usd_per_hour", 1.0, 2.0, "$1.00/h to $2.00/h"),
    ],
)
def test_ranges_name_their_unit_once(name, low, high, shown):
    assert format_range(name, low, high) == shown
