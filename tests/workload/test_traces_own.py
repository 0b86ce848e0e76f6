"""kvsim's own traces: what a run sent comes back as it was."""

import errno
import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.rng import stream
from kvsim.workload.arrivals.trace import TraceArrivals
from kvsim.workload.requests import Gate, RequestTable, Segments
from kvsim.workload.traces import read_lengths, read_trace
from kvsim.workload.traces.own import write_trace


def ints(values) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@st.composite
def tables(draw) -> RequestTable:
    groups = draw(st.lists(st.integers(1, 3), min_size=1, max_size=8))
    times = sorted(
        draw(st.lists(st.integers(0, 10**12), min_size=len(groups), max_size=len(groups)))
    )
    group = np.repeat(np.arange(len(groups)), groups)
    rows = len(group)
    column = st.lists(st.integers(1, 9999), min_size=rows, max_size=rows).map(ints)
    arrival = ints(times)[group]
    return RequestTable(
        arrival_ns=arrival,
        prompt_tokens=draw(column),
        output_tokens=draw(column),
        max_tokens=draw(column) * draw(st.sampled_from([0, 1])),
        group=ints(group),
        horizon_ns=draw(st.sampled_from([0, int(arrival[-1]) + 1, 2 * 10**12])),
        segments=draw(st.none() | segments(rows)),
        session=draw(st.none() | st.just(ints(group))),
    )


def one_request() -> RequestTable:
    column = ints([3])
    return RequestTable(ints([0]), column, column, max_tokens=column, group=ints([0]), horizon_ns=1)


def test_a_trace_takes_the_place_of_files_only(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(InputError, match="is no file that could be replaced") as caught:
            write_trace(path, one_request())
        assert caught.value.problems[0].file == str(path)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_trace_that_can_not_be_written_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "run.parquet"
    with pytest.raises(InputError, match=r"run\.parquet: can't be written: ") as caught:
        write_trace(path, one_request())
    assert caught.value.problems[0].file == str(path)

    def full(_, path, **__):
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("kvsim.workload.traces.own.pq.write_table", full)
    with pytest.raises(InputError, match="can't be written: No space left"):
        write_trace(tmp_path / "run.parquet", one_request())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@st.composite
def segments(draw, rows: int) -> Segments:
    counts = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    total = sum(counts)
    column = st.lists(st.integers(1, 2**62), min_size=total, max_size=total).map(ints)
    answers = st.lists(st.integers(0, 2**62), min_size=rows, max_size=rows).map(ints)
    return Segments(ints([0, *np.cumsum(counts)]), draw(column), draw(column), draw(answers))


def same(one: Segments | None, other: Segments | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


@settings(max_examples=40)
@given(table=tables())
def test_a_run_s_requests_come_back_as_they_were(tmp_path_factory, table):
    folder = tmp_path_factory.mktemp("t")
    write_trace(folder / "run.parquet", table)
    trace = read_trace(folder / "run.parquet")
    for name in ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "group"):
        column = getattr(trace, name)
        assert np.array_equal(column, getattr(table, name))
        assert column.dtype == np.int64
    assert np.array_equal(trace.session, table.session) or trace.session is table.session is None
    assert same(trace.segments, table.segments)
    assert trace.horizon_ns == table.horizon_ns
    replay = TraceArrivals.model_validate(
        {"kind": "trace", "file": "run.parquet"}, context={"base_dir": folder}
    ).arrivals(None, None, stream(0, "arrivals"))
    assert np.array_equal(replay.times_ns, table.arrival_ns)
    assert replay.horizon_ns == table.horizon_ns
    assert same(replay.recorded.segments, table.segments)


TABLE = RequestTable(ints([0, 5]), ints([3, 4]), ints([1, 2]), ints([0, 0]), ints([0, 1]), 9)


def test_the_same_requests_give_the_same_bytes(tmp_path):
    write_trace(tmp_path / "a", TABLE)
    write_trace(tmp_path / "b", TABLE)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert read_lengths(tmp_path / "a")[1].tolist() == [1, 2]


@pytest.mark.parametrize(
    "change",
    [{"session": ints([0, 0]), "delay_ns": ints([0, 1])}, {"gates": (Gate(ints([0])),)}],
)
def test_requests_that_wait_for_others_can_not_be_kept(tmp_path, change):
    with pytest.raises(InputError, match="no times of their own"):
        write_trace(tmp_path / "run", replace(TABLE, **change))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("column", "values", "complaint"),
    [
        ("arrival_ns", [5, 4], "arrival_ns must not decrease"),
        ("arrival_ns", [-1, 4], "arrival_ns must be at least 0"),
        ("prompt_tokens", [0, 4], "prompt_tokens must be at least 1"),
        ("output_tokens", [1.5, 4], "output_tokens must be whole numbers"),
        ("group", [0, None], "group must be whole numbers"),
        ("arrival_ns", [], "holds no request"),
    ],
)
def test_a_trace_that_someone_has_broken_is_refused(tmp_path, column, values, complaint):
    write_trace(tmp_path / "run", TABLE)
    rows = pq.read_table(tmp_path / "run").slice(0, len(values))
    place = rows.column_names.index(column)
    pq.write_table(
        rows.set_column(place, column, pa.array(values, None if values else pa.int64())),
        tmp_path / "run",
    )
    with pytest.raises(InputError, match=complaint):
        read_trace(tmp_path / "run")


def test_a_trace_of_kvsim_has_no_columns_to_choose_by(tmp_path):
    write_trace(tmp_path / "run", TABLE)
    with pytest.raises(InputError, match="can't be filtered"):
        read_trace(tmp_path / "run", where={"group": 1})
