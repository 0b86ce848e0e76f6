"""How the rate changes over a log, and what unevenness is left beside that."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.arrivals import FEWEST_WINDOWS, counts
from kvsim.units import NS_PER_S, seconds_to_ns

FEWEST_PIECES = 6
REQUESTS_A_PIECE = 50
SHORT_PIECE_S, LONG_PIECE_S = 300.0, 1800.0
MOST_PIECES = 2000
BINS_A_PIECE = 4
ONE_PERCENT = 2.326  # quantile 0.99 of the normal law
SAMPLED = 20  # points in each piece when the curve is summed

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RateShape:
    """A rate that is linear between points: seconds and requests per second, shape (points,).

    A constant rate has one point.
    """

    times_s: Floats
    rates_per_s: Floats
    end_s: float

    @property
    def is_constant(self) -> bool:
        """Whether the rate doesn't change."""
        return len(self.times_s) == 1

    @property
    def mean_per_s(self) -> float:
        """Mean rate."""
        return float(self.expected(np.array([0.0, self.end_s]))[0] / self.end_s)

    @property
    def mean_square_ratio_per_s(self) -> float:
        """Mean of the squared rate over the mean rate: the rate that a request sees."""
        at = np.linspace(0, self.end_s, SAMPLED * len(self.times_s) + 1)
        rates = np.interp(at, self.times_s, self.rates_per_s)
        return float((rates**2).mean() / rates.mean())

    def expected(self, edges_s: Floats) -> Floats:
        """Return the expected number of requests between neighboring instants."""
        at = np.linspace(0, self.end_s, SAMPLED * len(self.times_s) + 1)
        rates = np.interp(at, self.times_s, self.rates_per_s)
        upto = np.append(0.0, np.cumsum(np.diff(at) * (rates[1:] + rates[:-1]) / 2))
        return np.asarray(np.diff(np.interp(edges_s, at, upto)), dtype=np.float64)


def rate_shape(times_ns: Ints, end_ns: int) -> RateShape:
    """Fit a curve by least squares if the rate varies over the log, else a constant."""
    end_s = end_ns / NS_PER_S
    mean = RateShape(np.zeros(1), np.array([len(times_ns) / end_s]), end_s)
    pieces = _pieces(len(times_ns), end_s)
    if pieces < FEWEST_PIECES:
        return mean
    in_pieces = counts(times_ns, end_ns, max(end_ns // pieces, 1))[:pieces]
    return _curve(times_ns, end_ns, pieces) if varies(in_pieces) else mean


def varies(in_pieces: Ints) -> bool:
    """Tell whether neighboring counts are more alike than distant ones, at the 1 % level.

    von Neumann, Distribution of the ratio of the mean square successive difference to the
    variance, Annals of Mathematical Statistics 12 (1941): for independent counts the ratio has
    mean 2n/(n - 1) and variance 4(n - 2)/(n² - 1) about 2. Unlike a chi-square test it is not
    misled by bursts that are over within a piece.
    """
    count = len(in_pieces)
    variance = in_pieces.var(ddof=1)
    if not variance:
        return False
    ratio = (np.diff(in_pieces) ** 2).mean() / variance
    return bool((2 - ratio) / np.sqrt(4 * (count - 2) / (count**2 - 1)) > ONE_PERCENT)


def _pieces(requests: int, end_s: float) -> int:
    piece_s = min(max(end_s / 48, min(SHORT_PIECE_S, end_s / 12)), LONG_PIECE_S)
    return int(min(round(end_s / piece_s), requests // REQUESTS_A_PIECE, MOST_PIECES))


def _curve(times_ns: Ints, end_ns: int, pieces: int) -> RateShape:
    bins = pieces * BINS_A_PIECE
    edges_ns = np.linspace(0, end_ns, bins + 1)
    observed = np.histogram(times_ns, edges_ns)[0] * (NS_PER_S * bins / end_ns)
    middles = (np.arange(bins) + 0.5) / BINS_A_PIECE
    hats = np.clip(1 - np.abs(middles[:, None] - np.arange(pieces + 1)), 0, None)
    rates = np.clip(np.linalg.lstsq(hats, observed, rcond=None)[0], 0, None)
    end_s = end_ns / NS_PER_S
    shape = RateShape(np.linspace(0, end_s, pieces + 1), rates, end_s)
    return RateShape(shape.times_s, rates * (len(times_ns) / end_s / shape.mean_per_s), end_s)


def residual_dispersion(times_ns: Ints, end_ns: int, shape: RateShape, windows_s: Floats) -> Floats:
    """Return the index of dispersion about the shape's expectation, for each window.

    The points of the shape were fitted to the same counts, which takes away as many degrees of
    freedom. nan where there are fewer than `FEWEST_WINDOWS` windows, or than two a point.
    """
    points = len(shape.times_s)
    indices = []
    for window_s in windows_s:
        window_ns = seconds_to_ns(float(window_s))
        found = counts(times_ns, end_ns, window_ns)
        edges_s = np.linspace(0, len(found) * window_ns / NS_PER_S, len(found) + 1)
        expected = shape.expected(edges_s)
        square = float(((found - expected) ** 2).sum())
        enough = len(found) >= max(FEWEST_WINDOWS, 2 * points) and found.any()
        free = float(expected.sum()) * (1 - points / len(found)) if enough else 0.0
        indices.append(square / free if enough else np.nan)
    return np.array(indices)
