"""Lognormal lengths: many short ones, a few very long ones."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvsim.policy import Policy
from kvsim.workload.draws import draw_tokens
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
        prompt_cap, output_cap = self.prompt_max_tokens, self.output_max_tokens
        return (
            draw_tokens(self.prompt_mean_tokens, self.prompt_cv, prompt_cap, count, rng),
            draw_tokens(self.output_mean_tokens, self.output_cv, output_cap, count, rng),
        )
