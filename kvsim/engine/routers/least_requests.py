"""The replica with the fewest requests, waiting and running together; the first of equals."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kvsim.engine.request import RequestView
from kvsim.engine.routers import ReplicaView, Router
from kvsim.policy import Policy


class LeastRequests(Policy):
    """Requests join the replica that has the fewest."""

    kind: Literal["least_requests"] = "least_requests"

    def build(self, rng: np.random.Generator) -> Router:
        """Return the router."""
        return _LeastRequests()


class _LeastRequests:
    shares_queue = False

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        loads = [replica.requests for replica in replicas]
        return loads.index(min(loads))
