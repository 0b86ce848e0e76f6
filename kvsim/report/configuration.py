"""Resolved inputs line by line, and where those of several variants or runs differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvsim.report.figure import Table
from kvsim.report.inputs import Variant

LONGEST_VALUE = 300
ABSENT = "–"


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested mappings: dotted path and value, which is cut if it is long."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flattened(inner, f"{path}.{key}" if path else str(key))
        return
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    yield path, shown if len(shown) <= LONGEST_VALUE else shown[: LONGEST_VALUE - 1] + "…"


def differing(inputs: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the lines that are not the same in all inputs, which are keyed by name.

    Notes are sentences about the inputs, and no inputs.
    """
    columns = [dict(flattened(_settings(values))) for values in inputs.values()]
    paths = dict.fromkeys(path for column in columns for path in column)
    parts = list(dict.fromkeys(map(_part, paths)))  # what only one has stands with its like
    paths_by_part = sorted(paths, key=lambda path: parts.index(_part(path)))
    rows = [[path, *(column.get(path, ABSENT) for column in columns)] for path in paths_by_part]
    return Table(["Parameter", *inputs], [row for row in rows if len(set(row[1:])) > 1])


def _part(path: str) -> str:
    return path.partition(".")[0]


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "notes"}


def resolved(variant: Variant) -> Table:
    """Return a variant's inputs, line by line."""
    return Table(["Parameter", variant.name], [list(row) for row in flattened(variant.inputs)])


def as_diff(rows: Sequence[Sequence[str]], place: int) -> list[str]:
    """Return rows of `differing` as a diff of the variant at a place to the first."""
    lines = []
    for path, *values in rows:
        if values[0] != values[place]:
            lines += [f"- {path}: {values[0]}"] if values[0] != ABSENT else []
            lines += [f"+ {path}: {values[place]}"] if values[place] != ABSENT else []
    return lines
