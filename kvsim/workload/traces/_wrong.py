"""What is wrong with a row, in words."""

import pyarrow as pa

from kvsim.workload.limits import MOST_TOKENS
from kvsim.workload.traces import _convert
from kvsim.workload.traces._source import Batch, Broken
from kvsim.workload.traces.format import Layout

_SHOWN_CHARACTERS = 80


def why_bad(batch: Batch, row: int, layout: Layout) -> str:
    """Return what is wrong with a row, in words."""
    columns = layout.columns
    lengths = [batch.columns[columns.prompt_tokens], batch.columns[columns.output_tokens]]
    counts = [_convert.tokens(column[row : row + 1], least=0) for column in lengths]
    if layout.example and not all(good[0] for _, good in counts):
        return _bad_row(batch.text(row), layout)
    if not all(good[0] and numbers[0] for numbers, good in counts):
        found = " and ".join(repr(_cell(column, row)) for column in lengths)
        return (
            "prompt and answer must have at least one token each: lengths must be whole numbers "
            f"from 1 to {MOST_TOKENS}, not {found}"
        )
    if columns.arrival is not None:
        column = batch.columns[columns.arrival]
        if not _convert.times_ns(column[row : row + 1], layout.time_unit or "s")[1][0]:
            date = _convert.date_of(str(_cell(column, row)))
            if date:
                years = _convert.YEARS
                return f"no such date from {years.start} to {years.stop - 1}: {date}"
            read_as = f"; {columns.arrival} is read as {layout.time_unit}: is time_unit right?"
            return _bad_row(batch.text(row), layout) + read_as * (not layout.example)
    return (
        f"{layout.blocks} don't fit a prompt of {counts[0][0][0]} tokens in blocks of "
        f"{layout.block_tokens}"
    )


def why_lost(row: Broken, layout: Layout) -> str:
    """Return that something is no row, and how far an odd quote makes it reach."""
    end = row.place + row.lines - 1
    reach = f"; it goes on to line {end}: is a quote not closed?" if row.lines > 1 else ""
    return _bad_row(row.text, layout) + reach


def _bad_row(text: str, layout: Layout) -> str:
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return f"bad row {shown!r}" + (f"; expected a row like {layout.example}" * bool(layout.example))


def _cell(column: pa.Array, row: int) -> object:
    value = column.cast(pa.binary())[row].as_py() if pa.types.is_string(column.type) else None
    if value is None:
        return column[row].as_py()
    return value.decode(errors="replace")[:40]
