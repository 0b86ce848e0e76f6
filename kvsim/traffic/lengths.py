"""How long prompts and answers are, and whether long prompts have long answers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (10, 50, 90, 99)


@dataclass(frozen=True, slots=True)
class LengthFigures:
    """Mean, percentiles (linear, as numpy's) and extremes of a length, in tokens."""

    mean_tokens: float
    min_tokens: int
    p10_tokens: float
    p50_tokens: float
    p90_tokens: float
    p99_tokens: float
    max_tokens: int


def length_figures(tokens: NDArray[np.int64]) -> LengthFigures:
    """Describe lengths, shape (requests,), at least one of them."""
    p10, p50, p90, p99 = (float(value) for value in np.percentile(tokens, PERCENTILES))
    return LengthFigures(
        float(tokens.mean()), int(tokens.min()), p10, p50, p90, p99, int(tokens.max())
    )


def rank_correlation(one: NDArray[np.int64], other: NDArray[np.int64]) -> float | None:
    """Return Spearman's rank correlation, ties sharing their mean rank; None if one is constant."""
    first, second = _ranks(one), _ranks(other)
    if not (first.std() and second.std()):
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: NDArray[np.int64]) -> NDArray[np.float64]:
    _, places, repeats = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(repeats)
    return np.asarray((last - (repeats - 1) / 2)[places], dtype=np.float64)
