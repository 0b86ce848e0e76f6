"""Empirical lengths: rows of a CSV file, drawn with replacement."""

import csv
import re
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError, Problem
from kvsim.workload.files import ReadsFile, read_lines
from kvsim.workload.limits import MOST_TOKENS, Printable

_DIGITS = re.compile(r"[0-9]{1,9}")
_SHOWN_CHARACTERS = 40


class Empirical(ReadsFile):
    """Draws whole rows, so that a prompt keeps its answer's length."""

    kind: Literal["empirical"] = "empirical"
    file: Printable
    """CSV file with a header, beside the scenario file."""
    prompt_column: str = "prompt_tokens"
    """Column of the prompt lengths."""
    output_column: str = "output_tokens"
    """Column of the answer lengths."""

    def lengths_tokens(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw rows with replacement; InputError for a file that can't be used; see `LengthLaw`."""
        rows = _read_columns(self.path, self.prompt_column, self.output_column)
        drawn = rows[rng.integers(0, len(rows), count)]
        return drawn[:, 0].copy(), drawn[:, 1].copy()


def _read_columns(path: Path, *columns: str) -> NDArray[np.int64]:
    """Return the named columns as positive integers, shape (rows, columns)."""
    reader = csv.DictReader(read_lines(path))
    try:
        return _parse(reader, path, columns)
    except csv.Error as error:
        raise InputError(
            Problem(f"is not CSV: {error}", str(path), reader.reader.line_num)
        ) from error


def _parse(
    reader: "csv.DictReader[str]", path: Path, columns: tuple[str, ...]
) -> NDArray[np.int64]:
    header = reader.fieldnames or []
    absent = [column for column in columns if column not in header]
    if absent:
        have = ", ".join(header) or "none"
        raise InputError(
            *(Problem(f"no column {column!r}; columns: {have}", str(path), 1) for column in absent)
        )
    rows: list[list[int]] = []
    problems: list[Problem] = []
    for row in reader:
        texts = [row[column] or "" for column in columns]
        lengths = [_length_tokens(text) for text in texts]
        if None in lengths:
            wrong = ", ".join(repr(text[:_SHOWN_CHARACTERS]) for text in texts)
            message = f"lengths must be whole numbers from 1 to {MOST_TOKENS}, not {wrong}"
            problems.append(Problem(message, str(path), reader.line_num))
        else:
            rows.append([length for length in lengths if length is not None])
    if problems:
        raise InputError(*problems[:20])
    if not rows:
        raise InputError(Problem("holds no row", str(path)))
    return np.array(rows, dtype=np.int64)


def _length_tokens(text: str) -> int | None:
    """Return the length that a field holds, None if it holds none that a request can have."""
    digits = text.strip()
    if not _DIGITS.fullmatch(digits):
        return None
    return int(digits) if 1 <= int(digits) <= MOST_TOKENS else None
