"""What routers see of the replicas: counts of the requests sent there."""

from kvsim.engine.allocators import KVAllocator
from kvsim.engine.request import Request, RequestView


class ReplicaLoad:
    """The requests that were sent to one replica and have not left; see `routers.ReplicaView`."""

    __slots__ = ("_allocator", "prompt_tokens", "requests")

    def __init__(self, allocator: KVAllocator) -> None:
        """Count for the replica with this KV cache."""
        self._allocator = allocator
        self.requests = 0
        self.prompt_tokens = 0

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
        return self._allocator.lookup(request)
