"""How long an engine iteration lasts: the sum of measured kernels, or an affine law."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Bound = Literal["hbm", "compute", "communication", "host", "unknown"]
Basis = Literal["measured", "interpolated", "extrapolated", "physical", "given"]


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the cost of iterations depends on: numbers of one step, or arrays of many.

    These are columns of the steps table of the same names; `tokens` is the sum of prefill and
    decode tokens, `seqs` of prefill and decode sequences.
    """

    prefill_seqs: Any
    prefill_tokens: Any
    prefill_kv_tokens: Any
    prefill_pairs: Any
    prefill_attention_ns: Any
    decode_seqs: Any
    decode_kv_tokens: Any


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the iteration: which component, what limits it, on what the figure rests."""

    component: str
    bound: Bound
    basis: Basis
    note: str = ""


class StepCost(Protocol):
    """Prices an engine iteration. Both calls are table look-ups: they run millions of times.

    No transcendental function is evaluated in either of them: they are tabulated at start.
    """

    @property
    def basis(self) -> Sequence[tuple[str, Basis, str]]:
        """Component, on what its price rests, and what to know about it; without repeats."""
        ...

    def chunks_ns(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Return the attention time, over all layers, of the prefill chunks of one step.

        Args:
            chunks: New tokens and prefix of each; several share the GPU.
        """
        ...

    def step_ns(
        self, tokens: int, seqs: int, decode_seqs: int, decode_kv_tokens: int, chunks_ns: float
    ) -> int:
        """Return the duration of an iteration, at least 1, rounded once.

        Args:
            tokens: All tokens of the step, prefill and decode together (one GEMM sees them all).
            seqs: Sequences in the step; each needs logits.
            decode_seqs: Sequences that decode one token.
            decode_kv_tokens: Sum of their contexts, the new tokens included.
            chunks_ns: What `chunks_ns` says of the step's prefill chunks.
        """
        ...

    def decode_steps_ns(self, seqs: int, decode_kv_tokens: int, steps: int) -> list[int]:
        """Return the durations of steps that only decode, the same sequences in each.

        They are those of `step_ns`, bit for bit.

        Args:
            seqs: Sequences.
            decode_kv_tokens: Sum of their contexts in the first step; each grows by one in a step.
            steps: How many.
        """
        ...

    def parts_ns(self, steps: StepShape) -> Mapping[Part, NDArray[np.float64]]:
        """Split the durations of many steps into parts; they sum to the duration within 1 ns."""
        ...

    def work(self, steps: StepShape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return model FLOPs and HBM bytes (weights, KV) of each step, for utilisation figures.

        Per GPU: under tensor parallelism each GPU does its share.
        """
        ...

    def peaks(self) -> tuple[float, float]:
        """Return peak FLOP/s (of the weights' dtype, dense) and HBM bytes/s; 0: unknown."""
        ...
