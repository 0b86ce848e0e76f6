"""An affine law for the iteration: for oracles, replays, and measured engines without a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.cost import Basis, Part, StepShape


@dataclass(frozen=True, slots=True)
class AffineCost:
    """Prices an iteration as fixed + tokens + sequences + context, in nanoseconds.

    The context of a step is the sum over its sequences of the tokens computed before and in it.
    With `context_floor_ns` its term is rounded down to a multiple, as a clock that counts
    microseconds does. Whole numbers give exact results.
    """

    fixed_ns: float = 0
    per_token_ns: float = 0
    per_seq_ns: float = 0
    per_context_token_ns: float = 0
    context_floor_ns: int = 0

    @property
    def basis(self) -> Sequence[tuple[str, Basis, str]]:
        """Each term of the law that is not zero; all are given, none is explained."""
        terms = {
            "fixed": self.fixed_ns,
            "tokens": self.per_token_ns,
            "sequences": self.per_seq_ns,
            "context": self.per_context_token_ns,
        }
        return [(term, "given", "affine law") for term, ns in terms.items() if ns]

    def chunks_ns(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Return the context term of a step's prefill chunks, not yet rounded down."""
        return self.per_context_token_ns * sum(new + prefix for new, prefix in chunks)

    def step_ns(
        self, tokens: int, seqs: int, decode_seqs: int, decode_kv_tokens: int, chunks_ns: float
    ) -> int:
        """Return the duration of an iteration, at least 1, rounded once."""
        context_ns = self.per_context_token_ns * decode_kv_tokens + chunks_ns
        if self.context_floor_ns:
            context_ns = context_ns // self.context_floor_ns * self.context_floor_ns
        total_ns = self.fixed_ns + self.per_token_ns * tokens + self.per_seq_ns * seqs + context_ns
        return round(total_ns) or 1

    def decode_steps_ns(self, seqs: int, decode_kv_tokens: int, steps: int) -> list[int]:
        """Return the durations of steps that only decode, the same sequences in each."""
        contexts = range(decode_kv_tokens, decode_kv_tokens + steps * seqs, seqs)
        return [self.step_ns(seqs, seqs, seqs, tokens, 0.0) for tokens in contexts]

    def parts_ns(self, steps: StepShape) -> Mapping[Part, NDArray[np.float64]]:
        """Split durations by the terms of the law, which says nothing of what bounds them."""
        context_ns = self.per_context_token_ns * np.asarray(steps.decode_kv_tokens, np.float64)
        context_ns = context_ns + steps.prefill_attention_ns
        if self.context_floor_ns:
            context_ns = context_ns // self.context_floor_ns * self.context_floor_ns
        tokens = np.asarray(steps.prefill_tokens + steps.decode_seqs, np.float64)
        seqs = np.asarray(steps.prefill_seqs + steps.decode_seqs, np.float64)
        return {
            Part("fixed", "unknown", "given"): np.full_like(tokens, self.fixed_ns),
            Part("tokens", "unknown", "given"): self.per_token_ns * tokens,
            Part("sequences", "unknown", "given"): self.per_seq_ns * seqs,
            Part("context", "unknown", "given"): context_ns,
        }

    def work(self, steps: StepShape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return zeros: an affine law knows of no FLOPs and no bytes."""
        nothing = np.zeros(np.shape(steps.decode_seqs))
        return nothing, nothing.copy()

    def peaks(self) -> tuple[float, float]:
        """Return zeros: unknown."""
        return 0.0, 0.0
