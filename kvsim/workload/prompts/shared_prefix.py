"""Shared prefixes: the system prompts of an application's tenants or features."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.limits import Tokens
from kvsim.workload.prompts import Prompts
from kvsim.workload.prompts._conversations import compose_conversations
from kvsim.workload.prompts._prefixes import SharesPrefixes
from kvsim.workload.prompts._single_turn import SingleTurn


class SharedPrefix(SingleTurn, SharesPrefixes):
    """The system prompt of a group, then a prompt of the request's own.

    Each request is a session of its own; `lengths` says how long its own prompt is.
    """

    kind: Literal["shared_prefix"] = "shared_prefix"
    prefix_tokens: Tokens
    """Length of each system prompt, or of the shortest."""

    def prompts(
        self,
        turns: NDArray[np.int64],
        prompt_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Prompts:
        """Put a system prompt before each prompt; see `PromptLaw`."""
        prefixes = self.draw_prefixes(len(turns), rng)
        return compose_conversations(turns, prompt_tokens, output_tokens, prefixes)
