"""Data-parallel ranks: engines of one replica, among which its front end spreads requests.

vLLM's front end sends a request to the rank with the lowest load, of which a waiting request counts
four times as much as a running one. Here both count the same, as in `least_requests`: while none
waits that is no difference, and while some do all ranks are full.
"""

from collections.abc import Sequence

from kvsim.engine.request import RequestView
from kvsim.engine.routers import ReplicaView, Router


def to_ranks(router: Router, ranks: int) -> Router:
    """Return a router that chooses a replica by `router`, then the least loaded of its ranks.

    Engines are numbered replica by replica. With a shared queue nothing is chosen in any case.
    """
    return router if ranks == 1 or router.shares_queue else _ToRanks(router, ranks)


class _ToRanks(Router):
    def __init__(self, router: Router, ranks: int) -> None:
        self.view_delay_ns = router.view_delay_ns
        self.draws = router.draws
        self.least = "requests" if router.is_blind else router.least
        self.ranks = ranks
        self._router = router

    def draw(self, replicas: int) -> Sequence[int]:
        return self._router.draw(replicas)

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        starts = range(0, len(replicas), self.ranks)
        groups = [_Group(replicas[start : start + self.ranks]) for start in starts]
        chosen = self._router.choose(request, groups)
        return chosen * self.ranks + groups[chosen].least_loaded()


class _Group:
    """The ranks of a replica as a router sees them: their loads together, their best hit."""

    def __init__(self, ranks: Sequence[ReplicaView]) -> None:
        self._ranks = ranks

    @property
    def requests(self) -> int:
        return sum(rank.requests for rank in self._ranks)

    @property
    def prompt_tokens(self) -> int:
        return sum(rank.prompt_tokens for rank in self._ranks)

    def cached_tokens(self, request: RequestView) -> int:
        return max(rank.cached_tokens(request) for rank in self._ranks)

    def least_loaded(self) -> int:
        loads = [rank.requests for rank in self._ranks]
        return loads.index(min(loads))
