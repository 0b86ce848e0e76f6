"""Rows of the compiled loop until they are written: taken out of its buffers, in order."""

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.compiled.books import OWNER, START
from kvsim.engine.compiled.layout import (
    EVENT_ROWS,
    LEFT_ROWS,
    STEP_ROWS,
    WRITTEN_STEPS,
    Ints,
    Replicas,
)

EVENT_NS, EVENT_REPLICA = 1, 0
ROWS_AT_ONCE = 2048  # so few stay in the processor's cache


class Unwritten:
    """The buffers of rows that all replicas share."""

    def __init__(self, replicas: Replicas) -> None:
        """Take rows from these replicas."""
        self.replicas = replicas

    def take_steps(self, until_ns: int | None) -> Ints:
        """Return the rows of steps that start before an instant, or all; they are written now.

        A replica's rows stand together, in the order of the replicas. Columns lie together in
        memory: that is how rows are checked and written.
        """
        rows, buffer = self.replicas.rows, self.replicas.steps
        steps = buffer[: rows[STEP_ROWS]]
        taken = np.full(len(steps), True) if until_ns is None else steps[:, START] < until_ns
        places = np.flatnonzero(taken)
        at = self.replicas.at
        # Short numbers are sorted in one pass.
        owners = steps[places, OWNER].astype(np.min_scalar_type(len(at)))
        written = _gathered(steps, places[np.argsort(owners, kind="stable")])
        at[:, WRITTEN_STEPS] += np.bincount(owners, minlength=len(at))
        kept = steps[~taken]
        buffer[: len(kept)] = kept
        rows[STEP_ROWS] = len(kept)
        return written

    def take_events(self, until_ns: int | None, index: int) -> Ints:
        """Return what happened up to an instant of replica `index`, or all."""
        rows, buffer = self.replicas.rows, self.replicas.events
        events = buffer[: rows[EVENT_ROWS]]
        taken = np.full(len(events), True)
        if until_ns is not None:
            time_ns, replica = events[:, EVENT_NS], events[:, EVENT_REPLICA]
            taken = (time_ns < until_ns) | ((time_ns == until_ns) & (replica <= index))
        happened: Ints = events[taken]
        kept = events[~taken]
        buffer[: len(kept)] = kept
        rows[EVENT_ROWS] = len(kept)
        return happened

    def left(self) -> Ints:
        """Return who has left and isn't written: row of the request table, time, replica."""
        left: Ints = self.replicas.left[: self.replicas.rows[LEFT_ROWS]]
        return left

    def forget_left(self, requests: NDArray[np.int64]) -> None:
        """Note that these requests are written."""
        left = self.left()
        kept = left[~np.isin(left[:, 0], requests)]
        left[: len(kept)] = kept
        self.replicas.rows[LEFT_ROWS] = len(kept)

    def forget_all(self) -> None:
        """Drop all rows."""
        self.replicas.rows[[STEP_ROWS, LEFT_ROWS, EVENT_ROWS]] = 0

    def make_room(self) -> None:
        """Double the buffers that are about to be full."""
        replicas, rows = self.replicas, self.replicas.rows
        steps, left, events = replicas.steps, replicas.left, replicas.events
        if 2 * rows[STEP_ROWS] > len(steps):
            steps = _doubled(steps)
        if 2 * rows[LEFT_ROWS] > len(left):
            left = _doubled(left)
        if 2 * rows[EVENT_ROWS] > len(events):
            events = _doubled(events)
        self.replicas = replicas._replace(steps=steps, left=left, events=events)


def _doubled(buffer: Ints) -> Ints:
    larger = np.zeros((2 * len(buffer), buffer.shape[1]), dtype=np.int64)
    larger[: len(buffer)] = buffer
    return larger


def _gathered(rows: Ints, places: NDArray[np.int64]) -> Ints:
    """Return these rows, whose columns lie together."""
    columns = np.empty((rows.shape[1], len(places)), dtype=np.int64)
    for start in range(0, len(places), ROWS_AT_ONCE):
        end = start + ROWS_AT_ONCE
        columns[:, start:end] = np.take(rows, places[start:end], axis=0).T
    return columns.T
