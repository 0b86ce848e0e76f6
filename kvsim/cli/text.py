"""Text for the terminal: tables in columns, sentences cut into lines, JSON for machines."""

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

WIDTH = 80
GAP = 2
# The first column of a table keeps so many places, and those of its longest word up to here.
LEAST_LABEL, LONGEST_WORD = 16, 40
# A word of a heading is cut if it is longer.
LONGEST_HEADING = 14

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows) -> str:
    """Set rows in columns, the first to the left, the others to the right; the header comes first.

    Where that is too wide, headings are set in several lines. Where it still is, the columns go on
    below in another block, after the first column. A cell is never broken, as it holds a number and
    its unit; a heading and a label of the first column may be.
    """
    label, *widths = (max(map(columns_of, column)) for column in zip(*rows, strict=True))
    if label + sum(GAP + width for width in widths) > WIDTH:
        widths = [_column_width(column) for column in list(zip(*rows, strict=True))[1:]]
    blocks = []
    least = _least_label([row[0] for row in rows])
    for some in _fitting(widths, least):
        taken = sum(GAP + widths[column] for column in some)
        lines = _set(
            [[row[0], *(row[1 + column] for column in some)] for row in rows],
            [min(label, max(WIDTH - taken, LEAST_LABEL)), *(widths[column] for column in some)],
        )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks).replace("\u00a0", " ")  # plain text, for who searches it


def _least_label(labels: Sequence[str]) -> int:
    """Return how wide the first column must be: words are not cut, unless they are very long."""
    words = [columns_of(word) for label in labels for word in label.split()]
    longest = max((word for word in words if word <= LONGEST_WORD), default=0)
    return min(max(longest, LEAST_LABEL), max(map(columns_of, labels)))


def _column_width(column: Sequence[str]) -> int:
    """Return how wide a column must be if its heading is set in several lines."""
    words = [min(columns_of(word), LONGEST_HEADING) for word in column[0].split()]
    return max([0, *words, *map(columns_of, column[1:])])


def _fitting(widths: Sequence[int], label: int) -> Iterator[list[int]]:
    """Yield which columns stand in each block."""
    block: list[int] = []
    for column in range(len(widths)):
        together = label + sum(GAP + widths[other] for other in [*block, column])
        if block and together > WIDTH:
            yield block
            block = []
        block.append(column)
    yield block


def _set(rows: Rows, widths: Sequence[int]) -> Iterator[str]:
    for place, row in enumerate(rows):
        is_header = place == 0
        cells = [
            _cut(cell, width) if is_header or not column else [cell]
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        height = max(map(len, cells))
        for line in range(height):
            parts = [_line_of(lines, line, height if is_header else 0) for lines in cells]
            texts = [_padded(parts[0], widths[0])]
            texts += [
                " " * (width - columns_of(part)) + part
                for part, width in zip(parts[1:], widths[1:], strict=True)
            ]
            yield (" " * GAP).join(texts).rstrip()


def _line_of(lines: Sequence[str], line: int, bottom: int) -> str:
    """Return a cell's part of a line; those of a header stand at its bottom."""
    place = line - (bottom - len(lines)) if bottom else line
    return lines[place] if 0 <= place < len(lines) else ""


def _padded(text: str, width: int) -> str:
    return text + " " * (width - columns_of(text))


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns_of_character, text))


def _columns_of_character(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


# A number and what belongs to it: a range, a unit, a sign of times.
_NUMBER = r"[$~≈<]?[-+−]?\d[\d,.]*(?:e[-+]?\d+)?"
_UNIT = (
    r"(?:[µm]?s|min|h|days|years|%|×|x|[KMGT]?i?B|[KMGT]B|requests|tokens|seqs|steps|samples|slots"
    r"|blocks|GPUs?|times|replications|replicas?|targets?|independent)(?:/\w+)?"
)
_HELD = (
    (re.compile(rf"({_NUMBER}) ({_UNIT})(?![\w/])"), "\\1\0\\2"),
    (re.compile(rf"({_NUMBER}(?:\0[^\s\0]+)?) (to|of) (?={_NUMBER})"), "\\1\0\\2\0"),
)


def wrapped(text: str, indent: str = "") -> str:
    """Cut a text into lines at its spaces, each with an indent.

    A number stays with its unit, and a range stays together. A word that is longer than a line, as
    a name may be, is cut.
    """
    held = text.replace("\u00a0", "\0")
    for pattern, replacement in _HELD:
        held = pattern.sub(replacement, held)
    words = [word.replace("\0", " ") for word in held.split()]
    room = WIDTH - columns_of(indent)
    return "\n".join(indent + line for line in _filled(words, room))


def _cut(text: str, width: int) -> list[str]:
    """Cut a name into lines, at its spaces if it can be."""
    return list(_filled(text.split(), width)) or [""]


def _filled(words: Sequence[str], width: int) -> Iterator[str]:
    line = ""
    for word in words:
        joined = f"{line} {word}" if line else word
        if columns_of(joined) <= width:
            line = joined
            continue
        if line:
            yield line
        line = word
        while columns_of(line) > width:
            head = _head(line, width)
            yield head
            line = line[len(head) :]
    if line:
        yield line


def _head(text: str, width: int) -> str:
    """Return the longest beginning that fits; at least one character."""
    taken = 0
    for place, character in enumerate(text):
        taken += _columns_of_character(character)
        if taken > width:
            return text[: max(place, 1)]
    return text


_GREEN, _RED, _YELLOW, _PLAIN = "\033[32m", "\033[31m", "\033[33m", "\033[0m"
# Verdicts at the beginning of a text, and words in tables.
_COLORED = (
    (re.compile(r"^(Meets its SLO)\b"), _GREEN),
    (re.compile(r"^(Misses its SLO)\b"), _RED),
    (re.compile(r"^(Too close to call)\b"), _YELLOW),
    (re.compile(r"(?<=  )(met)(?=  |$)", re.MULTILINE), _GREEN),
    (re.compile(r"(?<=  )(MISSED)(?=  |$)", re.MULTILINE), _RED),
    (re.compile(r"(?<=  )(met\?|MISSED\?)(?=  |$)", re.MULTILINE), _YELLOW),
)


def painted(text: str) -> str:
    """Color what is met and missed, if stdout is a terminal that shows colors.

    NO_COLOR turns it off, see https://no-color.org.
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or sys.stdout is None or not sys.stdout.isatty():  # it may have been closed
        return text
    for pattern, color in _COLORED:
        text = pattern.sub(f"{color}\\1{_PLAIN}", text)
    return text


def as_json(facts: Any) -> str:
    """Return an answer as JSON: numbers that are none would not be read everywhere.

    Raises:
        ValueError: A number is infinite, or none.
    """
    return json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False)
