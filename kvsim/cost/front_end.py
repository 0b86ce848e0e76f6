"""What a request pays outside of the engine's steps: HTTP, tokenizing, streaming."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvsim.policy import Parameters
from kvsim.units import NS_PER_S


class FrontEnd(Parameters):
    """The API server in front of an engine: it delays requests, never steps.

    It is a single thread: while it reads and tokenizes a request, others wait. The way in and the
    way back are told as one time before the engine: a client that waits for tokens sees no
    difference.
    """

    request_s: float = Field(default=0.0, ge=0, le=1.0)
    """Seconds of every request beside those below: connection, the way to the engine and back."""
    busy_s: float = Field(default=0.0, ge=0, le=0.1)
    """Seconds of every request in which the server's thread does nothing else."""
    per_prompt_token_s: float = Field(default=0.0, ge=0, le=1e-3)
    """Such seconds for each token of the prompt: tokenizing, and copying what comes of it."""

    def busy_ns(self, prompt_tokens: int) -> int:
        """Return how long the server's thread works on a request."""
        return round((self.busy_s + self.per_prompt_token_s * prompt_tokens) * NS_PER_S)

    def busy_each_ns(self, prompt_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same of many requests, shape (requests,)."""
        busy_ns = np.rint((self.busy_s + self.per_prompt_token_s * prompt_tokens) * NS_PER_S)
        whole_ns: NDArray[np.int64] = busy_ns.astype(np.int64)
        return whole_ns

    @property
    def rest_ns(self) -> int:
        """How long a request is on its way beside that."""
        return round(self.request_s * NS_PER_S)
