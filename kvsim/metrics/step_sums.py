"""Sums over the steps of a run, batch by batch: the memory doesn't grow with their number."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics import CostPart, RunContext, StepCosts
from kvsim.metrics.cut import cut_steps
from kvsim.metrics.definitions import KV_PARTS
from kvsim.metrics.gaps import GapCounts, step_gaps
from kvsim.table_files import batches, row_count
from kvsim.tables import HEAD_LACKS, STEPS, Columns

BATCH_ROWS = 16_384
_OWNED = ("held", "to_come", "inside")
_UNREAD = {"replica", "step", "preempted_seqs"}
_READ = tuple(column.name for column in STEPS if column.name not in _UNREAD)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StepSums:
    """What the figures need to know of all steps together.

    Attributes:
        steps: Number of steps.
        tokens: Tokens computed in them.
        time_ns: Sum of their durations.
        swap_ns: What of it swapped blocks were copied.
        waiting_ns: That of steps with requests waiting, by what the head lacks, as `HEAD_LACKS`.
        window_ns: That inside the window.
        levels: Names of what is averaged over time: sequences, KV slots by use.
        areas: Level × time inside the window, by level.
        peaks: Largest value inside the window, by level.
        work: FLOP and HBM bytes inside the window.
        parts: Parts of the cost of a step; none if it isn't known.
        parts_ns: Time of each part.
    """

    steps: int
    tokens: int
    time_ns: int
    swap_ns: int
    waiting_ns: NDArray[np.int64]
    window_ns: int
    levels: tuple[str, ...]
    areas: Floats
    peaks: NDArray[np.int64]
    work: Floats
    parts: tuple[CostPart, ...]
    parts_ns: Floats

    def area(self, level: str) -> float:
        """Return a level × time inside the window."""
        return float(self.areas[self.levels.index(level)])

    def peak(self, level: str) -> int:
        """Return the largest value of a level inside the window."""
        return int(self.peaks[self.levels.index(level)])

    def __add__(self, other: "StepSums") -> "StepSums":
        """Return the sums of the steps of both."""
        return StepSums(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.time_ns + other.time_ns,
            self.swap_ns + other.swap_ns,
            self.waiting_ns + other.waiting_ns,
            self.window_ns + other.window_ns,
            self.levels,
            self.areas + other.areas,
            np.maximum(self.peaks, other.peaks),
            self.work + other.work,
            self.parts,
            self.parts_ns + other.parts_ns,
        )


def sum_up(steps: Columns, context: RunContext, window_ns: int) -> tuple[StepSums, GapCounts]:
    """Return the sums over all steps, and the gaps between their tokens.

    Steps in flight at the cut are as `cut_steps` has them; gaps of the warm-up don't count.
    """
    rows, gaps = row_count(steps), GapCounts()

    def found() -> Iterator[StepSums]:
        for batch in batches(steps, _READ, list(_sizes(rows))):
            costs = context.costs_of(batch) if context.costs_of else None
            if context.end_ns is not None:
                batch, costs = cut_steps(batch, costs, context.end_ns)
            gaps.add(*step_gaps(batch, context.warmup_ns))
            yield _sums_of(batch, costs, window_ns)

    return _pairwise(rows, found()), gaps


def last_end_ns(steps: Columns, context: RunContext) -> int:
    """Return when the last step ended, or the run was cut; 0 without steps."""
    sizes = list(_sizes(row_count(steps)))
    ends_ns = (
        int((batch["start_ns"] + batch["duration_ns"]).max(initial=0))
        for batch in batches(steps, ("start_ns", "duration_ns"), sizes)
    )
    last_ns = max(ends_ns)
    return last_ns if context.end_ns is None else min(last_ns, context.end_ns)


def _sizes(rows: int) -> Iterator[int]:
    """Cut so many rows as numpy does that adds them up in pairs, down to what is summed at once.

    So sums of floating-point numbers are those of `np.sum` over the whole column, to the bit: they
    don't depend on how much of it is read at a time.
    """
    if rows <= BATCH_ROWS:
        yield rows
    else:
        yield from _sizes(_first_half(rows))
        yield from _sizes(rows - _first_half(rows))


def _pairwise(rows: int, found: Iterator[StepSums]) -> StepSums:
    """Add up the sums of batches that `_sizes` has cut."""
    if rows <= BATCH_ROWS:
        return next(found)
    first = _pairwise(_first_half(rows), found)
    return first + _pairwise(rows - _first_half(rows), found)


def _first_half(rows: int) -> int:
    return rows // 2 - rows // 2 % 8


def _sums_of(steps: Columns, costs: StepCosts | None, window_ns: int) -> StepSums:
    inside_ns = time_in_window_ns(steps, window_ns)
    inside = inside_ns > 0
    # In floats: tokens times nanoseconds would leave 64 bits after some hours of a large pool.
    weights = inside_ns.astype(np.float64)
    levels = _levels(steps)
    return StepSums(
        len(inside_ns),
        int(steps["prefill_tokens"].sum() + steps["decode_seqs"].sum()),
        int(steps["duration_ns"].sum()),
        int(steps["swap_ns"].sum()),
        _waiting_ns(steps),
        int(inside_ns.sum()),
        tuple(levels),
        np.array([(values * weights).sum() for values in levels.values()]),
        np.array([values[inside].max(initial=0) for values in levels.values()]),
        _work(steps, costs, weights),
        tuple(part for part, _ in costs.parts_ns) if costs else (),
        np.array([part_ns.sum() for _, part_ns in costs.parts_ns] if costs else (), np.float64),
    )


def time_in_window_ns(steps: Columns, window_ns: int) -> NDArray[np.int64]:
    """Return how long each step lasts inside [0, window]; shape (steps,)."""
    start_ns = steps["start_ns"]
    end_ns = np.minimum(start_ns + steps["duration_ns"], window_ns)
    inside_ns: NDArray[np.int64] = np.maximum(end_ns - start_ns, 0)
    return inside_ns


def _levels(steps: Columns) -> dict[str, NDArray[np.int64]]:
    parts = {part: steps[f"kv_{part}_tokens"] for part in KV_PARTS}
    owned = parts["held"] + parts["to_come"] + parts["inside"]
    sequences = {name: steps[f"{name}_seqs"] for name in ("running", "waiting")}
    return {**sequences, "owned": owned, "shared": steps["shared_kv_tokens"], **parts}


def _waiting_ns(steps: Columns) -> NDArray[np.int64]:
    waits = steps["waiting_seqs"] > 0
    lacks, duration_ns = steps["head_lacks"][waits], steps["duration_ns"][waits]
    return np.array([duration_ns[lacks == code].sum() for code in range(len(HEAD_LACKS))], np.int64)


def _work(steps: Columns, costs: StepCosts | None, weights: Floats) -> Floats:
    if costs is None:
        return np.zeros(2)
    inside = weights / np.maximum(steps["duration_ns"], 1)
    return np.array([(costs.model_flop * inside).sum(), (costs.hbm_bytes * inside).sum()])
