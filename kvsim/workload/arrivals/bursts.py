"""Bursts: two rates that take turns, as when a crowd comes and goes."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvsim.policy import Policy
from kvsim.rng import stream
from kvsim.units import NS_PER_S
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.arrivals._rate_curve import RateCurve
from kvsim.workload.arrivals._renewal import modulated_arrivals
from kvsim.workload.limits import Rate, RateOrZero, refuse_pieces


class Bursts(Policy):
    """Poisson arrivals whose rate jumps between two values (Markov-modulated Poisson process).

    Bursts and the gaps between them last exponentially distributed times; a run starts in a burst
    as often as one is under way at any time. With p the bursts' share of the time,
    mean_burst_s / (mean_burst_s + mean_gap_s), the mean rate is r = p × burst_rate_per_s +
    (1 - p) × base_rate_per_s. The index of dispersion of a long time's arrivals (1 for Poisson) is
    1 + 2 p (1 - p) (burst_rate_per_s - base_rate_per_s)² / (r (1/mean_burst_s + 1/mean_gap_s)).
    """

    kind: Literal["bursts"] = "bursts"
    base_rate_per_s: RateOrZero
    """Mean requests per second between bursts; 0: none."""
    burst_rate_per_s: Rate
    """Mean requests per second within a burst, more than `base_rate_per_s`."""
    mean_burst_s: float = Field(ge=1e-3, le=1e7)
    """Mean length of a burst."""
    mean_gap_s: float = Field(ge=1e-3, le=1e7)
    """Mean time from the end of a burst to the next."""

    @model_validator(mode="after")
    def _bursts_stand_out(self) -> "Bursts":
        if self.burst_rate_per_s <= self.base_rate_per_s:
            raise ValueError("burst_rate_per_s must be more than base_rate_per_s")
        return self

    @property
    def rate_per_s(self) -> float:
        """Mean rate: that of each state, weighted by its share of the time."""
        burst = self._burst_fraction
        return burst * self.burst_rate_per_s + (1 - burst) * self.base_rate_per_s

    @property
    def index_of_dispersion(self) -> float:
        """Variance over mean of the arrivals in a long time; 1 for a Poisson process.

        The limit of variance over mean, from Fischer and Meier-Hellstern, "The Markov-modulated
        Poisson process cookbook" (1993), for two states.
        """
        burst = self._burst_fraction
        difference_per_s = self.burst_rate_per_s - self.base_rate_per_s
        forgotten_per_s = 1 / self.mean_burst_s + 1 / self.mean_gap_s
        rate_variance = burst * (1 - burst) * difference_per_s**2
        return 1 + 2 * rate_variance / (forgotten_per_s * self.rate_per_s)

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Draw the arrivals, a longer run's begin with a shorter one's; see `ArrivalProcess`."""
        seed = int(rng.integers(2**32))
        return modulated_arrivals(
            rng.standard_exponential, lambda end_ns: self._curve(seed, end_ns), count, duration_ns
        )

    @property
    def _burst_fraction(self) -> float:
        return self.mean_burst_s / (self.mean_burst_s + self.mean_gap_s)

    def _curve(self, seed: int, end_ns: int) -> RateCurve:
        """Draw the states until they last beyond `end_ns`."""
        cycles = end_ns / NS_PER_S / (self.mean_burst_s + self.mean_gap_s)
        refuse_pieces(2 * cycles, "longer mean_burst_s and mean_gap_s")
        rng = stream(seed, "bursts")
        means_s = np.array([self.mean_burst_s, self.mean_gap_s])
        rates = np.array([self.burst_rate_per_s, self.base_rate_per_s])
        if rng.random() >= self._burst_fraction:
            means_s, rates = means_s[::-1], rates[::-1]
        parts: list[NDArray[np.int64]] = []
        last_ns = 0
        while last_ns <= end_ns:
            stays_s = rng.standard_exponential((int(cycles) + 8, 2)) * means_s
            stays_ns = np.maximum(np.rint(stays_s.ravel() * NS_PER_S), 1).astype(np.int64)
            parts.append(last_ns + np.cumsum(stays_ns))
            last_ns = int(parts[-1][-1])
        ends_ns = np.concatenate(parts)
        rate_per_s = np.tile(rates, len(ends_ns) // 2)
        return RateCurve(ends_ns, rate_per_s, rate_per_s)
