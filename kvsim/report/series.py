"""From tables of any length to the few points that a chart draws, without inventing a value.

Every point drawn is a state that the run was in: reductions pick rows, they never average.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.table_files import chunks
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


def timeline(
    steps: Columns, names: Sequence[str], lasting: Sequence[str] = ()
) -> Iterator[Timeline]:
    """Yield step columns as levels over time, part by part: memory doesn't grow with the steps.

    A replica without a step counts as zero. A level holds during its step, one of `lasting` until
    the next step. Replicas are summed by adding up every change, in integers, so that the result
    doesn't depend on their order.

    Chunks of the table may overlap in time. A part ends where the first step of any later chunk
    starts: until then nothing more can change.
    """
    starts_ns = [int(c["start_ns"].min(initial=_NEVER)) for c in chunks(steps, ("start_ns",))]
    final_ns = np.minimum.accumulate([_NEVER, *reversed(starts_ns)])[-2::-1].tolist()
    sweep = _Sweep(np.array([name in lasting for name in names]))
    read = ("replica", "start_ns", "duration_ns", *names)
    for chunk, until_ns in zip(chunks(steps, read), final_ns, strict=True):
        sweep.take(chunk, names)
        yield sweep.until(until_ns)


def extent_ns(steps: Columns) -> tuple[int, int]:
    """Return when the first step starts and the last one ends; zeros without steps."""
    first_ns, last_ns = _NEVER, 0
    for chunk in chunks(steps, ("start_ns", "duration_ns")):
        first_ns = min(first_ns, int(chunk["start_ns"].min(initial=_NEVER)))
        last_ns = max(last_ns, int((chunk["start_ns"] + chunk["duration_ns"]).max(initial=0)))
    return min(first_ns, last_ns), last_ns


_NEVER = 2**63 - 1


class _Sweep:
    """Adds up the changes of levels in order of time."""

    def __init__(self, lasts: NDArray[np.bool_]) -> None:
        self._lasts = lasts
        self._level = np.zeros(len(lasts), dtype=np.int64)  # where the last part ended
        # By replica: the end of its last step, and its levels; once it idles, it ends never.
        self._before: dict[int, tuple[int, Ints]] = {}
        self._times: list[Ints] = []
        self._changes: list[Ints] = []

    def take(self, steps: Columns, names: Sequence[str]) -> None:
        """Take steps: all that come later start after those of the same replica."""
        for replica, rows in _by_replica(steps):
            starts = steps["start_ns"][rows]
            ends = starts + steps["duration_ns"][rows]
            levels = np.stack([steps[name][rows] for name in names], axis=1)
            before_ns, before = self._before.get(replica, (_NEVER, np.zeros_like(levels[0])))
            changes = np.diff(levels, axis=0, prepend=before[None, :])
            ends_before = np.append(before_ns, ends[:-1])
            idle = np.flatnonzero(ends_before < starts)  # before these steps
            if len(idle):
                busy_levels = levels[idle] - changes[idle]
                ended = busy_levels * self._lasts - busy_levels
                self._note(ends_before[idle], ended)
                changes[idle] -= ended
            self._note(starts, changes)
            self._before[replica] = int(ends[-1]), levels[-1]

    def until(self, until_ns: int) -> Timeline:
        """Return the timeline up to an instant, from which on everything may still change."""
        for replica, (end_ns, levels) in self._before.items():
            if end_ns < until_ns:  # it idles: its next step starts later
                idle_levels = levels * self._lasts
                self._note(np.array([end_ns]), (idle_levels - levels)[None, :])
                self._before[replica] = _NEVER, idle_levels
        times_ns = np.concatenate([np.zeros(0, np.int64), *self._times])
        changes = np.concatenate([np.zeros((0, len(self._level)), np.int64), *self._changes])
        later = times_ns >= until_ns
        self._times, self._changes = [times_ns[later]], [changes[later]]
        if later.any():
            times_ns, changes = times_ns[~later], changes[~later]
        part = _add_up(times_ns, changes, self._level)
        self._level = part.levels[-1] if len(part) else self._level
        return part

    def _note(self, times_ns: Ints, changes: Ints) -> None:
        self._times.append(times_ns)
        self._changes.append(changes)


def _by_replica(steps: Columns) -> Iterator[tuple[int, Ints | slice]]:
    """Yield each replica with its rows, in order of time."""
    replicas, starts = steps["replica"], steps["start_ns"]
    if len(replicas) and (replicas == replicas[0]).all() and (np.diff(starts) >= 0).all():
        yield int(replicas[0]), slice(None)
        return
    for replica in np.unique(replicas).tolist():
        rows = np.flatnonzero(replicas == replica)
        yield replica, rows[np.argsort(starts[rows], kind="stable")]


def _add_up(times_ns: Ints, changes: Ints, level: Ints) -> Timeline:
    if (np.diff(times_ns) < 0).any():
        order = np.argsort(times_ns, kind="stable")
        times_ns, changes = times_ns[order], changes[order]
    levels = np.cumsum(changes, axis=0)
    levels += level
    last_at_its_time = np.diff(times_ns, append=_NEVER) > 0
    if not last_at_its_time.all():
        times_ns, levels = times_ns[last_at_its_time], levels[last_at_its_time]
    return Timeline(times_ns, levels)


def joined(parts: Iterable[Timeline]) -> Timeline:
    """Return parts that follow one another as one timeline."""
    times_ns, levels = zip(*((part.times_ns, part.levels) for part in parts), strict=True)
    return Timeline(np.concatenate(times_ns), np.concatenate(levels))


@dataclass(frozen=True, slots=True)
class Reduced:
    """A timeline of any length, reduced to what charts and their tables show.

    Attributes:
        states: How many states it has.
        drawn: For each measure, the timeline at the rows that `envelope` keeps.
        means: For each division of time, the mean of each level in its spans.
        peaks: The highest value of each level.
    """

    states: int
    drawn: Sequence[Timeline]
    means: Sequence[Floats]
    peaks: Ints


def reduced(
    parts: Iterable[Timeline],
    span_ns: tuple[int, int],
    measures: Sequence[int],
    divisions: Sequence[Ints],
) -> Reduced:
    """Reduce a timeline as its parts come.

    Args:
        parts: They follow one another; at least one.
        span_ns: The first instant of the timeline, and the last.
        measures: Columns of the levels whose extremes are drawn, see `envelope`.
        divisions: Each the edges of neighboring spans of time, see `time_means`.
    """
    drawn = [_Drawn(span_ns, measure) for measure in measures]
    edges_ns = np.unique(np.concatenate(divisions))
    areas: Floats = np.zeros((0, 0))
    peaks: Ints = np.zeros(0, dtype=np.int64)
    states, last = 0, None
    for part in parts:
        if not len(peaks):
            peaks = np.zeros(part.levels.shape[1], dtype=np.int64)
            areas = np.zeros((len(edges_ns) - 1, len(peaks)))
        for each in drawn:
            each.add(part)
        if not len(part):
            continue
        whole = part if last is None else joined([last, part])
        areas += time_areas(whole, edges_ns)
        peaks = np.maximum(peaks, part.levels.max(axis=0))
        states, last = states + len(part), part.pick(np.array([-1]))
    upto = np.vstack([np.zeros(len(peaks)), np.cumsum(areas, axis=0)])
    means = [
        np.diff(upto[np.searchsorted(edges_ns, edges)], axis=0) / np.diff(edges)[:, None]
        for edges in divisions
    ]
    return Reduced(states, [each.kept(states) for each in drawn], means, peaks)


class _Drawn:
    """The rows of a timeline that are drawn; of many it keeps the extremes as they come."""

    def __init__(self, span_ns: tuple[int, int], measure: int) -> None:
        self._span_ns = span_ns
        self._measure = measure
        self._rows: list[Timeline] = []
        self._count = 0

    def add(self, part: Timeline) -> None:
        """Take the next part."""
        self._rows.append(part if len(part) <= MAX_POINTS else self._thinned(part))
        self._count += len(self._rows[-1])
        if self._count > 4 * MAX_POINTS:
            self._rows = [self._thinned(joined(self._rows))]
            self._count = len(self._rows[0])

    def kept(self, states: int) -> Timeline:
        """Return the rows to draw of so many that were taken."""
        rows = joined(self._rows)
        return rows if states <= MAX_POINTS else self._thinned(rows)

    def _thinned(self, rows: Timeline) -> Timeline:
        measure = rows.levels[:, self._measure]
        return rows.pick(_extremes(rows.times_ns, measure, self._span_ns, MAX_POINTS))


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
    return _extremes(times_ns, measure, (int(times_ns[0]), int(times_ns[-1])), max_points)


def _extremes(times_ns: Ints, measure: Ints, span_ns: tuple[int, int], max_points: int) -> Ints:
    """Choose the lowest and the highest row in each part of a span of time, and both ends."""
    count, spans = len(times_ns), (max_points - 2) // 2
    width_ns = (span_ns[1] - span_ns[0]) // spans + 1
    span_of_row = np.minimum((times_ns - span_ns[0]) // width_ns, spans - 1)
    firsts = np.flatnonzero(np.append(True, np.diff(span_of_row) > 0))
    lengths = np.diff(np.append(firsts, count))
    kept = [np.array([0, count - 1])]
    for extreme in (np.minimum, np.maximum):
        hits = np.flatnonzero(measure == np.repeat(extreme.reduceat(measure, firsts), lengths))
        kept.append(hits[np.searchsorted(hits, firsts)])
    return np.unique(np.concatenate(kept))


def time_means(line: Timeline, edges_ns: Ints) -> Floats:
    """Return each level's mean over time between neighboring edges, shape (edges - 1, names)."""
    return np.asarray(time_areas(line, edges_ns) / np.diff(edges_ns)[:, None])


def time_areas(line: Timeline, edges_ns: Ints) -> Floats:
    """Return each level × time between neighboring edges, shape (edges - 1, names)."""
    areas = np.zeros((len(edges_ns) - 1, line.levels.shape[1]))
    if not len(line):
        return areas
    inside = np.clip(edges_ns, line.times_ns[0], line.times_ns[-1])
    for place in np.flatnonzero(inside[:-1] < inside[1:]):
        start_ns, end_ns = inside[place : place + 2]
        first = int(np.searchsorted(line.times_ns, start_ns, side="right")) - 1
        last = int(np.searchsorted(line.times_ns, end_ns, side="left"))
        borders = np.concatenate([[start_ns], line.times_ns[first + 1 : last], [end_ns]])
        widths = np.diff(borders).astype(np.float64)
        areas[place] = (line.levels[first:last] * widths[:, None]).sum(axis=0)
    return areas


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
