"""Closed loop: so many users, each of whom waits for the answer, thinks, and asks again."""

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from kvsim.errors import InputError
from kvsim.policy import Policy
from kvsim.units import NS_PER_S
from kvsim.workload.arrivals import Arrivals, Users
from kvsim.workload.draws import PauseKind, draw_pauses_ns, why_no_pause
from kvsim.workload.limits import Seconds


class ClosedLoop(Policy):
    """A fixed number of users, each with one session at a time; the server's speed sets the rate.

    Say `num_requests`: the most requests that they send, together. `duration_s` may end it
    sooner.
    """

    kind: Literal["closed_loop"] = "closed_loop"
    users: int = Field(ge=1, le=10**6)
    """Number of users."""
    think_mean_s: Seconds = 0.0
    """Mean pause of a user between the end of a session and the next."""
    think_kind: PauseKind = "constant"
    """How that time is distributed."""
    think_cv: float | None = Field(default=None, ge=0, le=100)
    """Coefficient of variation of that time, for lognormal only."""
    ramp_up_s: Seconds = 0.0
    """Users start evenly over this time, the first at 0."""

    @model_validator(mode="after")
    def _pauses_fit(self) -> "ClosedLoop":
        if why := why_no_pause(self.think_kind, self.think_cv):
            raise ValueError(f"think_cv {why}")
        return self

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Draw the users' pauses, more for a longer run; see `ArrivalProcess`."""
        if count is None:
            raise InputError("say how many requests the users send at most: num_requests")
        starts_ns = np.rint(np.arange(self.users) * (self.ramp_up_s / self.users) * NS_PER_S)
        think_ns = draw_pauses_ns(self.think_kind, self.think_mean_s, self.think_cv, count, rng)
        users = Users(starts_ns.astype(np.int64), think_ns)
        return Arrivals(np.zeros(count, dtype=np.int64), duration_ns or 0, users=users)
