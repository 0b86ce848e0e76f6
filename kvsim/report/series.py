"""From tables of any length to the few points that a chart draws, without inventing a value.

Every point drawn is a state that the run was in: reductions pick rows, they never average.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.tables import Columns

MAX_POINTS = 2_000

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Levels that hold from each instant to the next, summed over the replicas.

    `times_ns` has shape (n,) and increases strictly; `levels` has shape (n, number of names). The
    last row is the state after the last step.
    """

    times_ns: Ints
    levels: Ints

    def __len__(self) -> int:
        return len(self.times_ns)

    def pick(self, rows: Ints) -> "Timeline":
        """Return the timeline at some of its rows."""
        return Timeline(self.times_ns[rows], self.levels[rows])


def timeline(steps: Columns, names: Sequence[str], lasting: Sequence[str] = ()) -> Timeline:
    """Return step columns as levels over time; a replica without a step counts as zero.

    A level holds during its step, one of `lasting` until the next step. Replicas are summed by
    adding up every change, in integers, so that the result doesn't depend on their order.
    """
    times, changes = [], []
    lasts = np.array([name in lasting for name in names])
    for replica in np.unique(steps["replica"]):
        rows = np.flatnonzero(steps["replica"] == replica)
        rows = rows[np.argsort(steps["start_ns"][rows], kind="stable")]
        starts = steps["start_ns"][rows]
        ends = starts + steps["duration_ns"][rows]
        levels = np.stack([steps[name][rows] for name in names], axis=1)
        idle_after = np.append(ends[:-1] < starts[1:], True)
        idle_levels = levels * lasts
        rise = levels.copy()
        rise[1:] -= np.where(idle_after[:-1, None], idle_levels[:-1], levels[:-1])
        times += [starts, ends[idle_after]]
        changes += [rise, (idle_levels - levels)[idle_after]]
    if not times:
        return Timeline(np.zeros(0, dtype=np.int64), np.zeros((0, len(names)), dtype=np.int64))
    return _add_up(np.concatenate(times), np.concatenate(changes))


def _add_up(times_ns: Ints, changes: Ints) -> Timeline:
    order = np.argsort(times_ns, kind="stable")
    times_ns = times_ns[order]
    levels = np.cumsum(changes[order], axis=0)
    last_at_its_time = np.append(times_ns[1:] > times_ns[:-1], True)
    return Timeline(times_ns[last_at_its_time], levels[last_at_its_time])


def envelope(times_ns: Ints, measure: Ints, max_points: int = MAX_POINTS) -> Ints:
    """Choose rows that keep the shape of a long series: in equal spans of time, its extremes.

    Args:
        times_ns: Instants in increasing order, shape (n,).
        measure: The value whose lowest and highest row in each span is kept, shape (n,).
        max_points: How many rows to keep at most; at least 4.

    Returns:
        Row numbers in increasing order; the first and the last row are always among them, and
        all rows if they are few enough.
    """
    count = len(times_ns)
    if count <= max_points:
        return np.arange(count)
    spans = (max_points - 2) // 2
    since = times_ns - times_ns[0]
    span_of_row = np.minimum(since // (since[-1] // spans + 1), spans - 1)
    firsts = np.flatnonzero(np.append(True, np.diff(span_of_row) > 0))
    lengths = np.diff(np.append(firsts, count))
    kept = [np.array([0, count - 1])]
    for extreme in (np.minimum, np.maximum):
        hits = np.flatnonzero(measure == np.repeat(extreme.reduceat(measure, firsts), lengths))
        kept.append(hits[np.searchsorted(hits, firsts)])
    return np.unique(np.concatenate(kept))


def time_means(line: Timeline, edges_ns: Ints) -> Floats:
    """Return each level's mean over time between neighboring edges, shape (edges - 1, names)."""
    if not len(line):
        return np.zeros((len(edges_ns) - 1, line.levels.shape[1]))
    widths = np.diff(line.times_ns).astype(np.float64)
    areas = np.zeros(line.levels.shape)
    np.cumsum(line.levels[:-1] * widths[:, None], axis=0, out=areas[1:])
    inside = np.clip(edges_ns, line.times_ns[0], line.times_ns[-1])
    row = np.clip(np.searchsorted(line.times_ns, inside, side="right") - 1, 0, None)
    upto = areas[row] + line.levels[row] * (inside - line.times_ns[row])[:, None]
    return np.asarray(np.diff(upto, axis=0) / np.diff(edges_ns)[:, None])


def tail(values: Floats, max_points: int = 400) -> tuple[Floats, Floats]:
    """Return the complementary distribution function: values, and the share at or above each.

    Long samples are thinned evenly in rank and, towards the slow end, evenly in the logarithm of
    the rank, so that the slowest requests are all drawn.
    """
    ordered = np.sort(values)
    count = len(ordered)
    ranks = np.arange(count)
    if count > max_points:
        even = np.linspace(0, count - 1, max_points // 2)
        slow = count - np.geomspace(1, count, max_points // 2)
        ranks = np.unique(np.concatenate([even, slow]).round().astype(np.int64))
    return ordered[ranks], (count - ranks) / count
