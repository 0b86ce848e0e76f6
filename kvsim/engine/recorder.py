"""Facts, appended: packed rows of integers that leave in chunks as they come together."""

from collections.abc import Callable
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from kvsim.tables import TABLES

ROWS_IN_A_CHUNK = 32_768

Sink = Callable[[str, NDArray[np.int64]], None]  # table name, rows of shape (n, columns)


class Recorder:
    """Collects the rows of the three tables; memory doesn't grow with their number.

    The values of a row come in the order of `kvsim.tables`, all integers. Packing them at once is
    several times cheaper than keeping Python integers; the step loop holds on to the packer and
    the appender of its table.
    """

    __slots__ = ("_packers", "_rows", "_sink", "_steps")

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._packers = {name: Struct(f"={len(columns)}q") for name, columns in TABLES.items()}
        self._rows: dict[str, list[bytes]] = {name: [] for name in TABLES}
        self._steps = self._rows["steps"]

    def appender(self, table: str) -> Callable[[bytes], None]:
        """Return what appends a packed row to a table."""
        return self._rows[table].append

    def packer(self, table: str) -> Callable[..., bytes]:
        """Return what packs the values of a row."""
        return self._packers[table].pack

    def add(self, table: str, *row: int) -> None:
        """Append a row."""
        self._rows[table].append(self._packers[table].pack(*row))

    def flush_if_full(self) -> None:
        """Send everything to the sink if a chunk of steps has come together."""
        if len(self._steps) >= ROWS_IN_A_CHUNK:
            self.flush()

    def flush(self) -> None:
        """Send what there is to the sink."""
        for name, rows in self._rows.items():
            if rows:
                values = np.frombuffer(b"".join(rows), dtype=np.int64)
                rows.clear()
                self._sink(name, values.reshape(-1, len(TABLES[name])))
