"""Routers: each file here is one, a `Policy` that builds the chooser of a replica."""

from collections.abc import Sequence
from typing import Protocol

from kvsim.engine.request import RequestView


class ReplicaView(Protocol):
    """What a router may see of a replica."""

    @property
    def waiting_seqs(self) -> int:
        """Requests in its queue."""
        ...

    @property
    def running_seqs(self) -> int:
        """Requests admitted."""
        ...


class Router(Protocol):
    """Chooses the replica of each arriving request.

    With `shares_queue` nothing is chosen: all replicas draw from one queue.
    """

    shares_queue: bool

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the index of the replica. Replicas are as they were before this instant."""
        ...
