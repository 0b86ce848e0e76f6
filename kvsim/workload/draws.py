"""Draws that several laws make: how many turns, how long a pause, how many tokens."""

from math import log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.units import NS_PER_S
from kvsim.workload.limits import LATEST_NS, MOST_TOKENS

CountKind = Literal["fixed", "geometric", "uniform"]
PauseKind = Literal["exponential", "constant", "lognormal"]


def why_no_count(kind: CountKind, mean: float) -> str | None:
    """Return why counts of this kind can't have this mean; None if they can."""
    if kind == "fixed" and mean % 1:
        return f"must be a whole number where the count is fixed, not {mean:g}"
    if kind == "uniform" and mean % 0.5:
        return f"must be a multiple of 0.5 where counts are uniform, not {mean:g}"
    return None


def draw_counts(
    kind: CountKind, mean: float, size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw counts of at least 1: all alike, geometric, or uniform from 1 to 2 * mean - 1."""
    if kind == "fixed":
        return np.full(size, round(mean), dtype=np.int64)
    if kind == "uniform":
        return rng.integers(1, round(2 * mean), size)
    counts: NDArray[np.int64] = rng.geometric(1 / mean, size)
    return counts


def why_no_pause(kind: PauseKind, cv: float | None) -> str | None:
    """Return why a coefficient of variation doesn't fit pauses of this kind; None if it does."""
    if kind == "lognormal" and cv is None:
        return "must be given where pauses are lognormal"
    if kind != "lognormal" and cv is not None:
        return f"is only for lognormal pauses, these are {kind}"
    return None


def draw_pauses_ns(
    kind: PauseKind, mean_s: float, cv: float | None, size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw pauses of this mean, rounded to nanoseconds, none longer than 1e9 s."""
    if kind == "constant":
        share = np.ones(size)
    elif kind == "exponential":
        share = rng.exponential(1.0, size)
    else:
        share = _lognormal_of_mean_one(cv or 0.0, size, rng)
    pauses_s: NDArray[np.float64] = np.minimum(mean_s * share, LATEST_NS / NS_PER_S)
    return np.rint(pauses_s * NS_PER_S).astype(np.int64)


def draw_tokens(
    mean_tokens: float, cv: float, most_tokens: int | None, size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw lognormal lengths, rounded, from 1 to `most_tokens`; None: to 1e8."""
    lengths = mean_tokens * _lognormal_of_mean_one(cv, size, rng)
    return np.clip(np.rint(lengths), 1, most_tokens or MOST_TOKENS).astype(np.int64)


def _lognormal_of_mean_one(cv: float, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw from the lognormal law of mean 1: sigma² = ln(1 + cv²), mu = -sigma² / 2."""
    variance = log(1 + cv**2)
    return rng.lognormal(-variance / 2, sqrt(variance), size)
