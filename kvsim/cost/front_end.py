"""What a request pays outside of the engine's steps: HTTP, tokenizing, streaming."""

from pydantic import Field

from kvsim.policy import Parameters
from kvsim.units import NS_PER_S


class FrontEnd(Parameters):
    """The API server in front of an engine: it delays requests, never steps.

    The way in and the way back are told as one time before the engine: a client that waits for
    tokens sees no difference.
    """

    request_s: float = Field(default=0.0, ge=0, le=1.0)
    """Seconds of every request: connection, HTTP, validation, the way to the engine and back."""
    per_prompt_token_s: float = Field(default=0.0, ge=0, le=1e-3)
    """Seconds for each token of the prompt: tokenizing, and copying what comes of it."""

    def delay_ns(self, prompt_tokens: int) -> int:
        """Return how long a request is on its way to the engine's queue."""
        return round((self.request_s + self.per_prompt_token_s * prompt_tokens) * NS_PER_S)
