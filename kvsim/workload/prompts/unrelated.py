"""Unrelated prompts: none has anything in common with another."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.policy import Policy
from kvsim.workload.prompts import Prompts


class Unrelated(Policy):
    """Each request is a session of its own, its prompt unlike all others."""

    kind: Literal["unrelated"] = "unrelated"

    def turns(self, sessions: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return ones; see `PromptLaw`."""
        return np.ones(sessions, dtype=np.int64)

    def prompts(
        self,
        turns: NDArray[np.int64],
        prompt_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Prompts:
        """Return the lengths as they are; see `PromptLaw`."""
        return Prompts(prompt_tokens, output_tokens, turns)
