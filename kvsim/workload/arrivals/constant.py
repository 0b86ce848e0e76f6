"""Constant arrivals: a metronome, as a load generator with a fixed rate."""

from typing import Literal

import numpy as np

from kvsim.errors import InputError
from kvsim.policy import Policy
from kvsim.units import NS_PER_S
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.arrivals._renewal import horizon_of
from kvsim.workload.limits import Rate, refuse_late, refuse_many


class Constant(Policy):
    """Request i arrives at i / `rate_per_s`, the first at 0."""

    kind: Literal["constant"] = "constant"
    rate_per_s: Rate
    """Requests per second."""

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Lay out the arrivals, nothing is drawn; see `ArrivalProcess`."""
        sizes = [count] if count is not None else []
        if duration_ns is not None:
            sizes.append(int(duration_ns / NS_PER_S * self.rate_per_s) + 2)
        if not sizes:
            raise InputError("say how much arrives: num_requests or duration_s")
        refuse_many(min(sizes))
        gap_ns = NS_PER_S / self.rate_per_s
        if duration_ns is None:
            refuse_late((min(sizes) - 1) * gap_ns)
        times_ns = np.rint(np.arange(min(sizes)) * gap_ns).astype(np.int64)
        if duration_ns is not None:
            times_ns = times_ns[times_ns < duration_ns]
        return Arrivals(times_ns, horizon_of(times_ns, count, duration_ns))
