"""The result tables: which columns there are, in which unit, and how they reach the disk.

Raw tables hold timestamps and counts; everything derived from them lives in `kvsim.metrics`.
All times are integer nanoseconds of the simulated clock, all lengths are tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result table; `codes` names the values of a column that stores codes."""

    name: str
    unit: str
    description: str
    codes: tuple[str, ...] = ()


# What happened to a request in the end. Nobody vanishes: each request has one row and one outcome.
OUTCOMES = ("finished", "rejected", "unfinished", "timed_out")
# What the request at the head of the queue lacked when a step had been scheduled.
HEAD_LACKS = (
    *("nothing", "kv_blocks", "hole", "sequence_slot", "token_budget", "preempting"),
    # Where another setting is what binds: max_num_active_seqs instead of max_num_seqs,
    # max_num_scheduled_tokens instead of max_num_batched_tokens, prefill_schedule_interval.
    *("watermark", "active_sequence_slot", "scheduled_token_budget", "prefill_step"),
    # Of earlier engines: swapped requests come first; a static batch takes nobody in.
    *("swapped", "batch_end"),
)
EVENT_KINDS = (
    *("preempted", "resumed", "rejected", "evicted", "compacted"),
    *("swapped_out", "swapped_in", "delayed"),
)

REQUESTS = (
    Column("request", "count", "Number of the request as it was drawn, from 0; retries come after"),
    Column("group", "count", "Request of the client; its samples (n > 1) share the number"),
    Column("session", "count", "Conversation that it belongs to, the group if none is known"),
    Column("attempt", "count", "0, or which retry of its client it is"),
    Column("class", "code", "Class of traffic", ("all",)),
    Column("replica", "count", "Replica that served it, -1 if none did"),
    Column("prompt_tokens", "tokens", "Prompt length"),
    Column("max_tokens", "tokens", "Longest answer allowed"),
    Column("output_tokens", "tokens", "Tokens generated"),
    Column("arrival_ns", "ns", "Arrival at the server"),
    Column("queued_ns", "ns", "In the engine's queue, the front end is done; -1 if never"),
    Column("admitted_ns", "ns", "First scheduled, -1 if never"),
    Column("first_token_ns", "ns", "First token produced, -1 if never"),
    Column("finish_ns", "ns", "Last token, rejection, or its client gave up; -1 if unfinished"),
    Column("outcome", "code", "What became of it", OUTCOMES),
    Column("preemptions", "count", "How often it lost its KV cache"),
    Column("recomputed_tokens", "tokens", "Tokens computed again after preemptions"),
    Column("cached_tokens", "tokens", "Prompt tokens found in the prefix cache at admission"),
    Column("resumed_cached_tokens", "tokens", "Tokens found there when it resumed, in sum"),
)

STEPS = (
    Column("replica", "count", "Replica"),
    Column("step", "count", "Number of the engine iteration on its replica, from 0"),
    Column("start_ns", "ns", "Start of the iteration"),
    Column("duration_ns", "ns", "Duration of the iteration"),
    Column("prefill_seqs", "seqs", "Sequences with a prefill chunk"),
    Column("prefill_tokens", "tokens", "Tokens of these chunks"),
    Column("prefill_kv_tokens", "tokens", "Sum over chunks of the context at the chunk's end"),
    Column("prefill_pairs", "pairs", "Query-key pairs of the chunks under the causal mask"),
    Column("prefill_attention_ns", "ns", "Attention of the chunks in this iteration, all layers"),
    Column("decode_seqs", "seqs", "Sequences that decode one token"),
    Column("decode_kv_tokens", "tokens", "Sum of their contexts, the new token included"),
    Column("discarded_seqs", "seqs", "Those of them that had ended: their token is discarded"),
    Column("running_seqs", "seqs", "Sequences admitted, after scheduling"),
    Column("waiting_seqs", "seqs", "Requests waiting, after scheduling"),
    Column("preempted_seqs", "seqs", "Sequences preempted by this scheduling call"),
    Column("head_lacks", "code", "What the head of the queue lacked after scheduling", HEAD_LACKS),
    Column(
        "kv_held_tokens",
        "tokens",
        "KV slots that hold tokens, those of this step included; with sliding windows a token has "
        "one in each KV group, until the window has passed it",
    ),
    Column("kv_to_come_tokens", "tokens", "Slots taken for tokens that will still come"),
    Column("kv_inside_tokens", "tokens", "Slots taken that no token will ever fill"),
    Column("kv_rounding_tokens", "tokens", "Slots lost to rounding up (buddy chunks)"),
    Column("kv_holes_tokens", "tokens", "Free slots in holes too small to be used"),
    Column("kv_reusable_tokens", "tokens", "Free slots that hold prefixes which can be found"),
    Column("kv_free_tokens", "tokens", "Other free slots that can be used"),
    Column("paused_seqs", "seqs", "Sequences that decode, but not in this iteration (V0)"),
    Column("swapped_seqs", "seqs", "Sequences swapped out to the host, after scheduling"),
    Column("swap_ns", "ns", "Copying of swapped blocks in this iteration, before the model runs"),
    Column("late_seqs", "seqs", "Decoding sequences that paused before it or were swapped in"),
    Column(
        "shared_kv_tokens",
        "tokens",
        "Slots that would be taken beside these if no two sequences shared a block; negative while "
        "a declared prefix is kept for nobody",
    ),
)

EVENTS = (
    Column("replica", "count", "Replica, -1 if none"),
    Column("time_ns", "ns", "When it happened"),
    Column("step", "count", "Iteration of the replica, -1 if none"),
    Column("request", "count", "Request, -1 if none"),
    Column("event", "code", "What happened", EVENT_KINDS),
    Column("tokens", "tokens", "Tokens lost, moved or refused; delayed: that came late"),
    Column(
        "gap_ns",
        "ns",
        "resumed, swapped_in, delayed: time between the tokens around the preemption or pause; "
        "compacted: time of the copy",
    ),
)

TABLES: Mapping[str, tuple[Column, ...]] = {"requests": REQUESTS, "steps": STEPS, "events": EVENTS}


def tables_of(class_names: tuple[str, ...]) -> dict[str, tuple[Column, ...]]:
    """Return the tables of a run whose traffic has these classes; none: all is one class."""
    requests = tuple(
        replace(column, codes=class_names) if class_names and column.name == "class" else column
        for column in REQUESTS
    )
    return {**TABLES, "requests": requests}


Columns = Mapping[str, NDArray[np.int64]]

VARIANT = "variant"  # the first column on disk


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
    """Writes one table in chunks as they come; rows of all variants go to the same file."""

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

    def write(self, variant: str, chunk: NDArray[np.int64]) -> None:
        """Append rows: `chunk` has shape (rows, columns), all integers, codes as numbers.

        They become a row group. It takes least time if each column lies together in memory.
        """
        if not len(chunk):
            return
        zeros = _as_arrow(np.zeros(len(chunk), dtype=np.int32))
        arrays: list[pa.Array] = [pa.DictionaryArray.from_arrays(zeros, _texts([variant]))]
        for column, values in zip(self._columns, np.ascontiguousarray(chunk.T), strict=True):
            if column.codes:
                codes = _as_arrow(values.astype(np.int32))
                arrays.append(pa.DictionaryArray.from_arrays(codes, self._names[column.name]))
            else:
                arrays.append(_as_arrow(values))
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


class StoredTable(Mapping[str, NDArray[np.int64]]):
    """One variant's rows of a table on disk, as columns (int64; codes as their numbers).

    A column is read when it is asked for, and not kept: a million requests have sixteen million
    steps, which together fill 3 GB.
    """

    def __init__(self, path: Path, columns: tuple[Column, ...], variant: str) -> None:
        self._path = path
        self._codes = {column.name: column.codes for column in columns}
        with pq.ParquetFile(path) as file:
            self._metadata = file.metadata
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        # Each was written of one variant.
        mine = [group.column(0).statistics.min == variant for group in groups]
        self._groups = np.flatnonzero(mine).tolist()
        self.rows = sum(self._metadata.row_group(group).num_rows for group in self._groups)

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        if name not in self._codes:
            raise KeyError(name)
        with self._opened() as file:
            column = file.read_row_groups(self._groups, [name], use_threads=False).column(name)
        return _numbers(column, self._codes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    def _opened(self) -> pq.ParquetFile:
        # Reading ahead would hold all of the file that is asked for.
        return pq.ParquetFile(self._path, metadata=self._metadata, pre_buffer=False)

    def chunks(self, names: Sequence[str]) -> Iterator[Columns]:
        """Yield the rows of some columns as they were written, chunk by chunk; at least one."""
        if not self._groups:
            yield {name: np.zeros(0, dtype=np.int64) for name in names}
        with self._opened() as file:
            for group in self._groups:
                chunk = file.read_row_group(group, list(names), use_threads=False)
                yield {name: _numbers(chunk.column(name), self._codes[name]) for name in names}

    def batches(self, names: Sequence[str], sizes: Sequence[int]) -> Iterator[Columns]:
        """Yield the rows of some columns in batches of these sizes, one after the other."""
        with self._opened() as file:
            parts = file.iter_batches(
                row_groups=self._groups, columns=list(names), use_threads=False
            )
            schema = pa.schema([file.schema_arrow.field(name) for name in names])
            held = pa.Table.from_batches([], schema)
            for size in sizes:
                while held.num_rows < size:
                    held = pa.concat_tables([held, pa.Table.from_batches([next(parts)])])
                batch, held = held.slice(0, size), held.slice(size)
                yield {name: _numbers(batch.column(name), self._codes[name]) for name in names}


class ChosenRows(Mapping[str, NDArray[np.int64]]):
    """Some rows of a table; a column is picked when it is asked for."""

    def __init__(self, table: Columns, chosen: NDArray[np.bool_]) -> None:
        self._table = table
        self._chosen = chosen

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        return self._table[name][self._chosen]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


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
        yield {name: table[name][start : start + size] for name in names}
        start += size


def chunks(table: Columns, names: Sequence[str]) -> Iterator[Columns]:
    """Yield the rows chunk by chunk; a table in memory is one chunk."""
    if isinstance(table, StoredTable):
        return table.chunks(names)
    return iter([table])


def read_table(
    path: Path, columns: tuple[Column, ...], variant: str
) -> dict[str, NDArray[np.int64]]:
    """Read one variant's rows into memory, as numpy columns (int64; codes as their numbers)."""
    return dict(StoredTable(path, columns, variant))


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
