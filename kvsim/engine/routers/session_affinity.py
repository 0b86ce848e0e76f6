"""All turns of a session to one replica, found by rendezvous hashing (Thaler and Ravishankar 1998).

Each replica bids a hash of its index and the session, and the highest bid wins: with one replica
more, only those sessions move that the new one wins.
"""

from collections.abc import Sequence
from hashlib import shake_128
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
        # One hash as long as needed: the bids of the first replicas don't depend on further ones.
        bids = shake_128(self._key + session.to_bytes(8, "big")).digest(8 * len(replicas))
        return int(np.frombuffer(bids, dtype=">u8").argmax())
