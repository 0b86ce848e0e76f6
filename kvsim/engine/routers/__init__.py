"""Routers: each file here is one, a `Policy` that builds the chooser of a replica.

A policy's `build(rng)` returns a new `Router`; `rng` is its own named stream.
"""

from collections.abc import Sequence
from typing import Protocol

from kvsim.engine.request import RequestView


class ReplicaView(Protocol):
    """What a router may see of a replica, as it was `view_delay_s` ago."""

    @property
    def requests(self) -> int:
        """Requests sent to it that have not left, waiting and running."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of these requests."""
        ...

    def cached_tokens(self, request: RequestView) -> int:
        """Return how many of the prompt's first tokens its prefix cache holds now; 0 without."""
        ...


class Router(Protocol):
    """Chooses the replica of each arriving request.

    With `shares_queue` nothing is chosen: all replicas draw from one queue.
    """

    shares_queue: bool

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the index of the replica. Replicas are as they were before this instant."""
        ...
