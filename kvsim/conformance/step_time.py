"""How long replayed steps last: as the recording says."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvsim.conformance.recording import Recording, to_ns
from kvsim.cost import StepCost
from kvsim.cost.affine import AffineCost
from kvsim.units import NS_PER_US


def recorded_step_time(recording: Recording) -> StepCost:
    """Return the formula of the file if it has one, else the recorded durations."""
    formula = recording.step_cost
    if formula is None:
        return PlayedCost(left_ns=deque(_durations_ns(recording)))
    return FormulaCost(
        fixed_ns=formula.base * NS_PER_US,
        per_token_ns=formula.per_token * NS_PER_US,
        per_context_token_ns=formula.per_2_context * NS_PER_US / 2,
        context_floor_ns=NS_PER_US,
        empty_ns=formula.empty_step * NS_PER_US,
    )


def _durations_ns(recording: Recording) -> Iterator[int]:
    """Yield how long each step lasted; a step begins when the one before it has ended.

    An empty asynchronous step is none: it takes no time.
    """
    free_at_ns = 0
    for step in recording.steps:
        if not step["scheduled"] and recording.config.async_scheduling:
            continue
        start_ns = max(to_ns(step["time_ms"]), free_at_ns)
        if "start_ms" in step:
            start_ns = to_ns(step["start_ms"])
        free_at_ns = to_ns(step["end_ms"])
        yield free_at_ns - start_ns


@dataclass(frozen=True, slots=True)
class FormulaCost(AffineCost):
    """An affine law; a step that computes nothing has a time of its own."""

    empty_ns: int = 1

    def step_ns(
        self, tokens: int, seqs: int, decode_seqs: int, decode_kv_tokens: int, chunks_ns: float
    ) -> int:
        """Return the duration of a step."""
        if not tokens:
            return self.empty_ns
        return AffineCost.step_ns(self, tokens, seqs, decode_seqs, decode_kv_tokens, chunks_ns)


@dataclass(frozen=True, slots=True)
class PlayedCost(AffineCost):
    """Durations one after the other; the last one stands for any more."""

    left_ns: deque[int] = field(default_factory=deque)

    def step_ns(
        self, tokens: int, seqs: int, decode_seqs: int, decode_kv_tokens: int, chunks_ns: float
    ) -> int:
        """Return the next duration."""
        left_ns = self.left_ns
        if len(left_ns) > 1:
            return max(1, left_ns.popleft())
        return max(1, left_ns[0]) if left_ns else 1
