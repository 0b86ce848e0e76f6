"""One queue for all replicas; whichever has room takes its head (c servers, M/M/c)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kvsim.engine.request import RequestView
from kvsim.engine.routers import ReplicaView, Router
from kvsim.policy import Policy


class SharedQueue(Policy):
    """Replicas draw from one common queue."""

    kind: Literal["shared_queue"] = "shared_queue"

    def build(self, rng: np.random.Generator) -> Router:
        """Return the router."""
        return _SharedQueue()


class _SharedQueue(Router):
    shares_queue = True

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        raise AssertionError("a shared queue leaves the choice to the replicas")
