"""What routers see of the replicas: counts of the requests sent there, now or some time ago."""

from collections import deque
from collections.abc import Callable

from kvsim.engine.allocators import KVAllocator
from kvsim.engine.clock import Clock
from kvsim.engine.request import Request, RequestView


class ReplicaLoad:
    """The requests that were sent to one replica and have not left; see `routers.ReplicaView`.

    With a delay the counts are those of `view_delay_ns` ago: a change is kept until it is that
    old, then counted. Without one it is counted at once and nothing is kept.
    """

    __slots__ = (
        "_allocator", "_clock", "_prompt_tokens", "_requests", "_unseen", "_view_delay_ns",
        "catch_up",
    )  # fmt: skip

    def __init__(self, allocator: KVAllocator, clock: Clock, view_delay_ns: int = 0) -> None:
        """Count for the replica with this KV cache."""
        self._allocator = allocator
        self._clock = clock
        self._view_delay_ns = view_delay_ns
        self.catch_up: Callable[[], None] = lambda: None  # brings its KV cache up to date
        self._requests = 0
        self._prompt_tokens = 0
        self._unseen: deque[tuple[int, int, int]] = deque()  # seen from (ns), requests, tokens

    @property
    def requests(self) -> int:
        """Requests sent there that had not left."""
        self._catch_up()
        return self._requests

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of these requests."""
        self._catch_up()
        return self._prompt_tokens

    def add(self, request: Request) -> None:
        """Count a request that is sent there."""
        self._change(1, request.prompt_tokens)

    def remove(self, request: Request) -> None:
        """Forget a request that leaves."""
        self._change(-1, -request.prompt_tokens)

    def cached_tokens(self, request: RequestView) -> int:
        """Return how many of the prompt's first tokens its prefix cache holds now."""
        self.catch_up()
        return self._allocator.lookup(request)

    def _change(self, requests: int, tokens: int) -> None:
        if self._view_delay_ns:
            self._unseen.append((self._clock.now + self._view_delay_ns, requests, tokens))
            self._catch_up()
        else:
            self._requests += requests
            self._prompt_tokens += tokens

    def _catch_up(self) -> None:
        unseen = self._unseen
        while unseen and unseen[0][0] <= self._clock.now:
            _, requests, tokens = unseen.popleft()
            self._requests += requests
            self._prompt_tokens += tokens
