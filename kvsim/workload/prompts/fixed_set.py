"""Fixed set: the same prompts, sent again and again."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvsim.workload.prompts import Prompts
from kvsim.workload.prompts._single_turn import SingleTurn
from kvsim.workload.requests import Segments


class FixedSet(SingleTurn):
    """A fixed set of prompts, sent again and again as benchmark clients do.

    Each request is a session of its own. A prompt has the same length each time, and so has its
    answer: those drawn from `lengths` for its first request. The tokens of the answer are sampled
    anew each time.
    """

    kind: Literal["fixed_set"] = "fixed_set"
    distinct_prompts: int = Field(ge=1, le=10**8)
    """Size of the set."""
    order: Literal["round_robin", "random"] = "round_robin"
    """round_robin: one after the other, then from the first again; random: any of them, each
    equally likely."""

    def prompts(
        self,
        turns: NDArray[np.int64],
        prompt_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Prompts:
        """Repeat the first request of each prompt; see `PromptLaw`."""
        requests = np.arange(len(turns), dtype=np.int64)
        if self.order == "random":
            chosen = rng.integers(self.distinct_prompts, size=len(turns))
        else:
            chosen = requests % self.distinct_prompts
        _, first_request, prompt = np.unique(chosen, return_index=True, return_inverse=True)
        lengths = prompt_tokens[first_request][prompt]
        segments = Segments(
            first=np.arange(len(turns) + 1, dtype=np.int64),
            seed=prompt,
            tokens=lengths,
            answer_seed=len(first_request) + requests,
        )
        return Prompts(lengths, output_tokens[first_request][prompt], turns, segments)
