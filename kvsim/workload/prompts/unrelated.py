"""Unrelated prompts: none has anything in common with another."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.prompts import Prompts
from kvsim.workload.prompts._single_turn import SingleTurn


class Unrelated(SingleTurn):
    """Each request is a session of its own, its prompt unlike all others."""

    kind: Literal["unrelated"] = "unrelated"

    def prompts(
        self,
        turns: NDArray[np.int64],
        prompt_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Prompts:
        """Return the lengths as they are; see `PromptLaw`."""
        return Prompts(prompt_tokens, output_tokens, turns)
