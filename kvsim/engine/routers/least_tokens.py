"""The replica with the fewest prompt tokens of requests that have not left."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kvsim.engine.request import RequestView
from kvsim.engine.routers import ReplicaView, Router, SeesLoads


class LeastTokens(SeesLoads):
    """Requests join the replica that has the fewest prompt tokens, waiting and running together."""

    kind: Literal["least_tokens"] = "least_tokens"

    def build(self, rng: np.random.Generator) -> Router:
        """Return the router."""
        return _LeastTokens(self.view_delay_ns)


class _LeastTokens(Router):
    least = "prompt_tokens"

    def __init__(self, view_delay_ns: int) -> None:
        self.view_delay_ns = view_delay_ns

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        loads_tokens = [replica.prompt_tokens for replica in replicas]
        return loads_tokens.index(min(loads_tokens))
