"""A rate that changes with time, how many requests it promises, and when the next is due."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class RateCurve:
    """A rate from 0 on, linear in each of its pieces; it may jump between them.

    Attributes:
        ends_ns: End of each piece, int64, shape (pieces,), increasing.
        first_per_s: Rate at the start of each piece, shape (pieces,), not negative.
        last_per_s: Rate at the end of each piece, shape (pieces,), not negative.
    """

    ends_ns: NDArray[np.int64]
    first_per_s: NDArray[np.float64]
    last_per_s: NDArray[np.float64]

    def expected(self) -> NDArray[np.float64]:
        """Return the requests expected until each piece starts, and in all: shape (pieces + 1,)."""
        means_per_s = (self.first_per_s + self.last_per_s) / 2
        return np.concatenate([np.zeros(1), np.cumsum(self._lengths_s() * means_per_s)])

    def expected_before(self, time_ns: int) -> float:
        """Return the requests expected until a time that lies on the curve."""
        piece = int(np.searchsorted(self.ends_ns, time_ns))
        before_s = (time_ns - int(self._starts_ns()[piece])) / NS_PER_S
        gain = self._slopes()[piece] * before_s / 2
        return float(self.expected()[piece] + before_s * (self.first_per_s[piece] + gain))

    def when_ns(self, requests: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return when so many requests are expected to have come: the exact inverse.

        A Poisson process of rate 1, read through it, becomes one whose rate is the curve (time
        change; Çinlar, Introduction to Stochastic Processes, 1975, chapter 4.7).

        Args:
            requests: Never decreasing, from 0 and below all that the curve promises.

        Returns:
            Times inside the curve, int64, same shape, never decreasing.
        """
        expected = self.expected()
        # To the right: where the rate is 0 nothing comes, so that the next piece takes it.
        piece = np.searchsorted(expected[:-1], requests, side="right") - 1
        wanted = requests - expected[piece]
        first = self.first_per_s[piece]
        # The root of `first * x + slope * x**2 / 2 = wanted` that loses no digits when slope is 0.
        end = np.sqrt(np.maximum(first**2 + 2 * self._slopes()[piece] * wanted, 0))
        after_s = np.divide(2 * wanted, first + end, out=np.zeros(len(wanted)), where=wanted > 0)
        after_ns = np.rint(np.minimum(after_s, self._lengths_s()[piece]) * NS_PER_S)
        times_ns = self._starts_ns()[piece] + after_ns.astype(np.int64)
        times_ns = np.minimum(times_ns, self.ends_ns[piece] - 1)
        return np.maximum.accumulate(times_ns)  # floats may swap neighbors in a long piece

    def _starts_ns(self) -> NDArray[np.int64]:
        return np.concatenate([np.zeros(1, dtype=np.int64), self.ends_ns[:-1]])

    def _lengths_s(self) -> NDArray[np.float64]:
        return np.diff(self.ends_ns, prepend=0) / NS_PER_S

    def _slopes(self) -> NDArray[np.float64]:
        return (self.last_per_s - self.first_per_s) / self._lengths_s()
