"""How sure a figure is: from the requests of one run, or from replications of it.

Within one run, requests in the order of their arrival are a correlated series. A mean has its
interval from the means of 20 batches, a percentile from the share of requests below it in each
batch (`kvsim.statistics.percentile_interval`); fewer than 20 requests tell nothing. Replications
are independent: their figures have an interval by Student's t. Intervals are of 95 %.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.statistics import (
    BATCHES,
    Interval,
    batch_interval,
    effective_count,
    mean_interval,
    percentile_interval,
)

# By the name of the figure; figures of which nothing is known are not there.
Intervals = Mapping[str, Interval]


def interval_of(
    statistic: str,
    value: float | None,
    series: NDArray[np.float64],
    ascending: NDArray[np.float64],
) -> Interval | None:
    """Return the interval of a statistic within one run; None where nothing can be said.

    Args:
        statistic: `mean` or a percentile such as `p99`; the largest value has no interval.
        value: The statistic of the series.
        series: Of shape (n,), in the order of arrival, without the warm-up.
        ascending: The same values, sorted.
    """
    if value is None or statistic == "max" or len(series) < BATCHES:
        return None
    if statistic != "mean":
        interval = percentile_interval(series, float(statistic[1:]), ascending)
        return None if interval.low is None and interval.high is None else interval
    half = batch_interval(series).half_width  # its own mean leaves out what no batch takes
    assert half is not None, "there are several batches"
    return _above_zero(Interval(value, value - half, value + half, round(effective_count(series))))


def share_interval(happened: NDArray[np.bool_]) -> Interval | None:
    """Return the share of requests of which something is true, shape (n,) by arrival."""
    share = happened.astype(np.float64)
    interval = interval_of("mean", float(share.mean()), share, share) if len(share) else None
    if interval is None or interval.high is None:
        return interval
    return replace(interval, high=min(interval.high, 1.0))


def across(values: Sequence[float | None], signed: bool = False) -> Interval | None:
    """Return the mean of a figure over replications; None if one of them doesn't have it.

    A figure that is `signed` may be negative; others are so only if they are found so.
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values) or len(known) < 2:
        return None
    interval = mean_interval(known)
    return interval if signed or min(known) < 0 else _above_zero(interval)


def as_dicts(intervals: Intervals) -> dict[str, dict[str, Any]]:
    """Return intervals ready for JSON: mean, low, high, count."""
    return {name: asdict(interval) for name, interval in intervals.items()}


def _above_zero(interval: Interval) -> Interval:
    """Cut off what can't be: times, counts and shares are not negative."""
    return interval if interval.low is None else replace(interval, low=max(interval.low, 0.0))
