"""What can be said of a mean: intervals, warm-up, how many observations are worth as much."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
BATCHES = 20  # few, so that each is long, and its mean hardly depends on the one before
_MOST_SUMMED = 1000  # degrees of freedom
_MSER_BATCH = 5  # observations
_LONGEST_WARM_UP = 0.5  # of a series; beyond it nothing is steady


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate between two bounds, from `count` independent values.

    With fewer than two values nothing is known of the bounds: they are None.
    """

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def half_width(self) -> float | None:
        """Half the distance of the bounds."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def mean_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of independent values, with its interval by Student's t.

    Args:
        values: At least one, shape (n,).
        confidence: Share of such intervals that hold the true mean, if values are about normal.

    Raises:
        ValueError: There is no value.
    """
    data = np.asarray(values, dtype=np.float64)
    if not data.size:
        raise ValueError("no values")
    mean, count = float(data.mean()), data.size
    if count < 2:
        return Interval(mean, None, None, count)
    half = t_quantile(confidence, count - 1) * float(data.std(ddof=1)) / count**0.5
    return Interval(mean, mean - half, mean + half, count)


@lru_cache(maxsize=1024)  # a summary asks for few, again and again
def t_quantile(confidence: float, degrees: float) -> float:
    """Return how many standard errors a two-sided interval of Student's t reaches.

    The share within an angle, `t = √degrees · tan(angle)`, is a finite sum for whole degrees
    (Abramowitz and Stegun, 26.7.3 and 26.7.4), and halving finds the angle: scipy takes longer to
    import than a small run.
    """
    if degrees > _MOST_SUMMED or degrees != int(degrees):
        from scipy.special import stdtrit

        return float(stdtrit(degrees, 0.5 + confidence / 2))
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _t_share(middle, int(degrees)) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(high)


def _t_share(angle: float, degrees: int) -> float:
    """Return the share of Student's t within ±√degrees · tan(angle)."""
    cosine, odd = math.cos(angle), degrees % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for power in range(odd, degrees - 1, 2):  # of the cosine
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    series = math.sin(angle) * total
    return 2 / math.pi * (angle + series) if odd else series


def warm_up_of(series: ArrayLike) -> int:
    """Return how many observations at the beginning are warm-up, by MSER-5.

    Means of five are dropped from the beginning until the standard error of the mean of the rest is
    least (White 1997; White, Cobb, Spratt 2000). At most half of a series is warm-up: where the
    least lies beyond, it isn't steady, and half of it is returned.

    Args:
        series: In the order of time, shape (n,).
    """
    data = np.asarray(series, dtype=np.float64)
    batches = data.size // _MSER_BATCH
    if batches < 2:
        return 0
    means = data[: batches * _MSER_BATCH].reshape(batches, _MSER_BATCH).mean(axis=1)
    means = means - means.mean()  # keeps the difference of squares exact
    left = np.arange(batches, 0, -1)
    total, squares = np.cumsum(means[::-1])[::-1], np.cumsum(means[::-1] ** 2)[::-1]
    spread = (squares - total**2 / left) / left**2
    allowed = int(batches * _LONGEST_WARM_UP) + 1
    return int(np.argmin(spread[:allowed])) * _MSER_BATCH


def effective_count(series: ArrayLike) -> float:
    """Return how many independent observations would tell the mean as well as these.

    The variance of the mean is estimated from the means of √n batches of equal length (Law, 2015);
    correlated observations, as of requests in one queue, count for less than one each.

    Args:
        series: In the order of time, without the warm-up, shape (n,).

    Returns:
        From 1 to n; n where all observations are equal, or are too few to say.
    """
    data = np.asarray(series, dtype=np.float64)
    batches = int(data.size**0.5)
    variance = float(data.var(ddof=1)) if data.size > 1 else 0.0
    if batches < 4 or variance == 0:
        return float(data.size)
    length = data.size // batches
    means = data[data.size - batches * length :].reshape(batches, length).mean(axis=1)
    of_mean = float(means.var(ddof=1)) / batches
    if of_mean == 0:
        return float(data.size)
    return min(max(variance / of_mean, 1.0), float(data.size))


def batch_interval(
    series: ArrayLike, confidence: float = CONFIDENCE, batches: int = BATCHES
) -> Interval:
    """Return the mean of a correlated series, with its interval from means of batches.

    Args:
        series: In the order of time, without the warm-up, shape (n,).
        confidence: As of `mean_interval`.
        batches: So many parts of equal length; the first observations are left over.

    Raises:
        ValueError: There is no value.
    """
    data = np.asarray(series, dtype=np.float64)
    count = min(batches, data.size)
    if not count:
        raise ValueError("no values")
    length = data.size // count
    means: NDArray[np.float64] = data[data.size - count * length :].reshape(count, length).mean(1)
    return mean_interval(means, confidence)


def percentile_interval(
    series: ArrayLike,
    percent: float,
    ascending: NDArray[np.float64] | None = None,
    confidence: float = CONFIDENCE,
    batches: int = BATCHES,
) -> Interval:
    """Return a percentile of a correlated series, with its interval.

    The share of values at or below the percentile is a mean, and has an interval from means of
    batches. The values that have its ends as their shares are the bounds (Woodruff 1952), which
    assumes nothing of the distribution. An end beyond all values is no bound: it is None.

    Args:
        series: In the order of time, without the warm-up, shape (n,).
        percent: From 0 to 100.
        ascending: The same values sorted, if somebody has them.
        confidence: As of `mean_interval`.
        batches: As of `batch_interval`.

    Returns:
        `mean` is the percentile; `count` is how many independent observations would tell it as
        well: from 1 to n.

    Raises:
        ValueError: There is no value.
    """
    data = np.asarray(series, dtype=np.float64)
    ranked = np.sort(data) if ascending is None else ascending
    share = percent / 100
    value = _at_share(ranked, share)
    within = batch_interval(data <= value, confidence, batches)
    half = within.half_width
    if half is None:
        return Interval(value, None, None, data.size)
    error = half / t_quantile(confidence, within.count - 1)
    alone = within.mean * (1 - within.mean)  # variance of the share, were they independent
    count = min(max(alone / error**2, 1.0), data.size) if error else data.size
    low = _at_share(ranked, share - half) if share - half >= 0 else None
    high = _at_share(ranked, share + half) if share + half <= 1 else None
    return Interval(value, low, high, round(count))


def _at_share(ranked: NDArray[np.float64], share: float) -> float:
    """Return the value with a share of all at or below it, between two in proportion."""
    place = share * (len(ranked) - 1)
    below = int(place)
    low, high = ranked[below], ranked[min(below + 1, len(ranked) - 1)]
    return float(low + (high - low) * (place - below))
