"""How the result tables reach the disk, and come back: whole columns, chunks, batches.

Only who writes or reads tables imports Arrow; a check of a scenario does without.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kvsim.errors import InputError, Problem
from kvsim.tables import Column, Columns

VARIANT = "variant"  # the first column on disk
KEPT_ROWS = 2**14  # all columns of so many fill less than 4 MB


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the Parquet schema of a table: first the variant, then its columns, with units."""
    names = pa.dictionary(pa.int32(), pa.string())
    fields = [pa.field(VARIANT, names, nullable=False)]
    for column in columns:
        kind = names if column.codes else pa.int64()
        about = {"unit": column.unit, "description": column.description}
        fields.append(pa.field(column.name, kind, nullable=False, metadata=about))
    return pa.schema(fields)


class TableWriter:
    """Writes one table in chunks as they come; rows of all variants go to the same file.

    A thread encodes a chunk while the simulation goes on; who brings the next one waits for it.
    """

    def __init__(self, path: Path, columns: tuple[Column, ...]) -> None:
        self._columns = columns
        self._schema = arrow_schema(columns)
        self._names = {column.name: _texts(column.codes) for column in columns if column.codes}
        # Counts and times change little from row to row: as differences they take half the space,
        # and half the time to write, that dictionaries would. Readers look for variants only.
        plain = {column.name: "DELTA_BINARY_PACKED" for column in columns if not column.codes}
        self._writer = pq.ParquetWriter(
            path,
            self._schema,
            compression="lz4",
            use_dictionary=[VARIANT, *self._names],
            column_encoding=plain,
            write_statistics=[VARIANT],
        )
        self._aside = _one_thread()
        self._writing: Future[None] | None = None

    def write(self, variant: str, chunk: NDArray[np.int64]) -> None:
        """Append rows: `chunk` has shape (rows, columns), all integers, codes as numbers.

        They become a row group, and belong to the writer from now on. It takes least time if each
        column lies together in memory.

        Raises:
            OSError: The disk refuses this chunk, or the one before.
        """
        if len(chunk):
            self._finish_writing()
            self._writing = self._aside.submit(self._encode, variant, chunk)

    def close(self) -> None:
        """Finish the file.

        Raises:
            OSError: The disk refuses.
        """
        try:
            self._finish_writing()
        finally:
            self._aside.shutdown()
            self._writer.close()

    def _finish_writing(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _encode(self, variant: str, chunk: NDArray[np.int64]) -> None:
        zeros = _as_arrow(np.zeros(len(chunk), dtype=np.int32))
        arrays: list[pa.Array] = [pa.DictionaryArray.from_arrays(zeros, _texts([variant]))]
        for column, values in zip(self._columns, np.ascontiguousarray(chunk.T), strict=True):
            if column.codes:
                codes = _as_arrow(values.astype(np.int32))
                arrays.append(pa.DictionaryArray.from_arrays(codes, self._names[column.name]))
            else:
                arrays.append(_as_arrow(values))
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))


class StoredTable(Mapping[str, NDArray[np.int64]]):
    """One variant's rows of a table on disk, as columns (int64; codes as their numbers).

    A small table is read at once and kept, of others a column each time that it is asked for: a
    million requests have sixteen million steps, which together fill 3 GB.

    Raises:
        InputError: The file is none that `TableWriter` wrote of these columns, or is damaged; here,
            or where a column is read.
    """

    def __init__(self, path: Path, columns: tuple[Column, ...], variant: str) -> None:
        self._path = path
        self._codes = {column.name: column.codes for column in columns}
        self._kept: dict[str, NDArray[np.int64]] = {}
        with _told_as_damage(path), pq.ParquetFile(path) as file:
            self._metadata = file.metadata
            _refuse_other_columns(file.schema_arrow, arrow_schema(columns))
            groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
            # Each was written of one variant.
            mine = [group.num_rows > 0 and _variant_of(group) == variant for group in groups]
        self._groups = np.flatnonzero(mine).tolist()
        self.rows = sum(self._metadata.row_group(group).num_rows for group in self._groups)

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        if name not in self._codes:
            raise KeyError(name)
        if self.rows > KEPT_ROWS:
            return self._read([name])[name]
        if not self._kept:  # to open the file again takes longer than all columns
            self._kept = self._read(list(self._codes))
        return self._kept[name]

    def _read(self, names: list[str]) -> dict[str, NDArray[np.int64]]:
        """Return whole columns, which nobody can write to: others may be given the same arrays."""
        with _told_as_damage(self._path), self._opened() as file:
            table = file.read_row_groups(self._groups, names, use_threads=False)
            columns = {name: _numbers(table.column(name), self._codes[name]) for name in names}
        for values in columns.values():
            values.flags.writeable = False
        return columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    def _opened(self) -> pq.ParquetFile:
        # Reading ahead would hold all of the file that is asked for.
        return pq.ParquetFile(self._path, metadata=self._metadata, pre_buffer=False)

    def chunks(self, names: Sequence[str]) -> Iterator[Columns]:
        """Yield the rows of some columns as they were written, chunk by chunk; at least one.

        A thread decodes a chunk while the one before is looked at.
        """
        if not self._groups:
            yield {name: np.zeros(0, dtype=np.int64) for name in names}
            return
        several = len(self._groups) > 1
        with self._opened() as file, _one_thread() if several else _Here() as aside:
            coming = aside.submit(self._decoded, file, self._groups[0], names)
            for group in self._groups[1:]:
                columns = coming.result()
                coming = aside.submit(self._decoded, file, group, names)
                yield columns
            yield coming.result()

    def _decoded(self, file: pq.ParquetFile, group: int, names: Sequence[str]) -> Columns:
        with _told_as_damage(self._path):
            chunk = file.read_row_group(group, list(names), use_threads=False)
            return {name: _numbers(chunk.column(name), self._codes[name]) for name in names}

    def batches(self, names: Sequence[str], sizes: Sequence[int]) -> Iterator[Columns]:
        """Yield the rows of some columns in batches of these sizes, one after the other."""
        chunks = self.chunks(names)
        chunk, start = next(chunks), 0
        for size in sizes:
            parts = [_slice(chunk, start, size)]
            start += size
            while (over := start - row_count(chunk)) > 0:
                chunk, start = next(chunks), over
                parts.append(_slice(chunk, 0, over))
            yield parts[0] if len(parts) == 1 else _joined(parts)


class _Here(Executor):
    """Does at once, and itself, what others would do aside."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **more: Any) -> "Future[Any]":
        """See `Executor`."""
        done: Future[Any] = Future()
        try:
            done.set_result(function(*args, **more))
        except Exception as error:
            done.set_exception(error)
        return done


def _one_thread() -> Executor:
    """Return a thread that does one thing after the other, or who does without if none starts.

    A container may allow few threads, and little memory none.
    """
    thread = ThreadPoolExecutor(1)
    try:
        thread.submit(int)  # starts it
    except RuntimeError:
        return _Here()
    return thread


@contextmanager
def _told_as_damage(path: Path) -> Iterator[None]:
    """Turn what Arrow can't make of a file into an `InputError` that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's word
            raise
        raise InputError(Problem(f"is damaged: {error}", str(path))) from error


def _variant_of(group: Any) -> str:
    """Return the variant that all rows of a row group belong to."""
    if (told := group.column(0).statistics) is None or not told.has_min_max:
        raise ValueError("it doesn't tell whose its rows are")
    name: str = told.min
    return name


def _refuse_other_columns(found: pa.Schema, wanted: pa.Schema) -> None:
    """Refuse a table that lacks a column, or has another type of it; with a `ValueError`."""
    places = [found.get_field_index(field.name) for field in wanted]
    lacking = [
        field.name
        for field, place in zip(wanted, places, strict=True)
        if place < 0 or not found.field(place).equals(field)
    ]
    if places[0] != 0 or lacking:
        raise ValueError(f"it has no column {(lacking or [VARIANT])[0]!r} as kvsim writes it")


def row_count(table: Columns) -> int:
    """Return the number of rows."""
    return table.rows if isinstance(table, StoredTable) else len(next(iter(table.values())))


def batches(table: Columns, names: Sequence[str], sizes: Sequence[int]) -> Iterator[Columns]:
    """Yield the rows in batches of these sizes; a table on disk is read batch by batch."""
    if isinstance(table, StoredTable):
        yield from table.batches(names, sizes)
        return
    start = 0
    for size in sizes:
        yield _slice(table, start, size, names)
        start += size


def _slice(table: Columns, start: int, size: int, names: Iterable[str] | None = None) -> Columns:
    """Return some rows, fewer at the end of the table, of some columns or all."""
    return {name: table[name][start : start + size] for name in names or table}


def _joined(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def chunks(table: Columns, names: Sequence[str]) -> Iterator[Columns]:
    """Yield the rows chunk by chunk; a table in memory is one chunk."""
    if isinstance(table, StoredTable):
        return table.chunks(names)
    return iter([table])


def write_figures(
    path: Path,
    replications: Sequence[tuple[str, int]],
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, float | None]],
) -> None:
    """Write figures, each row those of one replication.

    Args:
        path: The Parquet file.
        replications: Variant and number of each row.
        columns: The figures, with their units.
        rows: Figure → its value, None if there is none.
    """
    variants = list(dict.fromkeys(name for name, _ in replications))
    codes = _as_arrow(np.array([variants.index(name) for name, _ in replications], np.int32))
    numbers = _as_arrow(np.array([number for _, number in replications], np.int64))
    arrays = [pa.DictionaryArray.from_arrays(codes, _texts(variants)), numbers]
    fields = [
        pa.field(VARIANT, arrays[0].type, nullable=False),
        pa.field("replication", pa.int64(), nullable=False),
    ]
    for column in columns:
        about = {"unit": column.unit, "description": column.description}
        fields.append(pa.field(column.name, pa.float64(), metadata=about))
        arrays.append(_as_nullable([row[column.name] for row in rows]))
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    pq.write_table(table, path, compression="lz4")


def read_figures(path: Path, variant: str, names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Read figures of one variant as `write_figures` wrote them: NaN where there is none.

    Each array has shape (replications,).
    """
    with pq.ParquetFile(path) as file:
        table = file.read([VARIANT, *names], use_threads=False).to_pydict()
    mine = [name == variant for name in table[VARIANT]]
    return {name: np.array(table[name], dtype=np.float64)[mine] for name in names}


Facts = Mapping[str, Any]  # a row of texts and numbers


def write_facts(path: Path, columns: Sequence[Column], rows: Sequence[Facts]) -> None:
    """Write rows of texts and numbers: a column of the unit `text` holds texts, any other floats.

    Args:
        path: The Parquet file.
        columns: What a row has.
        rows: Column → its value; a number may be None.
    """
    arrays, fields = [], []
    for column in columns:
        values = [row[column.name] for row in rows]
        array = _texts(values) if column.unit == "text" else _as_nullable(values)
        about = {"unit": column.unit, "description": column.description}
        fields.append(pa.field(column.name, array.type, metadata=about))
        arrays.append(array)
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path, compression="lz4")


def read_facts(path: Path, columns: Sequence[Column]) -> list[Facts]:
    """Read what `write_facts` wrote.

    Raises:
        KeyError: There is no such column.
    """
    with pq.ParquetFile(path) as file:
        table = file.read(use_threads=False)
    values = [table.column(column.name).to_pylist() for column in columns]
    names = [column.name for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


# To and from Arrow by buffers: `pa.array` and `to_numpy` would import pandas, which takes longer
# than a small run.


def _as_arrow(values: NDArray[np.int32] | NDArray[np.int64]) -> Any:
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)]
    )


def _texts(texts: Sequence[str]) -> Any:
    """Return an array of Arrow that holds some texts."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(
        len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))
    )


def _as_nullable(values: Sequence[float | None]) -> Any:
    """Return numbers as Arrow's, where None is no number."""
    known = np.packbits([value is not None for value in values], bitorder="little")
    numbers = np.array([0.0 if value is None else value for value in values], np.float64)
    buffers = [pa.py_buffer(known), pa.py_buffer(numbers)]
    return pa.Array.from_buffers(pa.float64(), len(values), buffers)


def _numbers(column: Any, codes: tuple[str, ...]) -> NDArray[np.int64]:
    """Return a column of Arrow as integers: codes as their numbers."""
    parts = [_chunk_numbers(chunk, codes) for chunk in column.chunks if len(chunk)]
    if len(parts) == 1:
        return parts[0]
    joined: NDArray[np.int64] = np.concatenate([np.zeros(0, np.int64), *parts])
    return joined


def _chunk_numbers(chunk: Any, codes: tuple[str, ...]) -> NDArray[np.int64]:
    if not codes:
        plain: NDArray[np.int64] = _as_numpy(chunk, np.int64)
        return plain
    numbers = np.array([codes.index(name) for name in chunk.dictionary.to_pylist()], np.int64)
    decoded: NDArray[np.int64] = numbers[_as_numpy(chunk.indices, np.int32)]
    return decoded


def _as_numpy(chunk: Any, kind: Any) -> NDArray[Any]:
    return np.frombuffer(chunk.buffers()[1], kind, len(chunk), chunk.offset * kind().itemsize)
