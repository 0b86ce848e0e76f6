"""Routers: each file here is one, a `Policy` that builds the chooser of a replica.

A policy's `build(rng)` returns a new `Router`; `rng` is its own named stream. A policy that goes
by the loads of replicas derives from `SeesLoads`.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from pydantic import Field

from kvsim.engine.request import RequestView
from kvsim.policy import Policy
from kvsim.units import seconds_to_ns


class ReplicaView(Protocol):
    """What a router may see of a replica: its load as it was `view_delay_s` ago."""

    @property
    def requests(self) -> int:
        """Requests sent to it that have not left, waiting and running."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of these requests."""
        ...

    def cached_tokens(self, request: RequestView) -> int:
        """Return how many of the prompt's first tokens its prefix cache holds now; 0 without.

        The last token never counts: it is computed in any case.
        """
        ...


class Router(Protocol):
    """Chooses the replica of each arriving request.

    With `shares_queue` nothing is chosen: all replicas draw from one queue. One that `is_blind`
    looks neither at the request nor at the replicas, but for how many these are.

    A simple one tells what it does, so that it can be done without it (`engine/compiled`): it
    `draws` some replicas, or else takes all, and chooses of them the one that has the `least` of a
    count of `ReplicaView`, the first of equals; one that is blind draws a single one.
    """

    shares_queue: bool = False
    is_blind: bool = False
    draws: bool = False
    least: Literal["", "requests", "prompt_tokens"] = ""
    ranks: int = 1  # engines of a replica: the one of them with the fewest requests is taken
    view_delay_ns: int = 0

    def draw(self, replicas: int) -> Sequence[int]:
        """Return among which of so many replicas, one or two, it chooses for the next request."""
        return range(replicas)

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """Return the index of the replica.

        Asked as each request is sent. Loads count all that was sent and
        all that left up to `view_delay_ns` before now; without a delay that includes what
        arrived at this instant before the request.
        """
        ...


class SeesLoads(Policy):
    """What the routers that compare loads have in common."""

    view_delay_s: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """How old the loads are that the router sees: polled metrics lag, its own counts don't."""

    @property
    def view_delay_ns(self) -> int:
        """The delay on the engine's clock."""
        return seconds_to_ns(self.view_delay_s)
