"""Each replica in turn, whatever its load."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kvsim.engine.request import RequestView
from kvsim.engine.routers import ReplicaView, Router
from kvsim.policy import Policy


class RoundRobin(Policy):
    """Requests go to the replicas in turn."""

    kind: Literal["round_robin"] = "round_robin"

    def build(self, rng: np.random.Generator) -> Router:
        """Return the router."""
        return _RoundRobin()


class _RoundRobin(Router):
    is_blind = draws = True

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        return self.draw(len(replicas))[0]

    def draw(self, replicas: int) -> Sequence[int]:
        self._turn = (self._turn + 1) % replicas
        return (self._turn,)
