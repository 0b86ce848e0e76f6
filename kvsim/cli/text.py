"""Text for the terminal: tables in columns, sentences cut into lines, JSON for machines."""

import json
import textwrap
from collections.abc import Sequence
from typing import Any

WIDTH = 80


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Set rows in columns, the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def wrapped(text: str, indent: str = "") -> str:
    """Cut a text into lines at its spaces, each with an indent."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_json(facts: Any) -> str:
    """Return an answer as JSON: numbers that are none would not be read everywhere.

    Raises:
        ValueError: A number is infinite, or none.
    """
    return json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False)
