"""Poisson arrivals: independent clients, gaps exponentially distributed."""

from typing import Literal

import numpy as np

from kvsim.policy import Policy
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.arrivals._renewal import renewal_arrivals
from kvsim.workload.limits import Rate


class Poisson(Policy):
    """Many independent clients: exponential gaps of mean 1 / `rate_per_s`."""

    kind: Literal["poisson"] = "poisson"
    rate_per_s: Rate
    """Mean requests per second."""

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Draw the arrivals; see `ArrivalProcess`."""
        return renewal_arrivals(
            lambda size: rng.exponential(1 / self.rate_per_s, size), count, duration_ns
        )
