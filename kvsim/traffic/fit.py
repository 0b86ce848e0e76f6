"""Arrivals that imitate a log: several kinds are fitted, drawn, and the closest is kept.

The unevenness at a window of w seconds is told by its index of dispersion, fitted as
floor + excess · g(w / scale): the floor is that of the gaps, the excess that of a rate which
changes and is forgotten over `scale` seconds; g rises from 0 to 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.arrivals import FEWEST_WINDOWS, dispersion, tick
from kvsim.rng import stream
from kvsim.traffic.rate_shape import RateShape, rate_shape, residual_dispersion
from kvsim.units import NS_PER_S, seconds_to_ns
from kvsim.workload.arrivals.bursts import Bursts
from kvsim.workload.arrivals.day_curve import DayCurve, Point
from kvsim.workload.arrivals.gamma import Gamma
from kvsim.workload.arrivals.poisson import Poisson

WINDOWS = 10
SCALES = 40
DRAWS = 3
MOST_DRAWN = 2_000_000  # requests in all draws of a large log
SIMPLER_IF_WITHIN = 0.05  # of the mean logarithm: a simpler kind is kept if it does so well
SURE = 0.1  # spreads far below it make no difference
LEAST_DISPERSION = 1e-3  # more even than this is a clock
LEAST_BURSTINESS, MOST_BURSTINESS = 0.01, 1000.0

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
AnyArrivals = Poisson | Gamma | DayCurve | Bursts


@dataclass(frozen=True, slots=True)
class Unevenness:
    """Parameters of the law above; rates that change are forgotten over `scale_s`."""

    floor: float
    excess: float
    scale_s: float
    error: float


def fit_arrivals(times_ns: Ints, end_ns: int) -> AnyArrivals:
    """Return the process, of those that kvsim has, whose draws come closest to a log's dispersion.

    Args:
        times_ns: Sorted arrivals, int64, shape (requests,).
        end_ns: End of the log.
    """
    shape = rate_shape(times_ns, end_ns)
    windows_s = fitted_windows(times_ns, end_ns)
    candidates = _candidates(times_ns, end_ns, shape, windows_s)
    if len(candidates) == 1:
        return candidates[0]
    misfits = [_misfit(times_ns, end_ns, candidate, windows_s) for candidate in candidates]
    enough = min(misfits) + SIMPLER_IF_WITHIN
    return next(c for c, misfit in zip(candidates, misfits, strict=True) if misfit <= enough)


def fitted_windows(times_ns: Ints, end_ns: int) -> Floats:
    """Return the windows, in seconds, at which a log's dispersion is imitated; may be none."""
    # Two requests a window: below, counts of any process look like Poisson's.
    least_s = max(2 * end_ns / len(times_ns), 2 * tick(times_ns)) / NS_PER_S
    most_s = end_ns / NS_PER_S / FEWEST_WINDOWS / 2
    if most_s <= 2 * least_s:
        return np.zeros(0)
    windows_s = np.geomspace(least_s, most_s, WINDOWS)
    indices = [dispersion(times_ns, end_ns, seconds_to_ns(float(w))) for w in windows_s]
    known = [index is not None for index in indices]
    return np.asarray(windows_s[known], dtype=np.float64)


def _candidates(
    times_ns: Ints, end_ns: int, shape: RateShape, windows_s: Floats
) -> list[AnyArrivals]:
    """Return the kinds to try, the simplest first."""
    plain = _with_shape(shape)
    if not len(windows_s):
        return [plain]
    indices = residual_dispersion(times_ns, end_ns, shape, windows_s)
    known = ~np.isnan(indices)
    if not known.any():
        return [plain]
    indices = np.maximum(indices, LEAST_DISPERSION)
    floor = float(np.exp(np.log(indices[known]).mean()))
    even = _with_shape(shape, _burstiness(floor))
    noisy = _noisy(shape, fit_unevenness(windows_s[known], indices[known], _of_steps))
    # A curve and bursts don't go together: bursts explain all changes of the rate, or none.
    whole = np.exp(log_dispersions(times_ns, end_ns, windows_s))
    forgotten = fit_unevenness(windows_s, whole, _of_forgetting, floor=1.0)
    bursts = [fit_bursts(times_ns, end_ns, forgotten)] if forgotten.excess > 0 else []
    return [plain, even, *((*bursts, *noisy) if shape.is_constant else (*noisy, *bursts))]


def _noisy(shape: RateShape, steps: Unevenness) -> list[AnyArrivals]:
    """Return the shape with a random factor on the rate, if there is anything left to explain."""
    if not steps.excess:
        return []
    variance = steps.excess / (shape.mean_square_ratio_per_s * steps.scale_s)
    noise_cv = min(_short(np.sqrt(variance)), 10.0)
    period_s = max(_short(steps.scale_s), 1e-3)
    return [_with_shape(shape, _burstiness(steps.floor), noise_cv, period_s)]


def _with_shape(
    shape: RateShape, burstiness: float = 1.0, noise_cv: float = 0.0, noise_period_s: float = 300.0
) -> AnyArrivals:
    """Return the plainest process with this shape of the rate."""
    rate_per_s = min(max(_short(shape.mean_per_s), 1e-4), 1e6)
    if shape.is_constant and not noise_cv:
        if burstiness == 1.0:
            return Poisson(rate_per_s=rate_per_s)
        return Gamma(rate_per_s=rate_per_s, burstiness=burstiness)
    # The last point stands just before the period's end, where the first one comes again.
    times_s = np.minimum(shape.times_s, shape.end_s * (1 - 1e-6))
    points = [
        Point(time_s=round(float(time_s), 6), rate_per_s=_short(rate))
        for time_s, rate in zip(times_s, shape.rates_per_s, strict=True)
    ]
    return DayCurve(
        points=points,
        period_s=shape.end_s,
        burstiness=burstiness,
        noise_cv=noise_cv,
        noise_period_s=noise_period_s,
    )


def _burstiness(floor: float) -> float:
    return min(max(_short(1 / floor), LEAST_BURSTINESS), MOST_BURSTINESS)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def fit_unevenness(
    windows_s: Floats,
    indices: Floats,
    growth: Callable[[Floats], Floats],
    floor: float | None = None,
) -> Unevenness:
    """Fit floor, excess and scale to indices of dispersion by least squares of relative errors.

    Args:
        windows_s: Windows, shape (windows,).
        indices: Index of dispersion at each.
        growth: The function g of window over scale.
        floor: The floor if it is given.
    """
    fits = []
    for scale_s in np.geomspace(windows_s[0] / 4, windows_s[-1], SCALES):
        rise = growth(windows_s / scale_s)
        if floor is None:
            basis = np.column_stack([np.ones_like(rise), rise]) / indices[:, None]
            base, excess = np.linalg.lstsq(basis, np.ones_like(rise), rcond=None)[0]
        else:
            base, excess = (
                floor,
                float(
                    ((1 - floor / indices) * rise / indices).sum() / ((rise / indices) ** 2).sum()
                ),
            )
        base, excess = max(float(base), LEAST_DISPERSION), max(float(excess), 0.0)
        error = float((((base + excess * rise) / indices - 1) ** 2).sum())
        fits.append(Unevenness(base, excess, float(scale_s), error))
    return min(fits, key=lambda fit: fit.error)


def _of_steps(ratio: Floats) -> Floats:
    """Return the growth for a rate drawn anew every `scale` seconds, windows at any phase."""
    return np.where(ratio < 1, ratio * (1 - ratio / 3), 1 - 1 / (3 * np.maximum(ratio, 1)))


def _of_forgetting(ratio: Floats) -> Floats:
    """Return the growth for a rate that jumps between two states and forgets exponentially.

    Fischer and Meier-Hellstern, The Markov-modulated Poisson process cookbook, 1993.
    """
    return np.asarray(1 + np.expm1(-ratio) / ratio, dtype=np.float64)


def fit_bursts(times_ns: Ints, end_ns: int, unevenness: Unevenness) -> Bursts:
    """Return the two-state process with this dispersion, whose skewness is that of the counts.

    The counts' third cumulant, less what Poisson counts add, tells which share of the time
    bursts take: (1 - 2p) / sqrt(p (1 - p)) is the skewness of a rate with two values.
    """
    rate_per_s = len(times_ns) * NS_PER_S / end_ns
    window_ns = seconds_to_ns(unevenness.scale_s / 2)
    found = np.bincount(times_ns // window_ns, minlength=end_ns // window_ns).astype(np.float64)
    mean, second = float(found.mean()), float(found.var())
    third = float(((found - mean) ** 3).mean()) - 3 * second + 2 * mean
    skewness = third / max(second - mean, 1e-9) ** 1.5
    # Between bursts the rate can't be below 0.
    most = 2 * rate_per_s * unevenness.scale_s
    share = min(0.5 - skewness / (2 * np.hypot(2, skewness)), most / (unevenness.excess + most))
    share = min(max(share, 0.01), 0.99)
    variance = unevenness.excess * rate_per_s / (2 * unevenness.scale_s)
    difference = float(np.sqrt(variance / (share * (1 - share))))
    return Bursts(
        base_rate_per_s=max(_short(rate_per_s - share * difference), 0.0),
        burst_rate_per_s=_short(rate_per_s + (1 - share) * difference),
        mean_burst_s=_short(unevenness.scale_s / (1 - share)),
        mean_gap_s=_short(unevenness.scale_s / share),
    )


def _misfit(times_ns: Ints, end_ns: int, arrivals: AnyArrivals, windows_s: Floats) -> float:
    """Return the mean absolute logarithm of the draws' dispersion over the log's.

    Windows count the less, the less surely their dispersion is known: its logarithm has a
    standard deviation near sqrt(2 / windows).
    """
    wanted = log_dispersions(times_ns, end_ns, windows_s)
    drawn = [
        arrivals.arrivals(None, end_ns, stream(0, "fit", draw)).times_ns
        for draw in range(draws_for(len(times_ns), DRAWS))
    ]
    found = np.mean([log_dispersions(times, end_ns, windows_s) for times in drawn], axis=0)
    spread = np.sqrt(2 * windows_s * NS_PER_S / end_ns)
    return float(np.average(np.abs(found - wanted), weights=1 / (SURE + spread)))


def draws_for(requests: int, most: int) -> int:
    """Return how often to draw: large logs need, and allow, fewer draws."""
    return min(max(MOST_DRAWN // requests, 1), most)


def log_dispersions(times_ns: Ints, end_ns: int, windows_s: Floats) -> Floats:
    """Return the logarithm of the index of dispersion at each window."""
    indices = [dispersion(times_ns, end_ns, seconds_to_ns(float(w))) for w in windows_s]
    return np.log([max(index or 0.0, LEAST_DISPERSION) for index in indices])
