"""System prompts: groups of sessions that begin with the same tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvsim.policy import Policy
from kvsim.workload.limits import MOST_TOKENS, Tokens


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What each session begins with.

    Attributes:
        group: Whose prefix, numbered from 0 without gaps; int64, shape (sessions,).
        tokens: Its length, equal within a group, at least 1; int64, shape (sessions,).
        groups: How many groups have a session.
    """

    group: NDArray[np.int64]
    tokens: NDArray[np.int64]
    groups: int


class SharesPrefixes(Policy):
    """A law whose sessions may begin with the system prompt of their group."""

    groups: int = Field(default=1, ge=1, le=10**6)
    """So many system prompts; each session has one of them."""
    zipf_exponent: float = Field(default=0.0, ge=0, le=10)
    """Popularity of the k-th system prompt: proportional to k^-zipf_exponent; 0: all alike."""
    prefix_tokens: int = Field(default=0, ge=0, le=MOST_TOKENS)
    """Length of each system prompt, or of the shortest; 0: there is none."""
    prefix_max_tokens: Tokens | None = None
    """Each system prompt's length is drawn once, from `prefix_tokens` to this, each length equally
    likely; null: all have `prefix_tokens`."""

    @model_validator(mode="after")
    def _range_of_prefixes_not_empty(self) -> "SharesPrefixes":
        longest = self.prefix_max_tokens
        if longest is not None and not 1 <= self.prefix_tokens <= longest:
            raise ValueError("prefix_tokens must be from 1 to prefix_max_tokens")
        return self

    def draw_prefixes(self, sessions: int, rng: np.random.Generator) -> Prefixes | None:
        """Draw each session's system prompt, shape (sessions,); None if there are none."""
        if not self.prefix_tokens:
            return None
        longest = self.prefix_max_tokens or self.prefix_tokens
        lengths = rng.integers(self.prefix_tokens, longest + 1, self.groups)
        weights = np.arange(1, self.groups + 1) ** -self.zipf_exponent
        drawn = rng.choice(self.groups, sessions, p=weights / weights.sum())
        present, group = np.unique(drawn, return_inverse=True)
        return Prefixes(group, lengths[drawn], len(present))
