"""The Azure LLM inference traces, read as published.

https://github.com/Azure/AzurePublicDataset (CC-BY-4.0, Microsoft): lines end in CRLF, times have
seven digits after the point, the last line may lack its end.
"""

import re
from datetime import date
from functools import cache
from pathlib import Path

import numpy as np

from kvsim.errors import InputError, Problem
from kvsim.units import NS_PER_S
from kvsim.workload.files import read_lines
from kvsim.workload.traces.trace import Trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
_ROW = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?:\+00:00)?"
    r",(\d{1,9}),(\d{1,9})",
    re.ASCII,
)
_SHOWN_PROBLEMS = 20
_YEARS = range(1970, 2200)  # nanoseconds between any two fit 64 bits


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        InputError: With the line of every bad row (the first twenty of them): not three fields of
            the published form, no token in the prompt or the answer, or earlier than the row
            before.
    """
    lines = read_lines(path)
    if not lines or lines[0].strip() != HEADER:
        raise InputError(Problem(f"the first line must be {HEADER}", str(path), 1))
    rows: list[tuple[int, int, int]] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines[1:], start=2):
        row = _parse_row(line)
        wrong = row if isinstance(row, str) else _out_of_order(row, rows)
        if wrong:
            problems.append(Problem(wrong, str(path), number))
        elif not isinstance(row, str):
            rows.append(row)
    if problems:
        raise InputError(*problems[:_SHOWN_PROBLEMS], *_how_many_more(problems, path))
    if not rows:
        raise InputError(Problem("holds no request", str(path)))
    table = np.array(rows, dtype=np.int64)
    return Trace(table[:, 0] - table[0, 0], table[:, 1].copy(), table[:, 2].copy())


def _parse_row(line: str) -> tuple[int, int, int] | str:
    """Return a row's nanoseconds since the year 2000 and its lengths, or what is wrong."""
    match = _ROW.fullmatch(line.strip())
    if match is None:
        return f"bad row {line.strip()!r}; expected a row like 2023-11-16 18:15:46.6805900,374,44"
    day, hour, minute, second, fraction, prompt, output = match.groups()
    day_number = _day_number(day)
    if day_number is None:
        return f"no such date from {_YEARS.start} to {_YEARS.stop - 1}: {day}"
    if int(prompt) < 1 or int(output) < 1:
        return "prompt and answer must have at least one token each"
    seconds = ((day_number * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second)
    return seconds * NS_PER_S + int((fraction or "0").ljust(9, "0")), int(prompt), int(output)


@cache
def _day_number(day: str) -> int | None:
    try:
        when = date.fromisoformat(day)
    except ValueError:
        return None
    # From the year 2000, so that nanoseconds stay within 64 bits.
    return when.toordinal() - date(2000, 1, 1).toordinal() if when.year in _YEARS else None


def _out_of_order(row: tuple[int, int, int], before: list[tuple[int, int, int]]) -> str | None:
    if before and row[0] < before[-1][0]:
        return "earlier than the row before; a trace is sorted by time"
    return None


def _how_many_more(problems: list[Problem], path: Path) -> list[Problem]:
    more = len(problems) - _SHOWN_PROBLEMS
    return [Problem(f"and {more} more bad rows", str(path))] if more > 0 else []
