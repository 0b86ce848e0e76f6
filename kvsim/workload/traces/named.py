"""Any CSV, JSONL or Parquet file whose columns the user names."""

from kvsim.errors import InputError, Problem
from kvsim.workload.traces.format import Head, Layout, Reading
from kvsim.workload.traces.table import read_table
from kvsim.workload.traces.trace import Trace


class NamedColumns:
    """The user says which columns hold what; see `Format`."""

    name = "columns"
    shape = "CSV, JSONL or Parquet whose columns you name (`columns`)"

    def recognizes(self, head: Head) -> bool:
        """Return False: what columns mean can't be guessed; see `Format`."""
        return False

    def read(self, reading: Reading) -> Trace:
        """Read a file; see `Format`."""
        if reading.columns is None:
            raise InputError(Problem("say which columns to read: `columns`", str(reading.path)))
        return read_table(reading, Layout(reading.columns), self.name)


FORMAT = NamedColumns()
