"""A run that is cut off: its last steps don't end, so only their part of time counts."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics import RunContext
from kvsim.tables import EVENT_KINDS, Columns

_COMPACTED = EVENT_KINDS.index("compacted")
# What a step yields at its end.
_AT_THE_END = ("prefill_seqs", "prefill_tokens", "decode_seqs", "discarded_seqs")


def cut_off(
    steps: Columns, events: Columns, context: RunContext
) -> tuple[Columns, Columns, RunContext]:
    """Return what has happened by `context.end_ns`; the same if the run isn't cut.

    A step in flight counts with its time until then, with that share of its cost and work, and
    with no token: those come at its end.
    """
    end_ns = context.end_ns
    if end_ns is None:
        return steps, events, context
    whole_ns = steps["duration_ns"]
    inside_ns = np.clip(end_ns - steps["start_ns"], 0, whole_ns)
    done = steps["start_ns"] + whole_ns < end_ns  # at the cut itself nothing happens anymore
    ended = {name: np.where(done, steps[name], 0) for name in _AT_THE_END}
    swap_ns = np.minimum(steps["swap_ns"], inside_ns)  # copies come first in a step
    steps = {**steps, "duration_ns": inside_ns, "swap_ns": swap_ns, **ended}
    return steps, _events_by(events, end_ns), _with_share(context, inside_ns / whole_ns)


def _events_by(events: Columns, end_ns: int) -> Columns:
    """Return the events until the cut; a copy that it falls into counts with its part of time."""
    happened = events["time_ns"] < end_ns
    kept = {name: column[happened] for name, column in events.items()}
    left_ns = np.minimum(kept["gap_ns"], end_ns - kept["time_ns"])
    return {**kept, "gap_ns": np.where(kept["event"] == _COMPACTED, left_ns, kept["gap_ns"])}


def _with_share(context: RunContext, share: NDArray[np.float64]) -> RunContext:
    costs = context.step_costs
    if costs is None:
        return context
    scaled = replace(
        costs,
        parts_ns=tuple((part, part_ns * share) for part, part_ns in costs.parts_ns),
        model_flop=costs.model_flop * share,
        hbm_bytes=costs.hbm_bytes * share,
    )
    return replace(context, step_costs=scaled)
