"""What routers see of the replicas: counts of the requests sent there, now or some time ago."""

from collections import deque
from collections.abc import Callable

from kvsim.engine.allocators import KVAllocator
from kvsim.engine.clock import Clock
from kvsim.engine.request import Request, RequestView


class ReplicaLoad:
    """The requests that were sent to one replica and have not left; see `routers.ReplicaView`.

    A router may look at all replicas for each request that arrives: counts are plain attributes.
    """

    __slots__ = ("_allocator", "catch_up", "prompt_tokens", "requests")

    def __init__(self, allocator: KVAllocator) -> None:
        """Count for the replica with this KV cache."""
        self._allocator = allocator
        self.catch_up: Callable[[], None] = lambda: None  # brings its KV cache up to date
        self.requests = 0  # sent there that have not left
        self.prompt_tokens = 0  # of these requests

    def add(self, request: Request) -> None:
        """Count a request that is sent there."""
        self.requests += 1
        self.prompt_tokens += request.prompt_tokens

    def remove(self, request: Request) -> None:
        """Forget a request that leaves."""
        self.requests -= 1
        self.prompt_tokens -= request.prompt_tokens

    def cached_tokens(self, request: RequestView) -> int:
        """Return how many of the prompt's first tokens its prefix cache holds now."""
        self.catch_up()
        return self._allocator.lookup(request)


class DelayedLoad:
    """The same counts as they were `view_delay_ns` ago: a change is kept until it is that old."""

    __slots__ = ("_clock", "_seen", "_unseen", "_view_delay_ns", "catch_up")

    def __init__(self, allocator: KVAllocator, clock: Clock, view_delay_ns: int) -> None:
        """Count for the replica with this KV cache."""
        self._seen = ReplicaLoad(allocator)
        self.catch_up = self._seen.catch_up
        self._clock = clock
        self._view_delay_ns = view_delay_ns
        self._unseen: deque[tuple[int, int, int]] = deque()  # seen from (ns), requests, tokens

    @property
    def requests(self) -> int:
        """Requests sent there that had not left."""
        return self._caught_up().requests

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of these requests."""
        return self._caught_up().prompt_tokens

    def add(self, request: Request) -> None:
        """Count a request that is sent there."""
        self._change(1, request.prompt_tokens)

    def remove(self, request: Request) -> None:
        """Forget a request that leaves."""
        self._change(-1, -request.prompt_tokens)

    def cached_tokens(self, request: RequestView) -> int:
        """Return how many of the prompt's first tokens its prefix cache holds now."""
        self.catch_up()
        return self._seen.cached_tokens(request)

    def _change(self, requests: int, tokens: int) -> None:
        self._unseen.append((self._clock.now + self._view_delay_ns, requests, tokens))
        self._caught_up()

    def _caught_up(self) -> ReplicaLoad:
        seen, unseen = self._seen, self._unseen
        while unseen and unseen[0][0] <= self._clock.now:
            _, requests, tokens = unseen.popleft()
            seen.requests += requests
            seen.prompt_tokens += tokens
        return seen


def load_of(
    allocator: KVAllocator, clock: Clock, view_delay_ns: int = 0
) -> ReplicaLoad | DelayedLoad:
    """Return an empty count for the replica with this KV cache, seen after a delay or at once."""
    if view_delay_ns:
        return DelayedLoad(allocator, clock, view_delay_ns)
    return ReplicaLoad(allocator)
