"""Uniform lengths: each length of a range equally likely."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from kvsim.policy import Policy
from kvsim.workload.limits import Tokens


class Uniform(Policy):
    """Prompt and answer drawn independently, both ends of the ranges included."""

    kind: Literal["uniform"] = "uniform"
    prompt_min_tokens: Tokens
    """Shortest prompt."""
    prompt_max_tokens: Tokens
    """Longest prompt."""
    output_min_tokens: Tokens
    """Shortest answer."""
    output_max_tokens: Tokens
    """Longest answer."""

    @model_validator(mode="after")
    def _ranges_not_empty(self) -> "Uniform":
        if self.prompt_min_tokens > self.prompt_max_tokens:
            raise ValueError("prompt_min_tokens is above prompt_max_tokens")
        if self.output_min_tokens > self.output_max_tokens:
            raise ValueError("output_min_tokens is above output_max_tokens")
        return self

    def lengths_tokens(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw the lengths; see `LengthLaw`."""
        return (
            rng.integers(self.prompt_min_tokens, self.prompt_max_tokens + 1, count),
            rng.integers(self.output_min_tokens, self.output_max_tokens + 1, count),
        )
