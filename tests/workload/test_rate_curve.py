import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.workload.arrivals._rate_curve import RateCurve

SECOND = 10**9
RATES = st.sampled_from([0.0, 0.5, 1.0, 7.5, 400.0])
PIECES = st.lists(st.tuples(st.integers(SECOND, 500 * SECOND), RATES, RATES), min_size=1)


def curve_of(pieces) -> RateCurve:
    lengths, first, last = (np.array(column) for column in zip(*pieces, strict=True))
    return RateCurve(np.cumsum(lengths), first.astype(float), last.astype(float))


def area(pieces, time_ns) -> float:
    """The integral up to a time, piece by piece, from the rate's mean over what is covered."""
    total, start = 0.0, 0
    for length, first, last in pieces:
        covered = min(max(time_ns - start, 0), length)
        at_end = first + (last - first) * covered / length
        total += covered / SECOND * (first + at_end) / 2
        start += length
    return total


@given(pieces=PIECES, fractions=st.lists(st.floats(0, 1, exclude_max=True), max_size=30))
def test_the_times_are_the_inverse_of_the_expected_requests(pieces, fractions):
    curve = curve_of(pieces)
    total = float(curve.expected()[-1])
    assert total == pytest.approx(area(pieces, curve.ends_ns[-1]), rel=1e-12)
    wanted = np.sort(np.array(fractions)) * total
    if total == 0:
        return
    times = curve.when_ns(wanted)
    assert times.dtype == np.int64
    assert (np.diff(times) >= 0).all()
    assert (times >= 0).all()
    assert (times < curve.ends_ns[-1]).all()
    # A nanosecond at the highest rate is 4e-7 requests.
    got = [area(pieces, time) for time in times]
    assert got == pytest.approx(wanted.tolist(), rel=1e-9, abs=1e-6)


@given(pieces=PIECES, share=st.floats(0, 1))
def test_expected_requests_before_a_time(pieces, share):
    curve = curve_of(pieces)
    time_ns = int(share * int(curve.ends_ns[-1]))
    assert curve.expected_before(time_ns) == pytest.approx(
        area(pieces, time_ns), rel=1e-9, abs=1e-6
    )


def test_nothing_comes_while_the_rate_is_zero():
    curve = curve_of([(SECOND, 1.0, 1.0), (9 * SECOND, 0.0, 0.0), (SECOND, 1.0, 1.0)])
    times = curve.when_ns(np.array([0.25, 0.999, 1.0, 1.5]))
    assert times.tolist() == [SECOND // 4, 999 * SECOND // 1000, 10 * SECOND, 21 * SECOND // 2]


def test_a_ramp_from_zero_is_a_square_root():
    curve = curve_of([(10 * SECOND, 0.0, 2.0)])
    assert curve.when_ns(np.array([0.0, 0.1, 2.5, 6.4])).tolist() == [
        0, SECOND, 5 * SECOND, 8 * SECOND,
    ]  # fmt: skip
