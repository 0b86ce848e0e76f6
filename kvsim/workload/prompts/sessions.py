"""Sessions: people who talk, and take their time to read an answer and to write what is next."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvsim.workload.draws import (
    CountKind,
    PauseKind,
    draw_counts,
    draw_pauses_ns,
    why_no_count,
    why_no_pause,
)
from kvsim.workload.limits import Seconds, Tokens
from kvsim.workload.prompts import Prompts
from kvsim.workload.prompts._conversations import compose_conversations
from kvsim.workload.prompts._prefixes import SharesPrefixes


class Sessions(SharesPrefixes):
    """Conversations of several turns: each prompt is the last one, its answer and new tokens.

    `lengths` says how long answers are, and what is new in each prompt. An answer is repeated with
    its whole length as drawn, even where `max_tokens` cut it.
    """

    kind: Literal["sessions"] = "sessions"
    turns_mean: float = Field(ge=1, le=10_000)
    """Mean number of turns."""
    turns_kind: CountKind = "geometric"
    """geometric: after each turn the session ends with the same probability; uniform: from 1 to
    2 * turns_mean - 1 turns; fixed: all alike."""
    think_mean_s: Seconds
    """Mean time between an answer's end and the next turn."""
    think_kind: PauseKind = "exponential"
    """How that time is distributed."""
    think_cv: float | None = Field(default=None, ge=0, le=100)
    """Coefficient of variation of that time, for lognormal only."""
    max_context_tokens: Tokens | None = None
    """A session ends before a further prompt would be longer; null: it never does."""

    @model_validator(mode="after")
    def _turns_and_pauses_fit(self) -> "Sessions":
        if why := why_no_count(self.turns_kind, self.turns_mean):
            raise ValueError(f"turns_mean {why}")
        if why := why_no_pause(self.think_kind, self.think_cv):
            raise ValueError(f"think_cv {why}")
        return self

    def turns(self, sessions: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw the number of turns of each session; see `PromptLaw`."""
        return draw_counts(self.turns_kind, self.turns_mean, sessions, rng)

    def prompts(
        self,
        turns: NDArray[np.int64],
        prompt_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Prompts:
        """Let each session talk; see `PromptLaw`."""
        prefixes = self.draw_prefixes(len(turns), rng)
        thought_ns = draw_pauses_ns(
            self.think_kind, self.think_mean_s, self.think_cv, len(prompt_tokens), rng
        )
        return compose_conversations(
            turns, prompt_tokens, output_tokens, prefixes, thought_ns, self.max_context_tokens
        )
