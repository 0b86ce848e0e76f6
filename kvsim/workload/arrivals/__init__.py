"""Arrival processes: each file here is one, a `Policy` that draws the arrival times."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class ArrivalProcess(Protocol):
    """Draws when requests arrive."""

    kind: str

    def arrival_times_ns(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return sorted arrival times from 0, shape (requests,).

        At least one of `count` (so many requests) and `duration_ns` (none at or after it) is
        given; with both, whichever ends first.
        """
        ...
