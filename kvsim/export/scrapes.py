"""What a monitor would have read of the engines of a run, at some instants."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.export.span import Ints
from kvsim.metrics.cut import YIELDED_AT_THE_END, cut_events, cut_steps
from kvsim.metrics.gaps import step_gaps
from kvsim.table_files import chunks
from kvsim.tables import EVENT_KINDS, LOSSES, RETURNS, SLOT_COLUMNS, Columns

_DELAYED = EVENT_KINDS.index("delayed")
_ENDS = ("replica", "start_ns", "duration_ns", *YIELDED_AT_THE_END)
_OWNED = ("kv_held_tokens", "kv_to_come_tokens", "kv_inside_tokens")


class Totals:
    """Values added up until each instant, by bucket if there are any.

    Attributes:
        counts: How many values came until then; shape (engines, instants, buckets + 1), each bucket
            includes those before it, the last holds all.
        sums: Their sums, shape (engines, instants).
    """

    def __init__(self, engines: int, at_ns: Ints, buckets: Ints) -> None:
        self._at_ns = at_ns
        self._buckets = buckets
        self.counts = np.zeros((engines, len(at_ns), len(buckets) + 1), dtype=np.int64)
        self.sums = np.zeros((engines, len(at_ns)), dtype=np.int64)

    def add(self, engines: Ints, times_ns: Ints, values: Ints, counts: Ints | None = None) -> None:
        """Take values in, each as often as told; none may come after the last instant."""
        times = np.searchsorted(self._at_ns, times_ns)
        many = np.ones(len(values), dtype=np.int64) if counts is None else counts
        places = np.searchsorted(self._buckets, values)
        np.add.at(self.counts, (engines, times, places), many)
        np.add.at(self.sums, (engines, times), values * many)

    def done(self) -> "Totals":
        """Add up over time and over buckets; return itself."""
        self.counts = self.counts.cumsum(axis=1).cumsum(axis=2)
        self.sums = self.sums.cumsum(axis=1)
        return self


def token_gaps(steps: Columns, events: Columns, end_ns: int | None, totals: Totals) -> Totals:
    """Add the gaps between tokens, each when the later one came.

    Args:
        steps: The steps table.
        events: The events table.
        end_ns: Where the run was cut; None if it drained.
        totals: What takes them.
    """
    for chunk in chunks(steps, _ENDS):
        ended = chunk if end_ns is None else cut_steps(chunk, None, end_ns)[0]
        durations_ns, tokens = step_gaps(ended, 0)
        some = tokens > 0
        ends_ns = chunk["start_ns"] + chunk["duration_ns"]
        totals.add(chunk["replica"][some], ends_ns[some], durations_ns[some], tokens[some])
    told = events if end_ns is None else cut_events(events, end_ns)
    kinds = told["event"]
    tokens = np.where(kinds == _DELAYED, told["tokens"], np.isin(kinds, RETURNS))
    some = tokens > 0
    where = told["replica"][some], told["time_ns"][some]
    totals.add(*where, told["gap_ns"][some], tokens[some].astype(np.int64))
    return totals.done()


def step_tokens(steps: Columns, end_ns: int | None, totals: Totals) -> Totals:
    """Add the tokens computed in each step, when it ended."""
    for chunk in chunks(steps, _ENDS):
        ends_ns = chunk["start_ns"] + chunk["duration_ns"]
        done = ends_ns < (2**63 - 1 if end_ns is None else end_ns)
        tokens = chunk["prefill_tokens"] + chunk["decode_seqs"]
        totals.add(chunk["replica"][done], ends_ns[done], tokens[done])
    return totals.done()


def preemptions(events: Columns, totals: Totals) -> Totals:
    """Count how often a sequence lost its KV cache."""
    lost = np.isin(events["event"], LOSSES)
    engines, times_ns = events["replica"][lost], events["time_ns"][lost]
    totals.add(engines, times_ns, np.ones(len(times_ns), dtype=np.int64))
    return totals.done()


def levels(steps: Columns, engines: int, at_ns: Ints) -> dict[str, NDArray[Any]]:
    """Return what holds at each instant: zero while an engine idles.

    Returns:
        `running`, `waiting`, and the share `usage` of the KV cache that sequences own; arrays of
        shape (engines, instants).
    """
    shape = engines, len(at_ns)
    found: dict[str, NDArray[Any]] = {
        "running": np.zeros(shape, dtype=np.int64),
        "waiting": np.zeros(shape, dtype=np.int64),
        "usage": np.zeros(shape),
    }
    read = ("replica", "start_ns", "duration_ns", "running_seqs", "waiting_seqs", *SLOT_COLUMNS)
    for chunk in chunks(steps, read):
        for engine in np.unique(chunk["replica"]).tolist():
            rows = np.flatnonzero(chunk["replica"] == engine)
            rows = rows[np.argsort(chunk["start_ns"][rows], kind="stable")]
            places = np.searchsorted(chunk["start_ns"][rows], at_ns, side="right") - 1
            begun = places >= 0
            rows = rows[places[begun]]
            runs = chunk["start_ns"][rows] + chunk["duration_ns"][rows] > at_ns[begun]
            capacity = _sum(chunk, SLOT_COLUMNS, rows)
            found["running"][engine, begun] = chunk["running_seqs"][rows] * runs
            found["waiting"][engine, begun] = chunk["waiting_seqs"][rows] * runs
            found["usage"][engine, begun] = _sum(chunk, _OWNED, rows) * runs / capacity
    return found


def _sum(chunk: Columns, names: Sequence[str], rows: Ints) -> Ints:
    total: Ints = np.sum([chunk[name][rows] for name in names], axis=0)
    return total
