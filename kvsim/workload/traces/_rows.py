"""Reads a log whose rows are requests: judges every row, and puts the good ones in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvsim.errors import InputError, Problem
from kvsim.workload.requests import Segments
from kvsim.workload.traces import _convert
from kvsim.workload.traces._segments import block_segments
from kvsim.workload.traces._source import Batch, Broken, batches
from kvsim.workload.traces._wrong import why_bad, why_lost
from kvsim.workload.traces.format import Layout, Reading
from kvsim.workload.traces.trace import Trace

_SHOWN_PROBLEMS = 20
_COUNTED_PROBLEMS = 10_000  # with so many more than allowed a file is not read on

Column = NDArray[np.int64]
Integers = NDArray[np.int64] | NDArray[np.int32]  # a column for the time being
Mask = NDArray[np.bool_]


def read_rows(reading: Reading, layout: Layout) -> Trace:
    """Read a log of one row a request.

    Raises:
        InputError: With the place of every bad row (the first twenty) if there are more than
            allowed; a column is absent; no request is left.
    """
    names = _wanted(reading, layout)
    rows = _Rows(reading, layout)
    for batch in batches(reading.path, reading.head, names, layout):
        _refuse_absent(names, list(batch.columns), reading)
        rows.layout = _with_unit(rows.layout, reading, batch)
        rows.add(batch)
        if rows.bad > reading.skip_bad_rows + _COUNTED_PROBLEMS:
            break
    return rows.trace()


def _with_unit(layout: Layout, reading: Reading, batch: Batch) -> Layout:
    """Decide on the unit of the arrivals; the first batch shows it if nobody says it."""
    arrival, unit = layout.columns.arrival, reading.time_unit or layout.time_unit
    if arrival is not None and unit is None:
        unit = _convert.unit_shown(batch.columns[arrival])
    return replace(layout, time_unit=unit)


def _wanted(reading: Reading, layout: Layout) -> list[str]:
    """Return the columns to read; InputError for those that aren't there."""
    columns = layout.columns
    named = [columns.arrival, columns.prompt_tokens, columns.output_tokens, columns.session]
    names = [name for name in [*named, layout.blocks, *reading.where] if name is not None]
    if layout.rows is None:
        _refuse_absent(names, reading.head.names, reading)
    return list(dict.fromkeys(names))


def _refuse_absent(names: Sequence[str], have: Sequence[str], reading: Reading) -> None:
    line = 1 if reading.head.kind in ("csv", "jsonl") else None
    absent = [name for name in dict.fromkeys(names) if name not in have]
    listed = ", ".join(have) or "none"
    problems = [
        Problem(f"no column {name!r}; columns: {listed}", str(reading.path), line)
        for name in absent
    ]
    if problems:
        raise InputError(*problems)


@dataclass(slots=True)
class _Rows:
    """What was read so far, a few arrays a batch.

    A row that an odd quote has torn open counts as so many bad rows as it has lines: it may have
    swallowed them.
    """

    reading: Reading
    layout: Layout
    parts: list[dict[str, Integers]] = field(default_factory=list)
    sessions: list[pa.Array] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    bad: int = 0
    told: int = 0  # of the bad rows
    failures: int = 0

    def add(self, batch: Batch) -> None:
        """Judge the rows of a batch and keep the good ones."""
        numbers, good, failed = _judged(batch, self.layout)
        torn = _torn(batch, self.layout)
        asked = _matching(batch, self.reading) & ~torn
        self.failures += int((asked & failed).sum())
        self._note_bad(batch, np.flatnonzero(asked & ~failed & ~good), np.flatnonzero(torn))
        chosen = asked & ~failed & good
        part: dict[str, Integers] = {}
        part |= {name: _small(values[chosen]) for name, values in numbers.items()}
        mask = pa.array(chosen)
        if self.layout.blocks is not None:
            blocks = batch.columns[self.layout.blocks].filter(mask)
            part["hashes"] = _convert.low_words(blocks.flatten())[0]
        self.parts.append(part)
        if self.layout.columns.session is not None:
            sessions = _texts(batch, self.layout.columns.session, self.reading)
            self.sessions.append(sessions.filter(mask).dictionary_encode())

    def _note_bad(self, batch: Batch, rows: NDArray[np.intp], torn: NDArray[np.intp]) -> None:
        lost = [*batch.broken, *_as_broken(batch, torn)]
        self.bad += len(rows) + sum(row.lines for row in lost)
        found = [
            (row.place, why_lost(row, self.layout), row.lines)
            for row in sorted(lost)[:_SHOWN_PROBLEMS]
        ]
        for row in rows[:_SHOWN_PROBLEMS].tolist():
            found.append((int(batch.places[row]), why_bad(batch, row, self.layout), 1))
        lines = batch.block != b""
        room = _SHOWN_PROBLEMS - len(self.problems)
        for place, why, count in sorted(found)[: max(room, 0)]:
            message = why if lines else f"row {place}: {why}"
            self.problems.append(Problem(message, str(self.reading.path), place if lines else None))
            self.told += count

    def trace(self) -> Trace:
        """Return the requests in order of arrival; InputError if too many rows are bad."""
        self._refuse_bad()
        session = _codes(self.sessions) if self.sessions else None
        arrival = self._column("arrival")
        prompt, output = self._column("prompt"), self._column("output")
        if not len(prompt):
            raise InputError(Problem("holds no request", str(self.reading.path)))
        arrival = arrival if len(arrival) else np.zeros(len(prompt), dtype=np.int64)
        trace = Trace(
            arrival,
            prompt,
            output,
            session,
            segments=self._segments(prompt) if self.layout.blocks is not None else None,
            notes=self._notes(),
        )
        return _in_order(trace)

    def _column(self, name: str) -> Column:
        """Return a column of all batches, and forget its parts."""
        parts = [part.pop(name) for part in self.parts if name in part]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts], dtype=np.int64)

    def _segments(self, prompt: Column) -> Segments:
        return block_segments(
            prompt, self._column("blocks"), self._column("hashes"), self.layout.block_tokens
        )

    def _refuse_bad(self) -> None:
        if self.bad <= self.reading.skip_bad_rows:
            return
        more = self.bad - self.told
        at_least = "at least " if self.bad > self.reading.skip_bad_rows + _COUNTED_PROBLEMS else ""
        if more > 0:
            self.problems.append(
                Problem(f"and {at_least}{more} more bad rows", str(self.reading.path))
            )
        raise InputError(*self.problems)

    def _notes(self) -> tuple[str, ...]:
        counts = {
            "failed, without an answer, left out": self.failures,
            "can't be used, left out": self.bad,
        }
        return tuple(
            f"{self.reading.path.name}: {count} {'row' if count == 1 else 'rows'} {why}"
            for why, count in counts.items()
            if count
        )


def _small(column: Column) -> Integers:
    """Keep a column in half the memory if it fits."""
    fits = column.max(initial=0) < 2**31 and column.min(initial=0) >= -(2**31)
    return column.astype(np.int32) if fits else column


def _judged(batch: Batch, layout: Layout) -> tuple[dict[str, Column], Mask, Mask]:
    """Return the rows' numbers, which rows are good, and which stand for failed requests."""
    columns = layout.columns
    prompt, good = _convert.tokens(batch.columns[columns.prompt_tokens])
    output, answered = _convert.tokens(batch.columns[columns.output_tokens], least=0)
    failed = answered & (output == 0) & layout.zero_output_fails
    good &= answered & (output > 0)
    numbers = {"prompt": prompt, "output": output}
    if columns.arrival is not None:
        times = batch.columns[columns.arrival]
        numbers["arrival"], timed = _convert.times_ns(times, layout.time_unit or "s")
        good &= timed
    if layout.blocks is not None:
        lengths = pc.list_value_length(batch.columns[layout.blocks]).fill_null(0)
        numbers["blocks"] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        good &= _blocks_fit(numbers["blocks"], prompt, layout.block_tokens)
        good &= _all_known(batch.columns[layout.blocks], numbers["blocks"])
    return numbers, good, failed


def _blocks_fit(blocks: Column, prompt: Column, block_tokens: int) -> Mask:
    """Return where a prompt has as many hashes as blocks; its broken last block may have none."""
    whole, rest = np.divmod(prompt, block_tokens)
    fits: Mask = (blocks == whole) | (blocks == whole + (rest > 0))
    return fits


def _all_known(hashes: pa.Array, blocks: Column) -> Mask:
    """Return where no hash is null, or too large for 64 bits."""
    known = np.append(0, np.cumsum(_convert.low_words(hashes.flatten())[1]))
    ends = np.cumsum(blocks)
    found: Mask = known[ends] - known[ends - blocks] == blocks
    return found


def _torn(batch: Batch, layout: Layout) -> Mask:
    """Return which rows have a line end where none belongs: in a published log, in a value used."""
    several = np.zeros(len(batch.places), dtype=np.bool_)
    if batch.lines is None or (batch.lines == 1).all():
        return several
    if layout.example:
        return several | (batch.lines > 1)
    for column in batch.columns.values():
        several |= pc.match_substring(column, "\n").to_numpy(zero_copy_only=False)
    return several


def _as_broken(batch: Batch, rows: NDArray[np.intp]) -> list[Broken]:
    lines = batch.lines
    return [
        Broken(int(batch.places[row]), batch.text(row), 1 if lines is None else int(lines[row]))
        for row in rows.tolist()
    ]


def _matching(batch: Batch, reading: Reading) -> Mask:
    """Return which rows have the values asked for."""
    mask = np.ones(len(batch.places), dtype=np.bool_)
    for name, values in reading.where.items():
        found = pc.is_in(_texts(batch, name, reading), value_set=pa.array(values))
        mask &= found.to_numpy(zero_copy_only=False)
    return mask


def _texts(batch: Batch, name: str, reading: Reading) -> pa.Array:
    column = batch.columns[name]
    try:
        return _convert.texts(column)
    except pa.ArrowException as error:
        wrong = f"column {name!r} has values that are no text ({column.type})"
        raise InputError(Problem(wrong, str(reading.path))) from error


def _codes(sessions: list[pa.Array]) -> Column:
    """Return a number for each request's session, -1 where it has none."""
    chunks = pa.chunked_array(sessions).unify_dictionaries()
    sessions.clear()  # there may be many
    dictionary = chunks.chunk(0).dictionary
    nameless = pc.index(dictionary, "").as_py()
    indices = pa.concat_arrays([chunk.indices for chunk in chunks.chunks]).fill_null(-1)
    codes: Column = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if nameless >= 0:
        codes[codes == nameless] = -1
    return codes


def _in_order(trace: Trace) -> Trace:
    """Sort by arrival (equal times in the file's order), count from the first, number sessions."""
    if (np.diff(trace.arrival_ns) < 0).any():
        trace = trace.take(np.argsort(trace.arrival_ns, kind="stable"))
    arrival = trace.arrival_ns
    arrival -= arrival[0]
    session = None if trace.session is None else numbered(trace.session)
    return replace(trace, arrival_ns=arrival, session=session)


def numbered(codes: Column) -> Column:
    """Number codes (0, 1, … in any order) from 0 in order of their first appearance; -1 stays."""
    first = np.full(int(codes.max()) + 2, len(codes), dtype=np.int64)
    # The last of several assignments to a place holds; -1 goes to the last place.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first[:-1])] = np.arange(len(first) - 1)
    rank[-1] = -1
    return rank[codes]
