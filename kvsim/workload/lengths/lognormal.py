"""Lognormal lengths: many short ones, a few very long ones."""

from math import log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvsim.policy import Policy
from kvsim.workload.limits import MeanTokens, Tokens


class Lognormal(Policy):
    """Prompt and answer drawn independently from lognormal laws, rounded, at least one token.

    A law is given by its mean and its coefficient of variation (standard deviation over mean)
    before rounding and capping: sigma² = ln(1 + cv²), mu = ln(mean) - sigma² / 2.
    """

    kind: Literal["lognormal"] = "lognormal"
    prompt_mean_tokens: MeanTokens
    """Mean prompt length."""
    prompt_cv: float = Field(ge=0, le=100)
    """Coefficient of variation of prompt lengths."""
    output_mean_tokens: MeanTokens
    """Mean answer length."""
    output_cv: float = Field(ge=0, le=100)
    """Coefficient of variation of answer lengths."""
    prompt_max_tokens: Tokens | None = None
    """Longer prompts are cut to this; null: no cap."""
    output_max_tokens: Tokens | None = None
    """Longer answers are cut to this; null: no cap."""

    def lengths_tokens(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw the lengths; see `LengthLaw`."""
        return (
            _draw(count, self.prompt_mean_tokens, self.prompt_cv, self.prompt_max_tokens, rng),
            _draw(count, self.output_mean_tokens, self.output_cv, self.output_max_tokens, rng),
        )


def _draw(
    count: int, mean: float, cv: float, cap: int | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    variance = log(1 + cv**2)
    lengths = rng.lognormal(log(mean) - variance / 2, sqrt(variance), count)
    return np.clip(np.rint(lengths), 1, cap or 2**31).astype(np.int64)
