"""Values of people's tables and records: numbers with remarks, blanks, words for "unknown"."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import InputError, Problem

_BEGINS_WITH_NUMBER = re.compile(r"\s*([-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?)")
_NOTHING = {"", "-", "n/a", "na", "none", "null", "nan", "unknown", "not stated"}


class Fields:
    """One row or object; collects what is written in it but can't be understood."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.unclear: list[str] = []

    def text(self, name: str) -> str | None:
        """Return a text without blanks around it, or None where nothing is said."""
        value = self._values.get(name)
        if value is None or isinstance(value, dict | list):
            return None
        text = str(value).strip()
        return None if text.lower() in _NOTHING else text

    def number(self, name: str) -> float | None:
        """Return the number that a value begins with (`0.90 (default)`), None where none is."""
        value = self._values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value) if math.isfinite(value) else None
        text = self.text(name)
        if text is None:
            return None
        found = _BEGINS_WITH_NUMBER.match(text)
        if found is None:
            self.unclear.append(f"{name} is no number: {text[:60]!r}")
            return None
        return float(found[1].replace(",", ""))

    def positive(self, name: str) -> float | None:
        """Return a number above 0; another is unclear."""
        number = self.number(name)
        if number is not None and number <= 0:
            self.unclear.append(f"{name} must be above 0, not {number:g}")
            return None
        return number

    def count(self, name: str) -> int | None:
        """Return a whole number from 1 on; another is unclear."""
        number = self.positive(name)
        if number is not None and number != round(number):
            self.unclear.append(f"{name} must be a whole number, not {number:g}")
            return None
        return None if number is None else round(number)

    def truth(self, name: str) -> bool | None:
        """Return true or false, None for anything else."""
        value = self._values.get(name)
        return value if isinstance(value, bool) else None

    def part(self, name: str) -> "Fields":
        """Return an inner object; empty where there is none."""
        value = self._values.get(name)
        inner = Fields(value if isinstance(value, dict) else {})
        inner.unclear = self.unclear  # one list for the whole record
        return inner

    def parts(self, name: str) -> list["Fields"]:
        """Return the objects of an inner list; empty where there is none."""
        value = self._values.get(name)
        value = value if isinstance(value, list) else []
        found = [Fields(item) for item in value or () if isinstance(item, dict)]
        for inner in found:
            inner.unclear = self.unclear
        return found

    def names(self) -> list[str]:
        """Return the names of all values, in their order."""
        return [str(name) for name in self._values]


def named_rows(rows: Iterator[tuple[int, Mapping[str, str]]], file: Path) -> list[Fields]:
    """Return the rows of a table, given with the lines that they stand in.

    Raises:
        InputError: A row names neither itself nor its model; all such rows, with their lines.
    """
    named, problems = [], []
    for line, row in rows:
        fields = Fields(row)
        missing = [name for name in ("id", "model") if fields.text(name) is None]
        problems += [Problem("is missing", str(file), line, name) for name in missing]
        named.append(fields)
    if problems:
        raise InputError(*problems)
    return named
