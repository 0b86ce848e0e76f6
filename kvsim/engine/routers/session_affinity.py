"""All turns of a session to one replica, found by rendezvous hashing (Thaler and Ravishankar 1998).

Each replica bids a hash of its index and the session, and the highest bid wins: with one replica
more, only those sessions move that the new one wins.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

import numpy as np

from kvsim.engine.request import RequestView
from kvsim.engine.routers import ReplicaView, Router
from kvsim.policy import Policy


class SessionAffinity(Policy):
    """All requests of a session go to the same replica, whatever its load.

    With one replica more, only the sessions that it gets move.
    """

    kind: Literal["session_affinity"] = "session_affinity"

    def build(self, rng: np.random.Generator) -> Router:
        """Return the router."""
        return _SessionAffinity(rng.bytes(16))


class _SessionAffinity(Router):
    def __init__(self, key: bytes) -> None:
        self._key = key  # drawn, so that repetitions don't share the luck of one hash

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        session = request.session if request.session >= 0 else request.number
        bids = [self._bid(session, index) for index in range(len(replicas))]
        return bids.index(max(bids))

    def _bid(self, session: int, index: int) -> bytes:
        named = session.to_bytes(8, "big") + index.to_bytes(8, "big")
        return blake2b(named, digest_size=8, key=self._key).digest()
