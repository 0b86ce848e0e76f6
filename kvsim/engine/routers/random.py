"""Any replica, each as likely as the others."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kvsim.engine.request import RequestView
from kvsim.engine.routers import ReplicaView, Router
from kvsim.policy import Policy


class Random(Policy):
    """Each request goes to a replica drawn at random, whatever its load."""

    kind: Literal["random"] = "random"

    def build(self, rng: np.random.Generator) -> Router:
        """Return the router."""
        return _Random(rng)


class _Random(Router):
    is_blind = draws = True

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        return self.draw(len(replicas))[0]

    def draw(self, replicas: int) -> Sequence[int]:
        return (int(self._rng.integers(replicas)),)
