"""kvsim's own traces: Parquet that keeps the requests of a run, contents included."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kvsim.errors import InputError, Problem
from kvsim.workload.files import told_by_name, written_whole
from kvsim.workload.requests import RequestTable, Segments, sums_before
from kvsim.workload.traces.format import Head, Reading
from kvsim.workload.traces.trace import Trace

_HORIZON = b"kvsim_horizon_ns"
_COLUMNS = ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "group")
_LEAST = {"arrival_ns": 0, "prompt_tokens": 1, "output_tokens": 1, "max_tokens": 0, "group": 0}


def write_trace(path: Path, table: RequestTable) -> None:
    """Write the requests of a run so that a run with arrivals of kind trace repeats it.

    What clients do later is no part of a trace: timeouts, retries and priorities stand in the
    scenario.

    Raises:
        InputError: Arrivals follow from the run (further turns, a limit on the clients in flight),
            so that the table holds no times that could be replayed; or the file can't be written.
    """
    if table.delay_ns is not None or table.gates:
        raise InputError(
            "further turns and clients with a limit arrive when others have ended: "
            "such requests have no times of their own that a trace could keep"
        )
    columns: dict[str, pa.Array] = {name: pa.array(getattr(table, name)) for name in _COLUMNS}
    if table.session is not None:
        columns["session"] = pa.array(table.session)
    if table.segments is not None:
        columns["segments"] = _as_lists(table.segments)
        columns["answer_seed"] = pa.array(table.segments.answer_seed)
    metadata = {_HORIZON: str(table.horizon_ns).encode()}
    rows = pa.table(columns).replace_schema_metadata(metadata)
    with written_whole(path) as working:
        pq.write_table(rows, working, compression="zstd")


class OwnTrace:
    """A trace that kvsim wrote; see `Format`."""

    name = "kvsim"
    shape = f"Parquet that kvsim wrote ({', '.join(_COLUMNS)})"

    def recognizes(self, head: Head) -> bool:
        """Return whether the columns are there; see `Format`."""
        return head.kind == "parquet" and set(_COLUMNS) <= set(head.names)

    def read(self, reading: Reading) -> Trace:
        """Read a file, times counted from the start of its run; see `Format`."""
        path = reading.path
        if reading.where:
            raise InputError(Problem("a trace of kvsim can't be filtered by `where`", str(path)))
        with told_by_name(path):
            rows = pq.read_table(path)
        absent = [name for name in _COLUMNS if name not in rows.column_names]
        if absent:
            raise InputError(Problem(f"has no column {', '.join(absent)}", str(path)))
        _refuse_broken(rows, path)
        horizon = (rows.schema.metadata or {}).get(_HORIZON)
        return Trace(
            _numbers(rows, "arrival_ns"),
            _numbers(rows, "prompt_tokens"),
            _numbers(rows, "output_tokens"),
            max_tokens=_numbers(rows, "max_tokens"),
            group=_numbers(rows, "group"),
            session=_numbers(rows, "session") if "session" in rows.column_names else None,
            segments=_as_segments(rows) if "segments" in rows.column_names else None,
            horizon_ns=None if horizon is None else int(horizon),
        )


def _refuse_broken(rows: pa.Table, path: Path) -> None:
    """Refuse a file that someone has changed into what no run can have; `InputError`."""
    problems = []
    if not rows.num_rows:
        problems.append("holds no request")
    for name, least in _LEAST.items():
        if not pa.types.is_integer(rows.schema.field(name).type) or rows[name].null_count:
            problems.append(f"{name} must be whole numbers")
        elif rows.num_rows and _numbers(rows, name).min() < least:
            problems.append(f"{name} must be at least {least}")
    if not problems:
        for name in ("arrival_ns", "group"):
            if (np.diff(_numbers(rows, name)) < 0).any():
                problems.append(f"{name} must not decrease")
    if problems:
        raise InputError(*(Problem(problem, str(path)) for problem in problems))


def _as_lists(segments: Segments) -> pa.Array:
    pairs = pa.StructArray.from_arrays(
        [pa.array(segments.seed), pa.array(segments.tokens)], names=["seed", "tokens"]
    )
    return pa.LargeListArray.from_arrays(pa.array(segments.first), pairs)


def _as_segments(rows: pa.Table) -> Segments:
    lists = rows["segments"].combine_chunks()
    lists = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) else lists
    pairs = lists.flatten()
    counts = lists.value_lengths().to_numpy(zero_copy_only=False)
    return Segments(
        sums_before(counts),
        pairs.field("seed").to_numpy(zero_copy_only=False).astype(np.int64),
        pairs.field("tokens").to_numpy(zero_copy_only=False).astype(np.int64),
        _numbers(rows, "answer_seed"),
    )


def _numbers(rows: pa.Table, name: str) -> NDArray[np.int64]:
    return np.array(rows[name].to_numpy(), dtype=np.int64)


FORMAT = OwnTrace()
