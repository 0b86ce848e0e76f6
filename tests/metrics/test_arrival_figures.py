import numpy as np
import pytest
from scipy import stats

from kvsim.metrics.arrivals import (
    arrival_figures,
    counts,
    dispersion,
    gap_cv,
    peak_count,
    poisson_range,
    tick,
)
from kvsim.rng import stream

S = 1_000_000_000


def poisson(rate_per_s: float, seconds: int, seed: int) -> np.ndarray:
    rng = stream(seed, "counts-tests")
    return np.sort(rng.integers(0, seconds * S, rng.poisson(rate_per_s * seconds)))


def test_counts_leave_out_the_window_that_is_cut_short():
    times = np.array([0, 9, 10, 25, 29, 31])
    assert counts(times, 35, 10).tolist() == [2, 1, 2]


def test_dispersion_is_variance_over_mean_of_the_windows():
    times = np.repeat(np.arange(20) * S, np.arange(20) % 3)
    per_second = [second % 3 for second in range(20)]
    mean = sum(per_second) / 20
    variance = sum((count - mean) ** 2 for count in per_second) / 19
    assert dispersion(times, 20 * S, S) == pytest.approx(variance / mean)


def test_dispersion_of_a_sparse_log_needs_no_memory_for_its_empty_windows():
    """As of microseconds taken for seconds; one arrival in each of n of N windows."""
    times, windows = np.arange(1000) * 3_600_000 * S, 3_600_000_000
    exact = (1 - 1000 / windows) * windows / (windows - 1)
    assert dispersion(times, windows * S, S) == pytest.approx(exact, rel=1e-12)


def test_dispersion_of_a_clock_is_zero_and_that_of_few_windows_unknown():
    times = np.arange(100) * S
    assert dispersion(times, 100 * S, 10 * S) == 0
    assert dispersion(times, 100 * S, 11 * S) is None


def test_poisson_has_dispersion_and_variation_one():
    """20 seeds: the mean of each stays within four standard errors."""
    logs = [poisson(5, 2_000, seed) for seed in range(20)]
    for window_s in (1, 10):
        found = [dispersion(times, 2_000 * S, window_s * S) for times in logs]
        windows = 2_000 / window_s
        assert abs(np.mean(found) - 1) < 4 * np.sqrt(2 / windows / 20)
    assert np.mean([gap_cv(times) for times in logs]) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("windows", [10, 60, 3600])
def test_the_range_of_poisson_is_that_of_chi_square(windows):
    exact = stats.chi2.ppf([0.025, 0.975], windows - 1) / (windows - 1)
    assert poisson_range(windows) == pytest.approx(exact, rel=0.01)


def test_batches_of_equal_size_have_their_size_as_dispersion():
    """Poisson batches of 4: variance and mean of the counts are 16 and 4 times those of batches."""
    found = [dispersion(np.repeat(poisson(5, 2_000, seed), 4), 2_000 * S, S) for seed in range(20)]
    assert np.mean(found) == pytest.approx(4, rel=0.03)


def test_the_peak_is_found_wherever_it_begins():
    times = np.array([0, 5, 9, 11, 12, 19, 40])
    assert peak_count(times, 7) == 3  # 5, 9, 11, but no longer 12
    assert peak_count(times, 8) == 4
    assert peak_count(np.array([3, 3, 3]), 1) == 3


def test_peak_against_a_plain_loop():
    times = poisson(3, 60, 1)
    for window in (S // 7, 3 * S):
        plain = max(sum(start <= t < start + window for t in times) for start in times)
        assert peak_count(times, window) == plain


def test_figures_of_a_log_with_exact_answers():
    figures = arrival_figures(np.arange(1200) * S // 2, 600 * S)
    assert (figures.requests, figures.duration_s, figures.rate_per_s) == (1200, 600.0, 2.0)
    assert figures.gap_cv == pytest.approx(0)
    assert figures.tick_s is None
    assert [window.peak_per_s for window in figures.windows] == [2.0, 2.0, 2.0, 2.0]
    assert [window.dispersion for window in figures.windows] == [0.0, 0.0, 0.0, None]


def test_times_recorded_in_steps_leave_shorter_windows_open():
    times = np.repeat(np.arange(100) * 3 * S, 10)
    assert tick(times) == 3 * S
    figures = arrival_figures(times, 300 * S)
    assert figures.tick_s == 3.0
    short, ten, _, _ = figures.windows
    assert (short.peak_per_s, short.dispersion) == (None, None)
    assert ten.peak_per_s == 4.0


def test_one_request_has_a_rate_and_nothing_else():
    figures = arrival_figures(np.array([0]), S)
    assert (figures.rate_per_s, figures.gap_cv, figures.tick_s) == (1.0, None, None)
