"""Statistics of values that occur more than once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A multiset of values, each with how often it occurs, in ascending order."""

    values: NDArray[np.float64]
    counts: NDArray[np.int64]
    ends: NDArray[np.int64]  # running sum of the counts

    @classmethod
    def of(cls, values: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> "Sample":
        """Sort values; without `counts` each occurs once."""
        if counts is None:
            values, counts = np.sort(values), np.ones(len(values), dtype=np.int64)
        else:
            order = np.argsort(values[counts > 0], kind="stable")
            values, counts = values[counts > 0][order], counts[counts > 0][order]
        return cls(values, counts, np.cumsum(counts))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def statistic(self, name: str) -> float | None:
        """Return `mean`, `max` or a percentile such as `p99`; None if there are no values."""
        if not len(self):
            return None
        if name == "mean":
            return float((self.values * self.counts).sum() / len(self))
        return float(self.values[-1]) if name == "max" else self.percentile(float(name[1:]))

    def percentile(self, percent: float) -> float:
        """Return numpy's linear percentile of the multiset, to the bit, without expanding it."""
        below, part = self.place(percent, len(self))
        ranks = np.array((below, min(below + 1, len(self) - 1)))
        low, high = self.values[np.searchsorted(self.ends, ranks, side="right")].tolist()
        # From the nearer end, as numpy does it.
        return float(low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part))

    @staticmethod
    def place(percent: float, count: int) -> tuple[int, float]:
        """Return after which of so many values, from 0, a percentile lies, and how far."""
        position = (count - 1) * (percent / 100)
        return int(position), position - int(position)
