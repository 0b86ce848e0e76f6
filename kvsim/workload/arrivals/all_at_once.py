"""All at once: an offline batch, handed over at the start."""

from typing import Literal

import numpy as np

from kvsim.errors import InputError
from kvsim.policy import Policy
from kvsim.workload.arrivals import Arrivals


class AllAtOnce(Policy):
    """All requests arrive at 0."""

    kind: Literal["all_at_once"] = "all_at_once"

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Return `count` zeros, nothing is drawn; see `ArrivalProcess`."""
        if count is None:
            raise InputError("say how many requests arrive at once: num_requests")
        return Arrivals(np.zeros(count, dtype=np.int64), duration_ns or 0)
