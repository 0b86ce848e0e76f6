"""What the replications at one value say of each bound, and where a bound is crossed between two.

All is told as an excess: the mean over what is allowed, 1 at the bound. Shares and latencies grow
by factors as a load grows, so they are interpolated in their logarithm.

Means of rare events are skewed: an interval by Student's t is too low, most of all where few events
made both mean and spread small. The spread of such means is in proportion to what they estimate:
the upper end m is where m − mean is the share half / mean of m itself. The lower end is Student's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.statistics import CONFIDENCE, mean_interval, t_quantile, warm_up_of
from kvsim.studies.capacity.answer import Status
from kvsim.studies.capacity.bounds import Bound
from kvsim.studies.capacity.observe import Floats, Observed

# MSER-5 weighs bias against variance, and of a queue with heavy traffic it cuts too little: its
# empty beginning hides in the noise.
LEAST_WARM_UP = 0.1  # of a run
_MOST_RELATIVE = 0.95  # half-width over mean; beyond it nothing is known
_ZERO_OF = 3.0  # of n independent requests none: the share is at most 3 / n, with 95 % confidence
_FAR = 3.0  # excess in logarithms from which on it only counts that it is far
_BISECTIONS = 60


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """The replications at one value.

    Attributes:
        value: What was tried.
        bounds: The bounds.
        means: Of each bound in each replication, NaN where nothing has a value; shape
            (bounds, replications).
        count: How many requests were measured, all replications together.
        warmup: How many requests at the beginning of each were left out.
        confidence: Of the intervals; None: nothing is random, the means are exact.
        refusal: Why such a server would not start; empty if it does.
    """

    value: float
    bounds: Sequence[Bound]
    means: Floats
    count: int
    warmup: int
    confidence: float | None
    refusal: str = ""

    @classmethod
    def of(
        cls,
        value: float,
        bounds: Sequence[Bound],
        observed: Sequence[Observed],
        confidence: float | None,
    ) -> "Estimate":
        """Cut the warm-up, which all replications together show best, and average."""
        refusal = next((one.refusal for one in observed if one.refusal), "")
        if refusal:
            none = np.full((len(bounds), len(observed)), np.inf)
            return cls(value, bounds, none, 0, 0, confidence, refusal)
        warmup = _warm_up(observed) if bounds[-1].kind == "growth" else observed[0].first
        means = np.array([[one.mean(bound, warmup) for one in observed] for bound in bounds])
        count = sum(max(one.end - warmup, 0) for one in observed)
        return cls(value, bounds, means, count, warmup, confidence)

    @property
    def replications(self) -> int:
        """How many there are."""
        return int(self.means.shape[1])

    def excess(self, place: int) -> tuple[float, float, float]:
        """Return mean, low and high of a bound's excess; NaN: no request has such a value."""
        values = self.means[place][~np.isnan(self.means[place])]
        if self.refusal:
            return math.inf, math.inf, math.inf
        if not len(values):
            return math.nan, math.nan, math.nan
        return _excess(values, self.bounds[place], self.count, self.confidence)

    @property
    def status(self) -> Status:
        """What can be said of the value."""
        if self.refusal:
            return "refused"
        found = [self.excess(place) for place in range(len(self.bounds))]
        for bound, (_, low, _) in zip(self.bounds, found, strict=True):
            if bound.kind == "growth" and low > 1:
                return "unstable"
        if any(low > 1 for _, low, _ in found):
            return "missed"
        return "met" if all(high <= 1 or math.isnan(high) for _, _, high in found) else "undecided"

    @property
    def worst(self) -> int:
        """The bound that is nearest to its limit, or furthest beyond."""
        return int(np.argmax([self._far(place) for place in range(len(self.bounds))]))

    @property
    def distance(self) -> float:
        """How far the worst bound is beyond its limit, in logarithms, cut where it is far."""
        return self._far(self.worst)

    def _far(self, place: int) -> float:
        mean, low, _ = self.excess(place)
        # A steady queue moves, too: only a growth that is sure counts.
        return _clipped_log(low if self.bounds[place].kind == "growth" else mean)


def _warm_up(observed: Sequence[Observed]) -> int:
    """Return where the number present and the stay of requests become steady, by MSER-5."""
    length = min(one.end for one in observed)
    present = np.mean([one.present[:length] for one in observed], axis=0)
    stays = np.array([one.stay_s[:length] for one in observed])
    exists = ~np.isnan(stays)
    sums, counts = np.where(exists, stays, 0.0).sum(axis=0), exists.sum(axis=0)
    stay_s = (sums / np.maximum(counts, 1))[counts > 0]
    least = round(LEAST_WARM_UP * length)
    return min(max(warm_up_of(present), warm_up_of(stay_s), least), max(length - 1, 0))


def _clipped_log(excess: float) -> float:
    if math.isnan(excess) or excess <= 0:
        return -_FAR
    return min(max(math.log(excess), -_FAR), _FAR)


def _excess(
    values: Floats, bound: Bound, count: int, confidence: float | None
) -> tuple[float, float, float]:
    mean, allowed = float(values.mean()), bound.allowed
    if allowed <= 0:
        excess = math.inf if mean > 0 else 0.0
        return excess, excess, excess
    if confidence is None:
        return mean / allowed, mean / allowed, mean / allowed
    if len(values) < 2:
        return mean / allowed, 0.0, math.inf
    half = mean_interval(values, confidence).half_width
    assert half is not None, "there are several replications"
    if bound.kind == "growth":
        return mean / allowed, (mean - half) / allowed, (mean + half) / allowed
    if mean <= 0:
        return 0.0, 0.0, _ZERO_OF / max(count, 1) / allowed
    low, high = (math.exp(_log_excess(mean / allowed, way * half / mean)) for way in (-1, 1))
    return mean / allowed, low, high


# Between two values


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where on the axis the first bound is crossed; infinite if not near the two values."""

    low: float
    place: float
    high: float
    bound: int

    @property
    def width(self) -> float:
        """How far the ends of the interval are apart on the axis."""
        return self.high - self.low


def crossing(easy: tuple[float, Estimate], hard: tuple[float, Estimate]) -> Crossing:
    """Return where the first bound is crossed, as far as replications at two places tell.

    The same replications were run at both, with the same draws: what they say is interpolated for
    each alone, so that the interval is that of the mean at any place between. It is the range of
    places that are not told from the limit: at its low end the worse end of the mean's interval is
    at the bound, at its high end the better one. Beyond the two places the curves are
    continued for once their distance.

    Args:
        easy: Place and estimate of the easier value.
        hard: Those of the harder value, with the same replications.
    """
    found = [_crossing_of(place, easy, hard) for place in range(len(easy[1].bounds))]
    lows, places, highs = (np.array(ends) for ends in zip(*found, strict=True))
    limiting = int(np.argmin(places)) if np.isfinite(places).any() else int(np.argmin(lows))
    return Crossing(float(lows.min()), float(places.min()), float(highs.min()), limiting)


def _crossing_of(
    number: int, easy: tuple[float, Estimate], hard: tuple[float, Estimate]
) -> tuple[float, float, float]:
    """Return low end, place and high end of one bound's crossing."""
    (left, first), (right, second) = easy, hard
    a, b, bound = first.means[number], second.means[number], first.bounds[number]
    if first.refusal or second.refusal or np.isnan(a).any() or np.isnan(b).any():
        return _by_steps(number, easy, hard)
    if bound.allowed <= 0 or not (a.any() or b.any()):
        return _by_steps(number, easy, hard)
    curve = _curve(bound, float(a.mean()), float(b.mean()), first.count, right - left)
    if curve is None:
        return _by_steps(number, easy, hard)
    mean_at, excess_at = curve
    quantile = t_quantile(first.confidence or CONFIDENCE, len(a) - 1) if len(a) > 1 else math.inf

    def end(sign: float) -> Callable[[float], float]:
        def excess(place: float) -> float:
            inside = mean_at(min(max(place, left), right) - left)
            values = a + (inside - a.mean()) / (b.mean() - a.mean()) * (b - a)
            spread = float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
            mean = mean_at(place - left)
            if bound.kind != "growth":  # beyond the two, the relative spread is that of the end
                spread *= mean / inside
            return excess_at(mean, sign * quantile * spread)

        return excess

    reach = right - left
    low, middle, high = (_root(end(sign), left - reach, right + reach) for sign in (1.0, 0.0, -1.0))
    return low, middle, high


def _curve(
    bound: Bound, a: float, b: float, count: int, width: float
) -> tuple[Callable[[float], float], Callable[[float, float], float]] | None:
    """Return a bound's mean by the distance from the left, and its excess; None if it falls."""
    if bound.kind == "growth":
        if b <= a:
            return None
        return (
            lambda way: a + (b - a) * way / width,
            lambda mean, half: (mean + half) / bound.allowed - 1,
        )
    least = 0.5 / max(count, 1)
    low, high = max(a, least), max(b, least)
    if high <= low:
        return None
    slope = math.log(high / low) / width
    return (
        lambda way: low * math.exp(slope * way),
        lambda mean, half: _log_excess(mean / bound.allowed, half / mean),
    )


def _log_excess(excess: float, relative: float) -> float:
    """Return the logarithm of an excess that is moved by its relative half-width, up or down.

    The way up is the longer one: there the spread is that share of the end, not of the mean.
    """
    if relative >= 0:
        return math.log(excess) - math.log(1 - min(relative, _MOST_RELATIVE))
    return math.log(excess) + math.log(1 - min(-relative, _MOST_RELATIVE))


def _by_steps(
    number: int, easy: tuple[float, Estimate], hard: tuple[float, Estimate]
) -> tuple[float, float, float]:
    """Return a crossing of a bound that does not rise smoothly: it lies beyond, before, between."""
    (left, first), (right, second) = easy, hard
    (a, a_low, a_high), (b, b_low, b_high) = first.excess(number), second.excess(number)
    low = math.inf if not b_high > 1 else left if not a_high > 1 else -math.inf
    high = -math.inf if a_low > 1 else right if b_low > 1 else math.inf
    place = math.inf if not b > 1 else (left + right) / 2 if not a > 1 else -math.inf
    return low, place, high


def _root(rising: Callable[[float], float], left: float, right: float) -> float:
    """Return where a rising function is 0; infinite if that isn't in the range."""
    if rising(left) > 0:
        return -math.inf
    if rising(right) < 0:
        return math.inf
    for _ in range(_BISECTIONS):
        middle = (left + right) / 2
        left, right = (left, middle) if rising(middle) > 0 else (middle, right)
    return (left + right) / 2
