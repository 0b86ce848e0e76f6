"""Fixed lengths: every request alike."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvsim.policy import Policy


class Fixed(Policy):
    """The same prompt and answer length for every request."""

    kind: Literal["fixed"] = "fixed"
    prompt_tokens: int = Field(ge=1)
    """Length of each prompt."""
    output_tokens: int = Field(ge=1)
    """Length of each answer."""

    def lengths_tokens(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths, nothing is drawn; see `LengthLaw`."""
        return (
            np.full(count, self.prompt_tokens, dtype=np.int64),
            np.full(count, self.output_tokens, dtype=np.int64),
        )
