"""The less loaded of two replicas drawn at random (Mitzenmacher 2001, "The power of two choices").

It needs the loads of two replicas only, and does not herd when these are old.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kvsim.engine.request import RequestView
from kvsim.engine.routers import ReplicaView, Router, SeesLoads


class PowerOfTwo(SeesLoads):
    """Each request goes to the one of two replicas drawn at random that has fewer requests."""

    kind: Literal["power_of_two"] = "power_of_two"

    def build(self, rng: np.random.Generator) -> Router:
        """Return the router."""
        return _PowerOfTwo(rng, self.view_delay_ns)


class _PowerOfTwo(Router):
    draws = True
    least = "requests"

    def __init__(self, rng: np.random.Generator, view_delay_ns: int) -> None:
        self._rng = rng
        self.view_delay_ns = view_delay_ns

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        first, other = self.draw(len(replicas))
        return other if replicas[other].requests < replicas[first].requests else first

    def draw(self, replicas: int) -> Sequence[int]:
        if replicas == 1:
            return 0, 0
        first = int(self._rng.integers(replicas))
        other = int(self._rng.integers(replicas - 1))
        return first, other + (other >= first)  # any but the first, all as likely
