"""Sessions of one request."""

import numpy as np
from numpy.typing import NDArray

from kvsim.policy import Policy


class SingleTurn(Policy):
    """A law in which each request is a session of its own."""

    def turns(self, sessions: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return ones, shape (sessions,), nothing is drawn; see `PromptLaw`."""
        return np.ones(sessions, dtype=np.int64)
