"""What is fitted to draws of a known process is that process again."""

import numpy as np
import pytest

from kvsim.rng import stream
from kvsim.traffic.fit import (
    _of_forgetting,
    _of_steps,
    fit_arrivals,
    fit_unevenness,
    fitted_windows,
    log_dispersions,
)
from kvsim.traffic.imitation import lognormal_fit
from kvsim.traffic.rate_shape import rate_shape, residual_dispersion, varies
from kvsim.units import NS_PER_S
from kvsim.workload.arrivals.bursts import Bursts
from kvsim.workload.arrivals.day_curve import DayCurve, Point
from kvsim.workload.arrivals.gamma import Gamma
from kvsim.workload.arrivals.poisson import Poisson

HOUR_NS = 3600 * NS_PER_S


def draw(process, hours: int = 1, seed: int = 0) -> np.ndarray:
    return process.arrivals(None, hours * HOUR_NS, stream(seed, "fit-tests")).times_ns


CURVE = DayCurve(
    points=[
        Point(time_s=0.0, rate_per_s=2.0),
        Point(time_s=1800.0, rate_per_s=10.0),
        Point(time_s=3599.0, rate_per_s=2.0),
    ],
    period_s=3600.0,
)


@pytest.mark.parametrize("seed", range(3))
def test_poisson_stays_poisson(seed):
    found = fit_arrivals(draw(Poisson(rate_per_s=5.0), seed=seed), HOUR_NS)
    assert isinstance(found, Poisson)
    assert found.rate_per_s == pytest.approx(5, rel=0.03)


@pytest.mark.parametrize("burstiness", [0.1, 0.3, 4.0])
def test_gamma_gaps_are_found_with_their_burstiness(burstiness):
    found = fit_arrivals(draw(Gamma(rate_per_s=5.0, burstiness=burstiness)), HOUR_NS)
    assert isinstance(found, Gamma)
    assert found.burstiness == pytest.approx(burstiness, rel=0.2)  # seeds differ by that much


def test_bursts_are_found_with_their_rates_and_lengths():
    made = Bursts(base_rate_per_s=2.0, burst_rate_per_s=20.0, mean_burst_s=10.0, mean_gap_s=50.0)
    found = fit_arrivals(draw(made, hours=6), 6 * HOUR_NS)
    assert isinstance(found, Bursts)
    assert found.rate_per_s == pytest.approx(made.rate_per_s, rel=0.1)
    # Over ten seeds rates come within 7 %; lengths of bursts, and with them the dispersion, are
    # told by some 360 bursts and their sums in windows: they spread over 0.5 to 1.4 times.
    assert found.index_of_dispersion == pytest.approx(made.index_of_dispersion, rel=0.35)
    assert found.burst_rate_per_s == pytest.approx(20, rel=0.1)
    assert found.mean_burst_s == pytest.approx(10, rel=0.5)


def test_a_curve_is_found_with_its_rates():
    times = draw(CURVE)
    found = fit_arrivals(times, HOUR_NS)
    assert isinstance(found, DayCurve)
    shape = rate_shape(times, HOUR_NS)
    # Twelve pieces, some 1,800 requests each side of the peak: rates within four errors.
    wanted = np.interp(shape.times_s, [0, 1800, 3600], [2, 10, 2])
    assert np.abs(shape.rates_per_s - wanted).max() < 4 * np.sqrt(10 / 300)
    assert shape.mean_per_s == pytest.approx(len(times) / 3600)


@pytest.mark.parametrize("process", [CURVE, Gamma(rate_per_s=5.0, burstiness=0.2)])
def test_draws_of_the_fit_have_the_dispersion_of_the_log(process):
    times = draw(process)
    windows = fitted_windows(times, HOUR_NS)
    again = [draw(fit_arrivals(times, HOUR_NS), seed=seed) for seed in range(1, 6)]
    found = np.mean([log_dispersions(one, HOUR_NS, windows) for one in again], axis=0)
    assert np.abs(found - log_dispersions(times, HOUR_NS, windows)).mean() < 0.3


def test_a_clock_is_imitated_by_a_clock():
    found = fit_arrivals(np.arange(3600) * NS_PER_S, HOUR_NS)
    assert found.rate_per_s == pytest.approx(1, rel=0.01)
    assert found.burstiness > 100


def test_few_requests_give_a_plain_rate():
    found = fit_arrivals(np.array([0, NS_PER_S, 5 * NS_PER_S]), 6 * NS_PER_S)
    assert found == Poisson(rate_per_s=0.5)


def test_bursts_within_a_piece_are_no_curve():
    """Twenty seeds at the 1 % level: the chance of three false alarms is 1 in 1,000."""
    rng = stream(0, "varies")
    assert sum(varies(rng.negative_binomial(2, 0.02, 12)) for _ in range(20)) < 3
    assert varies(np.arange(12) * 10 + rng.poisson(50, 12))
    assert not varies(np.full(12, 7))


@pytest.mark.parametrize("growth", [_of_steps, _of_forgetting])
def test_unevenness_is_recovered_from_its_own_law(growth):
    windows = np.geomspace(1, 300, 10)
    fit = fit_unevenness(windows, 1.5 + 8 * growth(windows / 20), growth)
    assert (fit.floor, fit.excess) == pytest.approx((1.5, 8), rel=0.1)
    assert fit.scale_s == pytest.approx(20, rel=0.15)  # the grid of scales is so coarse


def test_the_growths_are_those_of_simulated_rates():
    """Variance of a rate's mean over w, against the law; steps at random phase."""
    rng = stream(0, "growth")
    steps = np.repeat(rng.standard_normal(40_000), 10)  # a step lasts 10
    for window in (4, 10, 35):
        means = np.convolve(steps, np.ones(window) / window, "valid")
        assert means.var() * window / 10 == pytest.approx(
            float(_of_steps(np.array(window / 10))), rel=0.05
        )


def test_dispersion_about_the_curve_is_poissons():
    """Ten seeds: the mean of each index stays within four standard errors."""
    windows = np.array([10.0, 60.0, 900.0])
    found = []
    for seed in range(10):
        times = draw(CURVE, seed=seed)
        found.append(residual_dispersion(times, HOUR_NS, rate_shape(times, HOUR_NS), windows))
    ten, sixty, long = np.mean(found, axis=0)
    assert abs(ten - 1) < 4 * np.sqrt(2 / 347 / 10)
    assert abs(sixty - 1) < 4 * np.sqrt(2 / 47 / 10)
    assert np.isnan(long)


def test_lognormal_parameters_are_recovered():
    lengths = np.rint(stream(0, "lognormal").lognormal(6, 0.8, 20_000)).astype(np.int64)
    mean, cv = lognormal_fit(lengths)
    assert mean == pytest.approx(np.exp(6 + 0.32), rel=0.02)
    assert cv == pytest.approx(np.sqrt(np.expm1(0.64)), rel=0.03)
    assert lognormal_fit(np.array([7, 7])) == pytest.approx((7, 0))
