"""Facts, appended: rows of integers in flat buffers that leave in chunks as they fill."""

from array import array
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvsim.tables import TABLES

ROWS_IN_A_CHUNK = 16_384

Sink = Callable[[str, NDArray[np.int64]], None]  # table name, rows of shape (n, columns)


class Recorder:
    """Collects the rows of the three tables; memory doesn't grow with their number.

    `steps`, `requests` and `events` are flat integer buffers: append a row with `extend`, in the
    order of the columns in `kvsim.tables`, then let `flush_if_full` send chunks to the sink.
    """

    __slots__ = ("_full", "_sink", "events", "requests", "steps")

    def __init__(self, sink: Sink) -> None:
        self.requests = array("q")
        self.steps = array("q")
        self.events = array("q")
        self._sink = sink
        self._full = ROWS_IN_A_CHUNK * len(TABLES["steps"])

    def flush_if_full(self) -> bool:
        """Send everything to the sink if a chunk of steps has come together."""
        if len(self.steps) < self._full:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Send what there is to the sink."""
        for name in TABLES:
            buffer: array[int] = getattr(self, name)
            rows = np.frombuffer(buffer, dtype=np.int64).reshape(-1, len(TABLES[name]))
            if len(rows):
                self._sink(name, rows.copy())
            setattr(self, name, array("q"))
