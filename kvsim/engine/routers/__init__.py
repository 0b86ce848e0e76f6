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
    """Chooses the replica of each arriving request."""

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the index of the replica; -1 puts it in the queue that all replicas share."""
        ...
