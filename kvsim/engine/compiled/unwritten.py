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
        written = np.take(steps, places[np.argsort(owners, kind="stable")], axis=0)
        at[:, WRITTEN_STEPS] += np.bincount(owners, minlength=len(at))
        kept = steps[~taken]
        buffer[: len(kept)] = kept
        rows[STEP_ROWS] = len(kept)
        return np.asfortranarray(written)

    def take_events(self, until_ns: int | None, index: int) -> Ints:
        """Return what happened up to an instant of replica `index`, or all."""
        rows, buffer = self.replicas.rows, self.replicas.events
        events = buffer[: rows[EVENT_ROWS]]
        taken = np.full(len(events), True)
        if until_ns is not None:
            time_ns, replica = events[:, EVENT_NS], events[:, EVENT_REPLICA]
            taken = (time_ns < until_ns) | ((time_ns == until_ns) & (replica <= index))
        happened, kept = events[taken], events[~taken]
        buffer[: len(kept)] = kept
        rows[EVENT_ROWS] = len(kept)
        return happened

    def left(self) -> Ints:
        """Return who has left and isn't written: row of the request table, time, replica."""
        return self.replicas.left[: self.replicas.rows[LEFT_ROWS]]

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
            steps = np.concatenate([steps, np.zeros_like(steps)])
        if 2 * rows[LEFT_ROWS] > len(left):
            left = np.concatenate([left, np.zeros_like(left)])
        if 2 * rows[EVENT_ROWS] > len(events):
            events = np.concatenate([events, np.zeros_like(events)])
        self.replicas = replicas._replace(steps=steps, left=left, events=events)
