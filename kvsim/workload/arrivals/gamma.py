"""Gamma arrivals: like Poisson, but in bursts, or more evenly."""

from typing import Literal

import numpy as np

from kvsim.policy import Policy
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.arrivals._renewal import renewal_arrivals
from kvsim.workload.limits import Burstiness, Rate


class Gamma(Policy):
    """Gamma-distributed gaps of mean 1 / `rate_per_s`.

    `burstiness` is that of `vllm bench serve --burstiness`: the shape of the gamma law. The gaps'
    coefficient of variation is 1 / sqrt(burstiness).
    """

    kind: Literal["gamma"] = "gamma"
    rate_per_s: Rate
    """Mean requests per second."""
    burstiness: Burstiness
    """Below 1: in bursts; 1: Poisson; above 1: more evenly."""

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Draw the arrivals; see `ArrivalProcess`."""
        scale_s = 1 / (self.rate_per_s * self.burstiness)
        return renewal_arrivals(
            lambda size: rng.gamma(self.burstiness, scale_s, size), count, duration_ns
        )
