"""Facts, appended: packed rows of integers that leave in chunks as they come together."""

from collections.abc import Callable
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.step_rows import StepRows
from kvsim.tables import TABLES

# A chunk of rows leaves when so many steps of all replicas have come together, or requests.
STEPS_IN_A_CHUNK = 32_768
REQUESTS_IN_A_CHUNK = 50_000

Sink = Callable[[str, NDArray[np.int64]], None]  # table name, rows of shape (n, columns)


class Recorder:
    """Collects the rows of the three tables; memory doesn't grow with their number.

    The values of a row come in the order of `kvsim.tables`, all integers. Packing them at once is
    several times cheaper than keeping Python integers. Steps are collected by replica; a chunk has
    those of the first replica, then those of the next.
    """

    __slots__ = ("_packers", "_rows", "_sink", "steps")

    def __init__(self, sink: Sink, replicas: int) -> None:
        self._sink = sink
        self._packers = {
            name: Struct(f"={len(columns)}q") for name, columns in TABLES.items() if name != "steps"
        }
        self._rows: dict[str, list[bytes]] = {name: [] for name in self._packers}
        self.steps = [StepRows() for _ in range(replicas)]

    def add(self, table: str, *row: int) -> None:
        """Append a row to the requests or the events."""
        self._rows[table].append(self._packers[table].pack(*row))

    def flush(self, before_ns: int | None = None) -> list[int]:
        """Send what there is to the sink; of the steps those that start before an instant.

        Returns:
            How many steps of each replica there were.
        """
        for name, rows in self._rows.items():
            if rows:
                values = np.frombuffer(b"".join(rows), dtype=np.int64)
                rows.clear()
                self._sink(name, values.reshape(-1, len(TABLES[name])))
        steps = [each.take(before_ns) for each in self.steps]
        if any(map(len, steps)):
            self._sink("steps", np.concatenate(steps))
        return list(map(len, steps))
