"""Arrival processes: each file here is one, a `Policy` that draws the arrival times."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When the clients send their requests, and until when they would have sent more.

    Attributes:
        times_ns: Sorted arrival times from 0, int64, shape (requests,).
        horizon_ns: End of the arrivals, after the last of them. 0 if all arrive at once: such a
            run has no arrival phase to measure, its own end is the horizon.
        recorded_lengths: Prompt and output lengths of the same requests, each of shape
            (requests,), when the process replays real ones.
    """

    times_ns: NDArray[np.int64]
    horizon_ns: int
    recorded_lengths: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None


class ArrivalProcess(Protocol):
    """Draws when requests arrive."""

    kind: str

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Draw the arrivals.

        Args:
            count: So many requests; None if only the time limits them.
            duration_ns: No arrival at or after it, and the horizon; None if only the count
                limits them. With both, whichever ends first.
            rng: The stream to draw from.

        Raises:
            InputError: If the process can't give what is asked, for example a trace that is too
                short, or neither `count` nor `duration_ns` where nothing else ends the arrivals.
        """
        ...
