"""A figure of a run in parts, taken again without some of them: how far can it be trusted?

The parts are 20 batches of requests in the order of their arrival, 20 equal parts of the time, or
replications. Requests that follow each other, and so resemble each other, are in the same batch.

- A mean is taken again without each of the parts (the jackknife; of batches it is the method of
  batch means), and has its interval by Student's t.
- A percentile is taken again on parts that are drawn, each as often as chance has it (the
  bootstrap; of batches in a row: Carlstein 1986, Künsch 1989). Its interval lies between quantiles
  of these, a little further out than 2.5 and 97.5 %, as Student's t is for so few parts (Hesterberg
  2015): it may reach further to one side, as that of a latency's percentile does.

The same parts are left out or drawn in every run, whichever it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.sample import Sample
from kvsim.rng import stream
from kvsim.statistics import BATCHES, CONFIDENCE, t_quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bounds = tuple[float, float]

DRAWS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A figure of one run, and what it is `again`: without each part, or on parts drawn by chance.

    `again` has shape (parts,) or (DRAWS,).
    """

    value: float
    again: Floats
    method: Literal["left out", "drawn"] = "left out"

    def bounds(self, value: float, again: Floats) -> Bounds:
        """Return the 95 % interval of something that was taken in the same way."""
        if self.method == "drawn":
            outside = _outside(BATCHES)
            low, high = np.quantile(again, [outside, 1 - outside]).tolist()
            return min(low, value), max(high, value)
        parts = len(again)
        error = math.sqrt((parts - 1) / parts * float(np.square(again - again.mean()).sum()))
        half = t_quantile(CONFIDENCE, parts - 1) * error
        return value - half, value + half


def _outside(parts: int) -> float:
    """Return the share of draws beyond either bound: that of a normal as far out as Student's t."""
    reach = math.sqrt(parts / (parts - 1)) * t_quantile(CONFIDENCE, parts - 1)
    return (1 - math.erf(reach / math.sqrt(2))) / 2


def mean_of(parts: Floats, counts: Ints | None = None) -> Estimate:
    """Return the mean of parts, without each of them in turn.

    Args:
        parts: The mean of each part, shape (parts,).
        counts: How many observations each part has; by default one.
    """
    weights = np.ones(len(parts)) if counts is None else counts.astype(np.float64)
    sums = parts * weights
    return Estimate(
        float(sums.sum() / weights.sum()), (sums.sum() - sums) / (weights.sum() - weights)
    )


def series_mean(series: Floats) -> Estimate:
    """Return the mean of at least 20 observations in a row, shape (n,), batch by batch."""
    part = _part_of(len(series))
    counts = np.bincount(part, minlength=BATCHES)
    return mean_of(np.bincount(part, series, BATCHES) / counts, counts)


def series_percentiles(series: Floats, percents: Sequence[float]) -> list[Estimate]:
    """Return percentiles of at least 20 observations in a row, shape (n,), on batches drawn."""
    order = np.argsort(series, kind="stable")
    part = _part_of(len(series))[order]
    places = [np.flatnonzero(part == one) for one in range(BATCHES)]
    sample = Sample.of(series)
    return [
        Estimate(
            sample.percentile(percent), sample.values[_drawn_ranks(places, percent / 100)], "drawn"
        )
        for percent in percents
    ]


def _part_of(count: int) -> Ints:
    return np.arange(count) * BATCHES // count


@cache
def _drawn_parts() -> Ints:
    """Return how often each part is drawn, shape (DRAWS, parts)."""
    even = np.full(BATCHES, 1 / BATCHES)
    drawn: Ints = stream(0, "compare: parts drawn").multinomial(BATCHES, even, DRAWS)
    return drawn


def _drawn_ranks(places: Sequence[Ints], share: float) -> Ints:
    """Return which of all values, by rank, is each draw's with a share of its own below.

    Args:
        places: Ranks of each part's values, in ascending order.
        share: From 0 to 1.
    """
    times, sizes = _drawn_parts(), np.array([len(ranks) for ranks in places])
    wanted = share * (times @ sizes - 1)
    low, high = np.zeros(DRAWS, np.int64), np.full(DRAWS, sizes.sum() - 1)
    while (low < high).any():
        middle = (low + high) // 2
        upto = np.stack([np.searchsorted(ranks, middle, "right") for ranks in places], axis=1)
        enough = (times * upto).sum(axis=1) > wanted
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return low
