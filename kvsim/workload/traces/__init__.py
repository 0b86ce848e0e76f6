"""Request logs, read as they are published: each file here with a `FORMAT` is one format.

Adding such a file is all it takes: the reader, the messages and the tests find it in the package.
"""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.workload.traces.format import Columns, Format, Head, Reading, TimeUnit
from kvsim.workload.traces.trace import Trace

__all__ = ["Columns", "TimeUnit", "Trace", "formats", "read_lengths", "read_trace"]

Value = str | int | float | bool


@cache
def formats() -> dict[str, Format]:
    """Return the formats by name, in the order of their names."""
    found: dict[str, Format] = {}
    for entry in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{entry.name}")
        if hasattr(module, "FORMAT"):
            found[module.FORMAT.name] = module.FORMAT
    return dict(sorted(found.items()))


def read_trace(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002
    columns: Columns | Mapping[str, str] | None = None,
    time_unit: TimeUnit | None = None,
    skip_bad_rows: int = 0,
    where: Mapping[str, Value | Sequence[Value]] | None = None,
) -> Trace:
    """Read a request log, plain or compressed by gzip or zstd.

    Args:
        path: The file.
        format: Name of its format; None: recognized from its first line.
        columns: Which columns hold what, in a file of no known format.
        time_unit: Unit of the arrivals, where it isn't what the format says; by default seconds,
            or timestamps where a date is written.
        skip_bad_rows: So many rows that can't be used are left out.
        where: Only rows whose column has one of these values are read.

    Raises:
        InputError: With the place of every bad row (the first twenty of them), if there are more
            than allowed; the format isn't known; the file can't be read or has no times.
    """
    reading = _reading(path, columns, time_unit, skip_bad_rows, where)
    return _format_of(reading, format).read(reading)


def read_lengths(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002
    columns: Columns | Mapping[str, str] | None = None,
    skip_bad_rows: int = 0,
    where: Mapping[str, Value | Sequence[Value]] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return prompt and answer lengths of a request log, in the order of the file.

    Files without times serve too; arguments and errors are those of `read_trace`.
    """
    reading = _reading(path, columns, None, skip_bad_rows, where, times=False)
    trace = _format_of(reading, format).read(reading)
    return trace.prompt_tokens, trace.output_tokens


def _reading(
    path: Path,
    columns: Columns | Mapping[str, str] | None,
    time_unit: TimeUnit | None,
    skip_bad_rows: int,
    where: Mapping[str, Value | Sequence[Value]] | None,
    times: bool = True,
) -> Reading:
    if columns is not None and not isinstance(columns, Columns):
        try:
            columns = Columns.model_validate(dict(columns))
        except ValidationError as error:
            raise InputError(
                *(
                    Problem(problem["msg"], path=".".join(("columns", *map(str, problem["loc"]))))
                    for problem in error.errors()
                )
            ) from error
    from kvsim.workload.traces._source import head_of  # Arrow takes a while to import

    texts = {name: _texts(value) for name, value in (where or {}).items()}
    return Reading(path, head_of(path), columns, time_unit, skip_bad_rows, texts, times)


def _texts(value: Value | Sequence[Value]) -> tuple[str, ...]:
    values = (value,) if isinstance(value, str | int | float) else value
    spelled = [str(one) for one in values]
    spelled += [str(one).lower() for one in values if isinstance(one, bool)]
    return tuple(spelled)


def _format_of(reading: Reading, name: str | None) -> Format:
    known = formats()
    if name is None and reading.columns is not None:
        name = "columns"
    if name is None:
        return _recognized(reading.head, reading.path)
    if name not in known:
        listed = ", ".join(known)
        raise InputError(f"no trace format {name!r}{did_you_mean(name, known)}; known: {listed}")
    if reading.columns is not None and name != "columns":
        raise InputError(f"`columns` can't be given for format {name}, which has its own")
    return known[name]


def _recognized(head: Head, path: Path) -> Format:
    for candidate in formats().values():
        if candidate.recognizes(head):
            return candidate
    _refuse_later_keys(head, path)
    listed = "; ".join(f"{one.name}: {one.shape}" for one in formats().values())
    wrong = f"is in no format that kvsim recognizes: {head}. Formats: {listed}"
    raise InputError(Problem(wrong, str(path), None if head.kind == "parquet" else 1))


def _refuse_later_keys(head: Head, path: Path) -> None:
    """Refuse lines of JSON that were in a known format, did not a later one have further keys."""
    first_line = replace(head, names=tuple(key for key in head.names if key not in head.later))
    for candidate in formats().values() if head.later else ():
        if candidate.recognizes(first_line):
            key, line = next(iter(head.later.items()))
            wrong = (
                f"has {key!r}, which format {candidate.name} has not: say the format, or columns"
            )
            raise InputError(Problem(wrong, str(path), line))
