"""Formats whose rows are requests: known by their columns."""

from dataclasses import dataclass, replace
from typing import Literal

from kvsim.errors import InputError, Problem
from kvsim.workload.traces._rows import read_rows
from kvsim.workload.traces.format import Head, Layout, Reading
from kvsim.workload.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A published format with one row a request; see `Format`.

    Attributes:
        kind: How its files are written.
        exactly: Whether further columns mean another format.
    """

    name: str
    shape: str
    layout: Layout
    kind: Literal["csv", "jsonl"] = "csv"
    exactly: bool = False

    def recognizes(self, head: Head) -> bool:
        """Return whether the header or first line has the columns; see `Format`."""
        columns = self.layout.columns
        needed = {columns.arrival, columns.prompt_tokens, columns.output_tokens, self.layout.blocks}
        found, needed = set(head.names), needed - {None}
        same = needed == found if self.exactly else needed <= found
        return head.kind == self.kind and same

    def read(self, reading: Reading) -> Trace:
        """Read a file; see `Format`."""
        columns = self.layout.columns
        if columns.session not in reading.head.names:
            columns = columns.model_copy(update={"session": None})
        return read_table(reading, replace(self.layout, columns=columns), self.name)


def read_table(reading: Reading, layout: Layout, name: str) -> Trace:
    """Read rows, and their times if those are wanted; InputError if there are none."""
    columns = layout.columns
    if not reading.times:
        columns = columns.model_copy(update={"arrival": None})
    elif columns.arrival is None:
        wrong = f"has no arrival times (format {name}): it serves for lengths only"
        raise InputError(Problem(wrong, str(reading.path)))
    return read_rows(reading, replace(layout, columns=columns))
