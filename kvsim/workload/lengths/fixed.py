"""Fixed lengths: every request alike."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.policy import Policy
from kvsim.workload.limits import Tokens


class Fixed(Policy):
    """The same prompt and answer length for every request."""

    kind: Literal["fixed"] = "fixed"
    prompt_tokens: Tokens
    """Length of each prompt."""
    output_tokens: Tokens
    """Length of each answer."""

    def lengths_tokens(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths, nothing is drawn; see `LengthLaw`."""
        return (
            np.full(count, self.prompt_tokens, dtype=np.int64),
            np.full(count, self.output_tokens, dtype=np.int64),
        )
