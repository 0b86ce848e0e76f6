"""Renewal processes: arrivals whose gaps are drawn independently of each other."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.units import NS_PER_S
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.limits import refuse_late

_BATCH = 4096


def renewal_arrivals(
    gaps_s: Callable[[int], NDArray[np.float64]], count: int | None, duration_ns: int | None
) -> Arrivals:
    """Add up gaps into arrival times; the first arrival comes after the first gap.

    Gaps are rounded to nanoseconds before they are summed, so that the sums are exact and a
    longer run begins with the arrivals of a shorter one.

    Args:
        gaps_s: Draws so many gaps, in seconds.
        count: So many requests, or None.
        duration_ns: No arrival at or after it, or None.

    Raises:
        InputError: If neither `count` nor `duration_ns` is given, or `count` requests take longer
            than a run can last.
    """
    if count is None and duration_ns is None:
        raise InputError("say how much arrives: num_requests or duration_s")
    end_ns = np.iinfo(np.int64).max if duration_ns is None else duration_ns
    batches = [np.zeros(0, dtype=np.int64)]
    drawn, last_ns = 0, 0
    while last_ns < end_ns and (count is None or drawn < count):
        size = _BATCH if count is None else min(_BATCH, count - drawn)
        times = last_ns + np.cumsum(np.rint(gaps_s(size) * NS_PER_S).astype(np.int64))
        batches.append(times)
        drawn, last_ns = drawn + size, int(times[-1])
        if duration_ns is None:
            refuse_late(last_ns)
    times_ns = np.concatenate(batches)
    times_ns = times_ns[times_ns < end_ns]
    return Arrivals(times_ns, horizon_of(times_ns, count, duration_ns))


def horizon_of(times_ns: NDArray[np.int64], count: int | None, duration_ns: int | None) -> int:
    """Return when arrivals end: after the duration, or just after the last one of the count."""
    if duration_ns is not None and (count is None or len(times_ns) < count):
        return duration_ns
    return int(times_ns[-1]) + 1 if len(times_ns) else 0
