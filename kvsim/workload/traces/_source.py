"""Files of rows, in batches: CSV, JSON lines, Parquet and JSON documents look alike from here."""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from numpy.typing import NDArray

from kvsim.errors import InputError, Problem
from kvsim.workload.files import decompressed, told_by_name
from kvsim.workload.traces._convert import NUMBER
from kvsim.workload.traces._document import read_document
from kvsim.workload.traces.format import Head, Layout

_HEAD_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 23
_LONGEST_LINE_BYTES = 1 << 25
_PEEKED_LINES = 100
_BATCH_ROWS = 1 << 17
_BOM = b"\xef\xbb\xbf"
_BEGINS_OBJECT = re.compile(rb"\s*\{")


class Broken(NamedTuple):
    """What should be a row, and has not its cells: its place, its first line, and how many."""

    place: int
    text: str
    lines: int = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of a file.

    Attributes:
        columns: What the rows hold, by name: Arrow arrays of equal length.
        places: The line (the row, if the file has no lines) where each begins, counted from 1.
        broken: Further rows that are none at all.
        block: The lines themselves, from number `first_line` on; empty if there are none.
        lines: How many lines each row has.
    """

    columns: dict[str, pa.Array]
    places: NDArray[np.int64]
    broken: tuple[Broken, ...] = ()
    block: bytes = b""
    first_line: int = 0
    lines: NDArray[np.int64] | None = None  # one each

    def text(self, row: int) -> str:
        """Return what stands in a row, of several lines the first."""
        if not self.block:
            cells = {name: column[row].as_py() for name, column in self.columns.items()}
            return ", ".join(f"{name}: {value}" for name, value in cells.items())
        return _line(self.block, int(self.places[row]) - self.first_line)


def head_of(path: Path) -> Head:
    """Look at the beginning of a file; InputError if it can't be read."""
    with decompressed(path) as file, told_by_name(path):
        start = _without_bom(file.read(_HEAD_BYTES))
    if start.startswith(b"PAR1"):
        with told_by_name(path):
            return Head("parquet", tuple(pa.parquet.read_schema(path).names))
    text = start.decode(errors="replace")
    if text.lstrip().startswith("["):
        return Head("json", text=text)
    if text.lstrip().startswith("{"):
        first, later = _first_values(text)
        head = Head("jsonl", tuple(first), first, later, text)
        return head if first else Head("json", text=text)
    return Head("csv", _csv_names(text.split("\n", 1)[0]), text=text)


def batches(path: Path, head: Head, names: Sequence[str], layout: Layout) -> Iterator[Batch]:
    """Read the named columns of a file, a batch at a time.

    Raises:
        InputError: The file can't be read, or isn't what its beginning promised.
    """
    if layout.rows is not None:
        columns = read_document(path, head, layout.rows)
        yield Batch(columns, _counted(1, len(next(iter(columns.values())))))
    elif head.kind == "parquet":
        yield from _parquet(path, names)
    elif head.kind == "jsonl":
        yield from _json_lines(path, _json_schema(head, names, layout))
    else:
        yield from _csv(path, head, names)


def _parquet(path: Path, names: Sequence[str]) -> Iterator[Batch]:
    row = 1
    with told_by_name(path), pa.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=list(names)):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield Batch(columns, _counted(row, len(batch)))
            row += len(batch)


def _csv(path: Path, head: Head, names: Sequence[str]) -> Iterator[Batch]:
    line = 1
    with decompressed(path) as file:
        for block in _blocks(path, file, quoted=True):
            body = block
            if line == 1:
                header_end = block.find(b"\n") + 1 or len(block)
                body, line = block[header_end:], 2
            if body:
                yield _csv_block(body, line, head.names, names)
            line += body.count(b"\n")


def _csv_block(block: bytes, line: int, header: Sequence[str], names: Sequence[str]) -> Batch:
    broken: list[int] = []

    def skip(row: pa.csv.InvalidRow) -> str:
        broken.append(row.number - 1)
        return "skip"

    # Columns go by their place, since a header may name two alike.
    places = {name: str(header.index(name)) for name in names}
    table = pa.csv.read_csv(
        pa.BufferReader(block),
        pa.csv.ReadOptions(
            column_names=[str(place) for place in range(len(header))],
            use_threads=False,  # else broken rows have no number
            block_size=len(block) + 1,
        ),
        pa.csv.ParseOptions(
            invalid_row_handler=skip,
            ignore_empty_lines=False,
            newlines_in_values=b'"' in block,
        ),
        pa.csv.ConvertOptions(
            include_columns=list(places.values()),
            column_types={place: pa.string() for place in places.values()},
            check_utf8=False,
            strings_can_be_null=False,
        ),
    ).combine_chunks()
    starts = _row_starts(block, table.num_rows + len(broken))
    lines = np.diff(starts)
    texts = tuple(
        Broken(line + int(starts[row]), _line(block, int(starts[row])), int(lines[row]))
        for row in broken
    )
    columns = {name: _whole(table.column(place)) for name, place in places.items()}
    kept = np.delete(starts[:-1], broken) + line
    return Batch(columns, kept, texts, block, line, np.delete(lines, broken))


def _row_starts(block: bytes, rows: int) -> NDArray[np.int64]:
    """Return on which line of a block of CSV each row begins, from 0; at last, where it ends."""
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if lines == rows:
        return np.arange(rows + 1, dtype=np.int64)
    starts = [0]
    limit = csv.field_size_limit(len(block))
    try:
        reader = csv.reader(io.StringIO(block.decode(errors="replace"), newline="\n"))
        for _ in reader:
            starts.append(reader.line_num)  # what comes before an error is kept
    except csv.Error:  # what follows is told at the last line that is known
        pass
    finally:
        csv.field_size_limit(limit)
    starts = starts[:rows] + [starts[-1]] * (rows - len(starts)) + [lines]
    return np.minimum(starts, lines, dtype=np.int64)


def _json_schema(head: Head, names: Sequence[str], layout: Layout) -> pa.Schema:
    """Return the types of the columns as the first line shows them; numbers are kept exactly."""
    fields = []
    for name in names:
        value = head.first.get(name)
        if name == layout.blocks:
            fields.append((name, pa.list_(pa.decimal128(20, 0))))
        elif isinstance(value, bool):
            fields.append((name, pa.bool_()))
        else:
            fields.append((name, NUMBER if isinstance(value, int | float) else pa.string()))
    return pa.schema(fields)


def _json_lines(path: Path, schema: pa.Schema) -> Iterator[Batch]:
    line = 1
    with decompressed(path) as file:
        for block in _blocks(path, file, quoted=False):
            yield _json_block(block, line, schema)
            line += block.count(b"\n")


def _json_block(block: bytes, line: int, schema: pa.Schema) -> Batch:
    size = block.count(b"\n") + (not block.endswith(b"\n"))
    table = _parsed(block, size, schema)
    places, bad = _counted(line, size), []
    if table is None:  # blank lines, or broken ones
        lines = block.split(b"\n")
        filled = [number for number, text in enumerate(lines) if text.strip()]
        table, broken = _json_rows([lines[number] for number in filled], schema)
        bad = [Broken(line + filled[row], _shown(lines[filled[row]])) for row in broken]
        places = np.delete(np.array(filled, dtype=np.int64) + line, broken)
    columns = {name: _whole(table.column(name)) for name in schema.names}
    return Batch(columns, places, tuple(bad), block, line)


def _json_rows(lines: list[bytes], schema: pa.Schema) -> tuple[pa.Table, list[int]]:
    """Parse lines; those that don't parse are found by halving, and told by their number."""
    table = _parsed(b"\n".join(lines), len(lines), schema)
    if table is not None:
        return table, []
    if len(lines) == 1:
        return schema.empty_table(), [0]
    half = len(lines) // 2
    first, broken = _json_rows(lines[:half], schema)
    second, more = _json_rows(lines[half:], schema)
    return pa.concat_tables([first, second]), broken + [half + row for row in more]


def _parsed(content: bytes, rows: int, schema: pa.Schema) -> pa.Table | None:
    """Parse lines of JSON; None if that fails, or there are not so many rows."""
    if not _BEGINS_OBJECT.match(content):  # Arrow 26 crashes on `null` in the first line
        return None
    try:
        table = pa.json.read_json(
            pa.BufferReader(content),
            pa.json.ReadOptions(use_threads=False, block_size=len(content) + 1),
            pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except ValueError:  # Arrow's, or text that is no UTF-8
        return None
    return table if table.num_rows == rows else None


def _blocks(path: Path, file: IO[bytes], quoted: bool) -> Iterator[bytes]:
    """Cut a file into blocks of whole lines, without its byte order mark and last blank lines.

    Raises:
        InputError: It can't be read; a line, or a quoted value, has no end.
    """
    rest, started, line = b"", False, 1
    while True:
        with told_by_name(path):
            chunk = file.read(_BLOCK_BYTES)
        rest += chunk if started else _without_bom(chunk)
        started = True
        if not chunk:
            break
        cut = _end_of_lines(rest, quoted)
        if cut:
            yield rest[:cut]
            line += rest.count(b"\n", 0, cut)
            rest = rest[cut:]
        elif len(rest) > _LONGEST_LINE_BYTES:
            endless = f"no line or quoted value may have more than {_LONGEST_LINE_BYTES >> 20} MiB"
            opened = max(rest.rfind(b'"'), 0) if quoted else 0
            raise InputError(Problem(endless, str(path), line + rest.count(b"\n", 0, opened)))
    rest = rest.rstrip()
    if rest:
        yield rest


def _end_of_lines(text: bytes, quoted: bool) -> int:
    """Return where whole lines end that are followed by no blank ones; 0 if there is no such place.

    A blank line is kept for the next block: if it comes last in the file, it counts for nothing.
    """
    filled = len(text[: text.rfind(b"\n") + 1].rstrip())
    cut = text.find(b"\n", filled) + 1 if filled else 0
    return 0 if quoted and text.count(b'"', 0, cut) % 2 else cut


def _line(block: bytes, number: int) -> str:
    return _shown(block.split(b"\n", number + 1)[number])


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").strip()


def _csv_names(line: str) -> tuple[str, ...]:
    try:
        return tuple(name.strip() for name in next(csv.reader([line.strip()]), []))
    except csv.Error:
        return ()


def _first_values(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the keys of the first lines with the first value of each that isn't null.

    Empty if the first line is no object. Beside it: in which line keys appear that it lacks.
    """
    lines = text.split("\n", _PEEKED_LINES)[:_PEEKED_LINES]
    values = _object(lines[0])
    later: dict[str, int] = {}
    for number, line in enumerate(lines[1:] if values else (), 2):
        for key, value in _object(line).items():
            if key not in values:
                later[key] = number
            if values.get(key) is None:
                values[key] = value
    return values, later


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _counted(first: int, rows: int) -> NDArray[np.int64]:
    return np.arange(first, first + rows, dtype=np.int64)


def _without_bom(text: bytes) -> bytes:
    return text.removeprefix(_BOM)
