"""Agents: loops that call tools until the task is done."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvsim.workload.draws import (
    CountKind,
    PauseKind,
    draw_counts,
    draw_pauses_ns,
    draw_tokens,
    why_no_count,
    why_no_pause,
)
from kvsim.workload.limits import MeanTokens, Seconds, Tokens
from kvsim.workload.prompts import Prompts
from kvsim.workload.prompts._conversations import compose_conversations
from kvsim.workload.prompts._prefixes import SharesPrefixes


class Agents(SharesPrefixes):
    """Loops with tool calls: each prompt is the last one, its answer and a tool's result.

    A loop's first prompt is the system prompt with the definitions of the tools (`prefix_tokens`),
    and a task. `lengths` says how long tasks and answers are. An answer is repeated with its whole
    length as drawn, even where `max_tokens` cut it.
    """

    kind: Literal["agents"] = "agents"
    calls_mean: float = Field(ge=0, le=10_000)
    """Mean number of tool calls; a task takes one request more."""
    calls_kind: CountKind = "geometric"
    """geometric: each answer is the last with the same probability; uniform: from 0 to
    2 * calls_mean calls; fixed: all alike."""
    tool_mean_s: Seconds
    """Mean time that a tool takes, between the answer's end and the next request."""
    tool_kind: PauseKind = "exponential"
    """How that time is distributed."""
    tool_cv: float | None = Field(default=None, ge=0, le=100)
    """Coefficient of variation of that time, for lognormal only."""
    tool_result_mean_tokens: MeanTokens
    """Mean length of a tool's result; lognormal, at least one token."""
    tool_result_cv: float = Field(default=1.0, ge=0, le=100)
    """Coefficient of variation of these lengths."""
    max_context_tokens: Tokens | None = None
    """A loop ends before a further prompt would be longer; null: it never does."""

    @model_validator(mode="after")
    def _calls_and_pauses_fit(self) -> "Agents":
        if why := why_no_count(self.calls_kind, self.calls_mean):
            raise ValueError(f"calls_mean {why}")
        if why := why_no_pause(self.tool_kind, self.tool_cv):
            raise ValueError(f"tool_cv {why}")
        return self

    def turns(self, sessions: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw the number of calls, and one request more; see `PromptLaw`."""
        return draw_counts(self.calls_kind, self.calls_mean + 1, sessions, rng)

    def prompts(
        self,
        turns: NDArray[np.int64],
        prompt_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Prompts:
        """Let each agent loop; see `PromptLaw`."""
        prefixes = self.draw_prefixes(len(turns), rng)
        requests = len(prompt_tokens)
        waited_ns = draw_pauses_ns(self.tool_kind, self.tool_mean_s, self.tool_cv, requests, rng)
        new_tokens = draw_tokens(
            self.tool_result_mean_tokens, self.tool_result_cv, None, requests, rng
        )
        tasks = np.cumsum(turns) - turns
        new_tokens[tasks] = prompt_tokens[tasks]
        return compose_conversations(
            turns, new_tokens, output_tokens, prefixes, waited_ns, self.max_context_tokens
        )
