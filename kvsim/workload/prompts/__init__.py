"""Prompt structure: each file here is one law of what prompts have in common, a `Policy`.

A prompt is a list of segments, never tokens: see `kvsim.workload.requests.Segments`.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.requests import Segments


@dataclass(frozen=True, slots=True)
class Prompts:
    """The requests of all sessions, session after session, each in order of its turns.

    Attributes:
        prompt_tokens: Whole prompts, all they repeat included; int64, shape (requests,).
        output_tokens: Answers; int64, shape (requests,).
        turns: Requests of each session, int64, shape (sessions,), at least 1 each.
        segments: What the prompts consist of, seeds from 0; None if no prompt has anything in
            common with another.
        delay_ns: Time from the end of the turn before to this request, int64, shape (requests,),
            0 for first turns; None if all sessions have one turn.
        prefix_tokens: Length of the system prompt that each begins with, its first segment; int64,
            shape (requests,); None if there are none.
    """

    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    turns: NDArray[np.int64]
    segments: Segments | None = None
    delay_ns: NDArray[np.int64] | None = None
    prefix_tokens: NDArray[np.int64] | None = None


class PromptLaw(Protocol):
    """Says how many requests a session has, and what their prompts share."""

    @property
    def kind(self) -> str:
        """Its name in a scenario."""
        ...

    def turns(self, sessions: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return how many requests each session wants to send, shape (sessions,), at least 1.

        A session may get fewer: the last one if a number of requests is asked for.
        """
        ...

    def prompts(
        self,
        turns: NDArray[np.int64],
        prompt_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Prompts:
        """Compose the prompts.

        Args:
            turns: Requests of each session, shape (sessions,).
            prompt_tokens: What is new in each prompt, as the length law drew it, shape
                (sum of turns,).
            output_tokens: The answers, shape (sum of turns,).
            rng: The stream to draw from.

        Returns:
            The requests; a law may end a session early, so that there are fewer than asked for.
        """
        ...
