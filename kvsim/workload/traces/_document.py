"""Logs that are one JSON document: read whole, and turned into columns."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any

import pyarrow as pa

from kvsim.errors import InputError, Problem
from kvsim.workload.files import decompressed, told_by_name
from kvsim.workload.traces.format import Head

_LARGEST_BYTES = 1 << 30
_SHOWN_CHARACTERS = 40


def read_document(
    path: Path, head: Head, rows: Callable[[Any], Mapping[str, Sequence[Any]]]
) -> dict[str, pa.Array]:
    """Return the columns that `rows` finds in a JSON document.

    Raises:
        InputError: The file is too large, is no JSON, or isn't as `rows` expects it: a ValueError
            of `rows` is told.
    """
    try:
        if head.kind not in ("json", "jsonl"):
            raise ValueError(f"should be JSON; {head}")
        columns = rows(_parsed(_content(path)))
        refuse_ragged(columns)
        return {name: _array(name, values) for name, values in columns.items()}
    except ValueError as error:
        wrong = f"is not in the form expected: {error}"
        raise InputError(Problem(wrong, str(path))) from error


def entry(holder: Any, key: str, kind: type | UnionType, what: str = "it") -> Any:
    """Return what an object holds under a key.

    Raises:
        ValueError: It is no object, has no such key, or another kind of value.
    """
    if not isinstance(holder, dict):
        raise ValueError(f"{what} should be an object, not {shown(holder)}")
    if key not in holder:
        raise ValueError(f"{what} has no {key!r}")
    if not isinstance(holder[key], kind):
        raise ValueError(f"{key!r} of {what} should not be {shown(holder[key])}")
    return holder[key]


def shown(value: object) -> str:
    """Return a value as JSON writes it, of long ones the beginning, of others the kind."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def refuse_ragged(columns: Mapping[str, Sequence[Any]]) -> None:
    """Refuse columns of unequal length; ValueError."""
    if len({len(values) for values in columns.values()}) > 1:
        sizes = ", ".join(f"{len(values)} in {name!r}" for name, values in columns.items())
        raise ValueError(f"as many entries in each list, not {sizes}")


def _content(path: Path) -> bytes:
    with decompressed(path) as file, told_by_name(path):
        content = file.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise ValueError(f"at most {_LARGEST_BYTES >> 30} GiB")
    return content


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{error.msg} at {where}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    for row, value in enumerate(values, 1):
        fits = type(value) is float or (type(value) is int and abs(value) < 2**63)
        if value is not None and not fits:
            raise ValueError(f"{name!r} of row {row} should be a number, not {shown(value)}")
    if any(type(value) is float for value in values):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array(values, pa.int64())
