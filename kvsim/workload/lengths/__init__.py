"""Request lengths: each file here is one law, a `Policy` that draws prompt and answer lengths."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class LengthLaw(Protocol):
    """Draws how long prompts and answers are."""

    kind: str

    def lengths_tokens(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return prompt and output lengths, both of shape (count,), all at least 1."""
        ...
