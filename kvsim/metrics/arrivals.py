"""When requests arrive: rates and peaks, and how unevenly, at several scales of time."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from kvsim.units import NS_PER_S, format_duration, seconds_to_ns

WINDOWS_S = (1.0, 10.0, 60.0, 600.0)
FEWEST_WINDOWS = 10  # a variance of fewer counts says nothing
# Index of dispersion up to which counts are called so; Poisson has 1.
DISPERSION_WORDS = (
    (0.7, "more even than Poisson"),
    (1.5, "about as uneven as Poisson"),
    (5.0, "burstier than Poisson"),
    (float("inf"), "far burstier than Poisson"),
)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """One scale of time.

    Attributes:
        seconds: Length of the window.
        peak_per_s: Rate in the busiest such window, wherever it begins; None: the log is shorter,
            or so short that the requests at both its ends lift the mean above it.
        dispersion: Variance over mean of the counts in windows side by side (Poisson: 1); None:
            there are fewer than `FEWEST_WINDOWS`, or times are too coarse.
    """

    seconds: float
    peak_per_s: float | None
    dispersion: float | None


@dataclass(frozen=True, slots=True)
class ArrivalFigures:
    """How requests arrive.

    Attributes:
        requests: How many.
        duration_s: From the first to the end of the log.
        rate_per_s: Mean rate.
        gap_cv: Coefficient of variation of the gaps (Poisson: 1); None for fewer than two gaps.
        tick_s: Step of the recorded times if most requests share theirs with others, else None.
        windows: The figures at each of `WINDOWS_S`.
    """

    requests: int
    duration_s: float
    rate_per_s: float
    gap_cv: float | None
    tick_s: float | None
    windows: tuple[Window, ...]


def arrival_figures(times_ns: Ints, end_ns: int) -> ArrivalFigures:
    """Describe sorted arrival times, shape (requests,), observed from 0 up to `end_ns`."""
    tick_ns = tick(times_ns)
    rate_per_s = len(times_ns) * NS_PER_S / end_ns
    windows = []
    for seconds in WINDOWS_S:
        window_ns = seconds_to_ns(seconds)
        # Inside a tick nothing is known, and up to a few of them counts jump with the rounding.
        seen = window_ns >= 2 * tick_ns
        peak = peak_count(times_ns, window_ns) / seconds if seen and window_ns <= end_ns else None
        if peak is not None and peak < rate_per_s * (1 - 1e-9):
            peak = None
        index = dispersion(times_ns, end_ns, window_ns) if seen else None
        windows.append(Window(seconds, peak, index))
    return ArrivalFigures(
        requests=len(times_ns),
        duration_s=end_ns / NS_PER_S,
        rate_per_s=rate_per_s,
        gap_cv=gap_cv(times_ns),
        tick_s=tick_ns / NS_PER_S or None,
        windows=tuple(windows),
    )


def counts(times_ns: Ints, end_ns: int, window_ns: int) -> Ints:
    """Count arrivals in windows side by side from 0; a last one that is cut short is left out."""
    whole = end_ns // window_ns
    places = times_ns // window_ns
    return np.bincount(places[places < whole], minlength=whole).astype(np.int64)


def dispersion(times_ns: Ints, end_ns: int, window_ns: int) -> float | None:
    """Return the index of dispersion of counts, variance over mean, for one length of window.

    Cox and Lewis, The Statistical Analysis of Series of Events (1966), chapter 4. None if there
    are fewer than `FEWEST_WINDOWS` windows, or no arrival in them.
    """
    whole = end_ns // window_ns
    places = times_ns // window_ns
    places = places[: np.searchsorted(places, whole)]
    if whole < FEWEST_WINDOWS or not len(places):
        return None
    # Only windows with arrivals are kept: a log of years may have very many without.
    first = np.flatnonzero(np.diff(places, prepend=-1))
    filled = np.diff(first, append=len(places))
    mean = len(places) / whole
    squares = ((filled - mean) ** 2).sum() + (whole - len(filled)) * mean**2
    return float(squares / (whole - 1) / mean)


def poisson_range(windows: float) -> tuple[float, float]:
    """Return between which indices of dispersion 95 % of Poisson logs lie, for so many windows.

    The index is a chi-square variable over its degrees of freedom, one less than the windows; its
    quantiles by the cube-root law of Wilson and Hilferty (PNAS 17, 1931).
    """
    spread = 2 / (9 * (windows - 1))
    low, high = ((1 - spread + side * 1.96 * sqrt(spread)) ** 3 for side in (-1, 1))
    return low, high


def peak_count(times_ns: Ints, window_ns: int) -> int:
    """Return the most arrivals in any half-open window of this length."""
    ends = np.searchsorted(times_ns, times_ns + window_ns)
    return int((ends - np.arange(len(times_ns))).max(initial=0))


def gap_cv(times_ns: Ints) -> float | None:
    """Return standard deviation over mean of the gaps between arrivals, if that is defined."""
    gaps = np.diff(times_ns)
    if len(gaps) < 2 or not gaps.any():
        return None
    return float(gaps.std(ddof=1) / gaps.mean())


def tick(times_ns: Ints) -> int:
    """Return the usual step between recorded times if most requests share theirs, else 0."""
    gaps = np.diff(times_ns)
    steps = gaps[gaps > 0]
    return int(np.median(steps)) if len(steps) and 2 * len(steps) < len(gaps) else 0


def burstiness(arrivals: ArrivalFigures) -> str:
    """Say in words how uneven arrivals are, at the shortest and at the longest scale known."""
    known = [window for window in arrivals.windows if window.dispersion is not None]
    if not known:
        return "too few to judge how evenly"
    short, long = known[0], known[-1]
    words = [
        _dispersion_words(window.dispersion or 0.0, arrivals.duration_s / window.seconds)
        for window in (short, long)
    ]
    if words[0] == words[1]:
        return f"{words[0]} at every scale up to {format_duration(long.seconds)}"
    return (
        f"{words[0]} over {format_duration(short.seconds)} and {words[1]} over "
        f"{format_duration(long.seconds)}"
    )


def _dispersion_words(index: float, windows: float) -> str:
    """Say what an index means; one that a Poisson log may show too (95 %) is called so."""
    low, high = poisson_range(windows)
    by_chance = low <= index <= high
    return next(words for most, words in DISPERSION_WORDS if (1.0 if by_chance else index) <= most)
