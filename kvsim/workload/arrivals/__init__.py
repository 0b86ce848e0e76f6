"""Arrival processes: each file here is one, a `Policy` that draws the arrival times."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kvsim.workload.traces import Trace  # formats of logs take a while to import


@dataclass(frozen=True, slots=True)
class Users:
    """A closed loop: a fixed number of users, each with one session at a time.

    Attributes:
        starts_ns: When each user is first ready, int64, shape (users,), never decreasing.
        think_ns: Pause after each session, int64, shape (sessions,).
    """

    starts_ns: NDArray[np.int64]
    think_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When the clients begin their sessions, and until when they would have begun more.

    A session is one request, unless the workload's `prompts` say that it has further turns.

    Attributes:
        times_ns: Sorted times from 0, int64, shape (sessions,); zeros in a closed loop, where
            users decide.
        horizon_ns: End of the arrivals, after the last of them. 0 if all arrive at once, or in a
            closed loop without a duration: such a run's own end is the horizon.
        recorded: The requests themselves, when the process replays real ones.
        users: Who sends them, in a closed loop.
    """

    times_ns: NDArray[np.int64]
    horizon_ns: int
    recorded: "Trace | None" = None
    users: Users | None = None


class ArrivalProcess(Protocol):
    """Draws when sessions begin.

    A process that knows its mean rate has it as `rate_per_s`, in sessions per second: then too
    many requests are refused before any is drawn (`Workload.foreseen_requests`).
    """

    kind: str

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Draw the arrivals.

        Args:
            count: So many sessions; None if only the time limits them.
            duration_ns: No arrival at or after it, and the horizon; None if only the count
                limits them. With both, whichever ends first.
            rng: The stream to draw from.

        Raises:
            InputError: If the process can't give what is asked, for example a trace that is too
                short, or neither `count` nor `duration_ns` where nothing else ends the arrivals.
        """
        ...
