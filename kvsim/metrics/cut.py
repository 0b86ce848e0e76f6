"""A run that is cut off: its last steps don't end, so only their part of time counts."""

from dataclasses import replace

import numpy as np

from kvsim.metrics import StepCosts
from kvsim.tables import EVENT_KINDS, Columns

_COMPACTED = EVENT_KINDS.index("compacted")
YIELDED_AT_THE_END = (
    "prefill_seqs",
    "prefill_tokens",
    "decode_seqs",
    "discarded_seqs",
    "late_seqs",
)


def cut_steps(
    steps: Columns, costs: StepCosts | None, end_ns: int
) -> tuple[Columns, StepCosts | None]:
    """Return what steps of a run have done that is cut at `end_ns`, and at what cost.

    A step in flight counts with its time until then, with that share of its cost and work, and
    with no token: those come at its end.
    """
    whole_ns = steps["duration_ns"]
    inside_ns = np.clip(end_ns - steps["start_ns"], 0, whole_ns)
    done = steps["start_ns"] + whole_ns < end_ns  # at the cut itself nothing happens anymore
    ended = {name: np.where(done, steps[name], 0) for name in YIELDED_AT_THE_END}
    if "swap_ns" in steps:  # copies come first in a step
        ended["swap_ns"] = np.minimum(steps["swap_ns"], inside_ns)
    steps = {**steps, "duration_ns": inside_ns, **ended}
    if costs is None:
        return steps, None
    share = inside_ns / whole_ns
    scaled = replace(
        costs,
        parts_ns=tuple((part, part_ns * share) for part, part_ns in costs.parts_ns),
        model_flop=costs.model_flop * share,
        hbm_bytes=costs.hbm_bytes * share,
    )
    return steps, scaled


def cut_events(events: Columns, end_ns: int) -> Columns:
    """Return the events until the cut; a copy that it falls into counts with its part of time."""
    happened = events["time_ns"] < end_ns
    kept = {name: column[happened] for name, column in events.items()}
    left_ns = np.minimum(kept["gap_ns"], end_ns - kept["time_ns"])
    return {**kept, "gap_ns": np.where(kept["event"] == _COMPACTED, left_ns, kept["gap_ns"])}
