"""What a scenario says of a request log that it reads."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvsim.workload.files import ReadsFile, once_per_state
from kvsim.workload.limits import Printable
from kvsim.workload.requests import Segments
from kvsim.workload.traces import Columns, TimeUnit, Trace, read_lengths, read_trace

Value = str | int | float | bool


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
        """Read the log; `InputError` if it can't be used."""
        return _trace(self.path, self.model_dump_json(include=_HOW))

    def read_lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Read prompt and answer lengths alone; `InputError` if the log can't be used."""
        return _lengths(self.path, self.model_dump_json(include=_HOW - {"time_unit"}))


_HOW = {"format", "columns", "time_unit", "skip_bad_rows", "where"}


@once_per_state(most=4)
def _trace(path: Path, how: str) -> Trace:
    trace = read_trace(path, **json.loads(how))
    for values in (getattr(trace, field.name) for field in fields(trace)):
        _keep_as_is(values)
    return trace


@once_per_state(most=4)
def _lengths(path: Path, how: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths = read_lengths(path, **json.loads(how))
    for values in lengths:
        _keep_as_is(values)
    return lengths


def _keep_as_is(values: object) -> None:
    """Let nobody write into what is shared."""
    if isinstance(values, np.ndarray):
        values.setflags(write=False)
    elif isinstance(values, Segments):
        for field in fields(values):
            _keep_as_is(getattr(values, field.name))
