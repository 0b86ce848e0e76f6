"""Renewal processes: gaps drawn independently of each other, at a steady rate or along a curve."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.units import NS_PER_S
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.arrivals._rate_curve import RateCurve
from kvsim.workload.limits import LATEST_NS, refuse_late, refuse_many

_BATCH = 4096

Gaps = Callable[[int], NDArray[np.float64]]  # draws so many


def renewal_arrivals(gaps_s: Gaps, count: int | None, duration_ns: int | None) -> Arrivals:
    """Add up gaps into arrival times; the first arrival comes after the first gap.

    A longer run begins with the arrivals of a shorter one.

    Args:
        gaps_s: Draws so many gaps, in seconds.
        count: So many requests, or None.
        duration_ns: No arrival at or after it, or None.

    Raises:
        InputError: If neither `count` nor `duration_ns` is given, there are more requests than a
            run holds, or they take longer than a run can last.
    """
    times_ns = sum_gaps(gaps_s, count, duration_ns)
    return Arrivals(times_ns, horizon_of(times_ns, count, duration_ns))


def modulated_arrivals(
    gaps: Gaps,
    curve_until: Callable[[int], RateCurve],
    count: int | None,
    duration_ns: int | None,
) -> Arrivals:
    """Like `renewal_arrivals`, but with a rate that changes: exact inversion, nothing is thinned.

    Args:
        gaps: Draws so many gaps of mean 1, counted in expected requests.
        curve_until: Returns a rate that ends after the given time (ns). A longer one must begin
            with the pieces of a shorter one; then a longer run's arrivals begin with a shorter's.
        count: So many requests, or None.
        duration_ns: No arrival at or after it, or None.

    Raises:
        InputError: As `renewal_arrivals`, and if the rate changes too often.
    """
    if duration_ns is None:
        places = sum_gaps(gaps, count, None) / NS_PER_S
        times_ns = _curve_beyond(float(places[-1]), curve_until).when_ns(places)
        refuse_late(times_ns[-1])
    else:
        curve = curve_until(duration_ns)
        expected = curve.expected_before(duration_ns)
        refuse_many(expected if count is None else min(count, expected))
        # A little more than expected, so that rounding takes no arrival away: times decide.
        places = sum_gaps(gaps, count, round((expected + 1e-6) * NS_PER_S)) / NS_PER_S
        times_ns = curve.when_ns(places[places < curve.expected()[-1]])
        times_ns = times_ns[times_ns < duration_ns]
    return Arrivals(times_ns, horizon_of(times_ns, count, duration_ns))


def sum_gaps(gaps: Gaps, count: int | None, end: int | None) -> NDArray[np.int64]:
    """Return sums of gaps, in billionths of their unit (seconds become nanoseconds), below an end.

    Gaps are rounded before they are summed, so that the sums are exact.

    Args:
        gaps: Draws so many gaps.
        count: So many sums, or None.
        end: No sum at or above it, or None.

    Raises:
        InputError: As `renewal_arrivals`.
    """
    if count is None and end is None:
        raise InputError("say how much arrives: num_requests or duration_s")
    beyond = np.iinfo(np.int64).max if end is None else end
    batches = [np.zeros(0, dtype=np.int64)]
    drawn, last = 0, 0
    while last < beyond and (count is None or drawn < count):
        size = _BATCH if count is None else min(_BATCH, count - drawn)
        sums = last + np.cumsum(np.rint(gaps(size) * NS_PER_S).astype(np.int64))
        batches.append(sums)
        drawn, last = drawn + size, int(sums[-1])
        refuse_many(drawn - size)
        if end is None:
            refuse_late(last)
    every = np.concatenate(batches)
    return every[every < beyond]


def horizon_of(times_ns: NDArray[np.int64], count: int | None, duration_ns: int | None) -> int:
    """Return when arrivals end: after the duration, or just after the last one of the count."""
    if duration_ns is not None and (count is None or len(times_ns) < count):
        return duration_ns
    return int(times_ns[-1]) + 1 if len(times_ns) else 0


def _curve_beyond(requests: float, curve_until: Callable[[int], RateCurve]) -> RateCurve:
    """Return a rate so long that it promises more than so many requests."""
    end_ns = NS_PER_S
    while True:
        curve = curve_until(min(end_ns, LATEST_NS))
        if curve.expected()[-1] > requests:
            return curve
        refuse_late(end_ns)
        end_ns *= 2
