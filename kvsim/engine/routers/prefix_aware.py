"""The replica whose prefix cache holds most of the prompt, as long as loads are balanced.

The rule and its defaults are those of SGLang's router (`--policy cache_aware`: `--cache-threshold`
0.3, `--balance-abs-threshold` 64, `--balance-rel-threshold` 1.5), which vLLM's router took over.
Two things differ. Theirs remembers what it sent where; ours looks into the caches, as routers do
that follow KV-cache events. And where no cache holds enough, theirs takes the replica with the
smallest memory of that kind, ours the one with the fewest requests.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from kvsim.engine.request import RequestView
from kvsim.engine.routers import ReplicaView, Router, SeesLoads


class PrefixAware(SeesLoads):
    """Requests go to the replica whose prefix cache holds most of their prompt.

    If it holds too little, or loads are out of balance, or nothing is cached, they go to the one
    with the fewest requests.
    """

    kind: Literal["prefix_aware"] = "prefix_aware"
    match_fraction: Annotated[float, Field(ge=0, le=1)] = 0.3
    """The cache must hold more than this share of the prompt (SGLang: `--cache-threshold`)."""
    balance_abs: Annotated[int, Field(ge=0, le=10**8)] = 64
    """Loads are balanced if they differ by at most so many requests (SGLang:
    `--balance-abs-threshold`)."""
    balance_rel: Annotated[float, Field(ge=1, le=1e6)] = 1.5
    """Loads are balanced too if the highest is at most so many times the lowest (SGLang:
    `--balance-rel-threshold`)."""

    def build(self, rng: np.random.Generator) -> Router:
        """Return the router."""
        return _PrefixAware(self)


class _PrefixAware(Router):
    def __init__(self, policy: PrefixAware) -> None:
        self._policy = policy
        self.view_delay_ns = policy.view_delay_ns

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        loads = [replica.requests for replica in replicas]
        if self._balanced(min(loads), max(loads)):
            cached = [replica.cached_tokens(request) for replica in replicas]
            most_tokens = max(cached)
            if most_tokens > self._policy.match_fraction * request.prompt_tokens:
                # Of those that hold the same (a system prompt is soon everywhere), the least busy.
                holders = [index for index, held in enumerate(cached) if held == most_tokens]
                return min(holders, key=loads.__getitem__)
        return loads.index(min(loads))

    def _balanced(self, fewest: int, most: int) -> bool:
        policy = self._policy
        return most - fewest <= policy.balance_abs or most <= policy.balance_rel * fewest
