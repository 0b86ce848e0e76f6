"""Closed loop: so many users, each of whom waits for the answer, thinks, and asks again."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvsim.errors import InputError
from kvsim.policy import Policy
from kvsim.units import NS_PER_S
from kvsim.workload.arrivals import Arrivals, Users
from kvsim.workload.limits import LATEST_NS, Seconds


class ClosedLoop(Policy):
    """A fixed number of users, each with one session at a time; the server's speed sets the rate.

    Say `num_requests`: the most sessions that they begin, together. `duration_s` may end it
    sooner.
    """

    kind: Literal["closed_loop"] = "closed_loop"
    users: int = Field(ge=1, le=10**6)
    """Number of users."""
    think_mean_s: Seconds = 0.0
    """Mean pause of a user between the end of a session and the next."""
    think_kind: Literal["constant", "exponential", "lognormal"] = "constant"
    """Law of the pauses."""
    think_cv: float = Field(default=1.0, ge=0, le=100)
    """Coefficient of variation of `lognormal` pauses."""
    ramp_up_s: Seconds = 0.0
    """Users start evenly over this time, the first at 0."""

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Draw the users' pauses, more for a longer run; see `ArrivalProcess`."""
        if count is None:
            raise InputError("say how many sessions the users begin at most: num_requests")
        starts_ns = np.rint(np.arange(self.users) * (self.ramp_up_s / self.users) * NS_PER_S)
        # Some laws know no bound, the clock does.
        think_ns = np.minimum(np.rint(self._thinks_s(count, rng) * NS_PER_S), LATEST_NS)
        users = Users(starts_ns.astype(np.int64), think_ns.astype(np.int64))
        return Arrivals(np.zeros(count, dtype=np.int64), duration_ns or 0, users=users)

    def _thinks_s(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        if self.think_kind == "exponential":
            return rng.exponential(self.think_mean_s, count)
        if self.think_kind == "lognormal":
            sigma = np.sqrt(np.log1p(self.think_cv**2))
            return self.think_mean_s * rng.lognormal(-(sigma**2) / 2, sigma, count)
        return np.full(count, self.think_mean_s)
