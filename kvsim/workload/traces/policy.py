"""What a scenario says of a request log that it reads."""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvsim.workload.files import ReadsFile
from kvsim.workload.limits import Printable
from kvsim.workload.traces import Columns, TimeUnit, Trace, read_lengths, read_trace

Value = str | int | float | bool
_OPTIONS = {"format", "columns", "time_unit", "skip_bad_rows", "where"}  # of `read_trace`


class ReadsTrace(ReadsFile):
    """A policy that reads a request log, in any format that kvsim knows."""

    format: Printable | None = None
    """Name of the file's format; null: recognized from its first line."""
    columns: Columns | None = None
    """Which columns hold what, in a CSV, JSONL or Parquet file of no known format."""
    time_unit: TimeUnit | None = None
    """Unit of the arrivals; null: as the format says; with `columns` seconds, or timestamps where
    a date is written."""
    skip_bad_rows: int = Field(default=0, ge=0)
    """So many rows that can't be used are left out; more are refused."""
    where: dict[Printable, Value | list[Value]] = Field(default_factory=dict)
    """Only rows whose column has this value, or one of these, for example `Model: GPT-4`."""

    def read(self) -> Trace:
        """Read the log; `InputError` if it can't be used.

        The last logs are kept, as long as their files stay as they are: a study reads one for each
        of its points.
        """
        try:
            state = self.path.stat()
        except (OSError, ValueError):
            return read_trace(self.path)  # says what is wrong
        options = self.model_dump_json(include=_OPTIONS)
        return _read(self.path, state.st_mtime_ns, state.st_size, options)

    def read_lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Read prompt and answer lengths alone; `InputError` if the log can't be used."""
        return read_lengths(
            self.path,
            format=self.format,
            columns=self.columns,
            skip_bad_rows=self.skip_bad_rows,
            where=self.where,
        )


@lru_cache(maxsize=4)
def _read(path: Path, modified_ns: int, size_bytes: int, options: str) -> Trace:
    del modified_ns, size_bytes  # they only tell states of the file apart
    return read_trace(path, **json.loads(options))
