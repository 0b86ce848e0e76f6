"""Rows of logs whose columns are named: judged like a plain loop would judge them."""

import csv
import gzip
import io
import json
import re
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.workload.traces import _source, read_lengths, read_trace

COLUMNS = {"arrival": "at", "prompt_tokens": "in", "output_tokens": "out"}
DECIMALS = {"s": 9, "ms": 6, "us": 3, "ns": 0}


def write(folder: Path, content: str | bytes, name: str = "log") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def slow_time(text: str, unit: str) -> int | None:
    """Parse one time with Python's own means; None if it is none."""
    text = text.strip(" ")
    if unit != "timestamp":
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
            return None
        value = Decimal(text).scaleb(DECIMALS[unit])
        return (
            int(value.to_integral_value(ROUND_HALF_EVEN))
            if -(10**18) <= value <= 8 * 10**18
            else None
        )
    match = re.fullmatch(
        r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|\+\d\d:\d\d)?", text
    )
    try:
        whole = datetime.fromisoformat(match[1] + (match[3] or "Z"))
    except (ValueError, TypeError):
        return None
    seconds = (whole - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    in_range = 1970 <= whole.astimezone(UTC).year < 2200
    return int(seconds) * 10**9 + int((match[2] or "0").ljust(9, "0")) if in_range else None


def slow_length(text: str) -> int | None:
    digits = text.strip(" ")
    good = re.fullmatch(r"[0-9]{1,9}", digits) and 1 <= int(digits) <= 10**8
    return int(digits) if good else None


def slow_read(rows: list[list[str]], unit: str) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Return the good rows in order of arrival, and the numbers of the bad ones."""
    good, bad = [], []
    for number, row in enumerate(rows):
        values = None
        if len(row) == 4:
            values = (slow_time(row[0], unit), slow_length(row[1]), slow_length(row[3]))
        if values is None or None in values:
            bad.append(number)
        else:
            good.append(values)
    good.sort(key=lambda values: values[0])
    return [(at - good[0][0], prompt, output) for at, prompt, output in good], bad


CLOCKS = st.builds(
    "{}-{:02}-{:02}{}{:02}:{:02}:{:02}{}{}".format,
    st.sampled_from(["1969", "1970", "2024", "2199", "2200", "0001"]),
    st.integers(1, 12), st.integers(1, 31), st.sampled_from(" T"), st.integers(0, 24),
    st.integers(0, 60), st.integers(0, 59), st.sampled_from(["", ".5", ".1234567", ".123456789"]),
    st.sampled_from(["", "Z", "+00:00", "+05:30"]),
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(0, 10**8).map(str),
    st.decimals(0, 10**8, places=11).map(str),
    st.floats(1e-9, 1e6).map(repr),
)
JUNK = st.sampled_from(
    [
        "",
        "x",
        "-1",
        "1.5.2",
        "nan",
        "1e30",
        "٣",
        "0x1F",
        "1e+05",
        "2e09",
        "1e99",
        " 7 ",
        "1_0",
        "inf",
        ".",
    ]
)
LENGTHS = st.one_of(st.integers(0, 10**9).map(str), st.integers(1, 5000).map(str), JUNK)
NOTES = st.sampled_from(["", "fine", 'said "so"', "a,b", "two\nlines", "é"])


@st.composite
def logs(draw) -> tuple[str, list[list[str]]]:
    unit = draw(st.sampled_from(["s", "ms", "us", "ns", "timestamp"]))
    times = st.one_of(CLOCKS if unit == "timestamp" else NUMBERS, JUNK)
    row = st.tuples(times, LENGTHS, NOTES, LENGTHS).map(list)
    broken = st.lists(st.sampled_from(["1", "word"]), min_size=1, max_size=3)
    rows = draw(st.lists(st.one_of(row, row, row, broken), min_size=1, max_size=30))
    return unit, rows


def as_csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([["at", "in", "note", "out"], *rows])
    return text.getvalue()


@given(log=logs(), block_bytes=st.sampled_from([40, 300, 1 << 20]))
def test_rows_are_judged_as_by_a_plain_loop(tmp_path_factory, log, block_bytes):
    unit, rows = log
    path = write(tmp_path_factory.mktemp("t"), as_csv(rows))
    expected, bad = slow_read(rows, unit)
    starts = _line_starts(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvsim.workload.traces._source._BLOCK_BYTES", block_bytes)
        if bad:
            with pytest.raises(InputError) as caught:
                read_trace(path, columns=COLUMNS, time_unit=unit)
            lines = [problem.line for problem in caught.value.problems]
            assert lines[:20] == [starts[row] for row in bad[:20]]
        if not expected:
            with pytest.raises(InputError, match="holds no request"):
                read_trace(path, columns=COLUMNS, time_unit=unit, skip_bad_rows=99)
            return
        trace = read_trace(path, columns=COLUMNS, time_unit=unit, skip_bad_rows=len(bad))
    read = zip(trace.arrival_ns, trace.prompt_tokens, trace.output_tokens, strict=True)
    assert [tuple(map(int, row)) for row in read] == expected
    assert bool(trace.notes) == bool(bad)


def _line_starts(path: Path) -> list[int]:
    with path.open(newline="") as file:
        reader = csv.reader(file)
        return [reader.line_num + 1 for _ in reader][:-1]


@settings(max_examples=40)
@given(who=st.lists(st.sampled_from(["", "a", "b", "7", "é", "a b"]), min_size=1, max_size=30))
def test_sessions_are_numbered_as_they_come(tmp_path_factory, who):
    lines = [f"{i},1,1,{name}" for i, name in enumerate(who)]
    path = write(tmp_path_factory.mktemp("t"), "\n".join(["at,in,out,who", *lines]))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(filter(None, who)))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvsim.workload.traces._source._BLOCK_BYTES", 30)
        trace = read_trace(path, columns={**COLUMNS, "session": "who"})
    assert trace.session.tolist() == [numbers.get(name, -1) for name in who]


@settings(max_examples=25)  # six files each
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 2**50), st.integers(1, 10**8), st.integers(1, 9), st.sampled_from("ab")
        ),
        min_size=1,
        max_size=40,
    )
)
def test_csv_jsonl_and_parquet_say_the_same_however_compressed(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("t")
    names = ["at", "in", "out", "who"]
    text = "\n".join(",".join(map(str, row)) for row in [names, *rows])
    lines = "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    pq.write_table(table, folder / "log.parquet")
    paths = [
        write(folder, text, "log.csv"),
        write(folder, gzip.compress(text.encode()), "log.csv.gz"),
        write(folder, pa.compress(text.encode(), "zstd", asbytes=True), "log.csv.zst"),
        write(folder, lines, "log.jsonl"),
        write(folder, gzip.compress(lines.encode()), "log.jsonl.gz"),
        folder / "log.parquet",
    ]
    first, *others = [
        read_trace(path, columns={**COLUMNS, "session": "who"}, time_unit="us") for path in paths
    ]
    times = sorted(row[0] for row in rows)
    assert first.arrival_ns.tolist() == [(time - times[0]) * 1000 for time in times]
    for other in others:
        for field in ("arrival_ns", "prompt_tokens", "output_tokens", "session"):
            assert np.array_equal(getattr(first, field), getattr(other, field))


@pytest.mark.parametrize(
    ("column", "unit", "expected_ns"),
    [
        (pa.array([5, 7], pa.uint64()), "ms", 2_000_000),
        (pa.array([1.7e9, 1.7e9 + 0.25]), None, 250_000_000),
        (pa.array(["1700000000.000000001", "1700000000.000000004"]), "s", 3),
        (pa.array([10**15, 10**15 + 5], pa.timestamp("us")), None, 5000),
        (pa.array([10**18, 10**18 + 5], pa.timestamp("ns", "UTC")), "timestamp", 5),
        (pa.array([Decimal("1.25"), Decimal("1.75")]), "s", 500_000_000),
        (pa.array(["2024-05-10 00:00:01", "2024-05-10T00:00:01.000000002Z"]), None, 2),
    ],
)
def test_times_of_every_type_are_exact(tmp_path, column, unit, expected_ns):
    table = pa.table({"at": column, "in": [1, 2], "out": [3, 4]})
    pq.write_table(table, tmp_path / "log")
    trace = read_trace(tmp_path / "log", columns=COLUMNS, time_unit=unit)
    assert trace.arrival_ns.tolist() == [0, expected_ns]


def test_numbers_are_no_timestamps(tmp_path):
    path = write(tmp_path, '{"at": 1700000000, "in": 1, "out": 2}')
    with pytest.raises(InputError, match="bad row"):
        read_trace(path, columns=COLUMNS, time_unit="timestamp")


def test_json_lines_that_are_broken_are_told_by_their_number(tmp_path):
    good = '{"at": 1.5, "in": 3, "out": 4, "who": null}'
    lines = [good, "{", good, '{"at": "x", "in": 3, "out": 4}', "", '{"in": 3, "out": 4}',
             good + good, '{"at": 2, "in": 0, "out": 4, "who": "me"}', good]  # fmt: skip
    path = write(tmp_path, "\n".join(lines) + "\n\n")
    columns = {**COLUMNS, "session": "who"}
    with pytest.raises(InputError) as caught:
        read_trace(path, columns=COLUMNS)
    assert [problem.line for problem in caught.value.problems] == [2, 4, 6, 7, 8]
    trace = read_trace(path, columns=columns, skip_bad_rows=5)
    assert trace.arrival_ns.tolist() == [0, 0, 0]
    assert trace.session.tolist() == [-1] * 3
    assert trace.notes == ("log: 5 rows can't be used, left out",)


def test_only_so_many_bad_rows_are_skipped(tmp_path):
    path = write(tmp_path, "at,in,out\n" + "1,2,3\n1,x,3\n" * 30)
    assert len(read_trace(path, columns=COLUMNS, skip_bad_rows=30)) == 30
    with pytest.raises(InputError) as caught:
        read_trace(path, columns=COLUMNS, skip_bad_rows=29)
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1].message == "and 10 more bad rows"


def test_a_file_of_nothing_but_bad_rows_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("kvsim.workload.traces._source._BLOCK_BYTES", 1 << 16)
    path = write(tmp_path, "at,in,out\n" + "1,x,3\n" * 100_000)
    with pytest.raises(InputError, match=r"and at least 1[0-9]{4} more bad rows"):
        read_trace(path, columns=COLUMNS)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_rows_are_chosen_by_what_other_columns_hold(tmp_path, form):
    rows = {"at": [1, 2, 3, 4], "in": [5, 6, 7, 8], "out": [1] * 4, "model": ["a", "b", "c", "b"],
            "tier": [1, 1, 2, 2], "stream": [True, False, True, True]}  # fmt: skip
    path = tmp_path / "log"
    if form == "parquet":
        pq.write_table(pa.table(rows), path)
    elif form == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in pa.table(rows).to_pylist()))
    else:
        lines = [",".join(map(str, row)) for row in zip(*rows.values(), strict=True)]
        path.write_text("\n".join([",".join(rows), *lines]))

    def prompts(**where):
        return read_trace(path, columns=COLUMNS, where=where).prompt_tokens.tolist()

    assert prompts(model="b") == [6, 8]
    assert prompts(model=["a", "c"]) == [5, 7]
    assert prompts(model=["a", "b"], tier=1) == [5, 6]
    assert prompts(stream=True) == [5, 7, 8]
    with pytest.raises(InputError, match="no column 'modle'; columns: at, in, out, model"):
        prompts(modle="b")
    with pytest.raises(InputError, match="holds no request"):
        prompts(model="d")


def test_a_row_that_is_not_asked_for_may_be_bad(tmp_path):
    path = write(tmp_path, "at,in,out,ok\n1,2,3,yes\n1,x,3,no\n")
    assert len(read_trace(path, columns=COLUMNS, where={"ok": "yes"})) == 1


def test_quoted_values_may_have_lines_of_their_own(tmp_path):
    path = write(tmp_path, 'text,at,in,out\n"a\nb""\nc",1,2,3\n"\n",2,x,3\n"q, r",2,4,5\n')
    with pytest.raises(InputError, match="'x' and '3'") as caught:
        read_trace(path, columns=COLUMNS)
    assert [problem.line for problem in caught.value.problems] == [5]
    trace = read_trace(path, columns=COLUMNS, skip_bad_rows=1)
    assert trace.prompt_tokens.tolist() == [2, 4]


OPEN = '13,"5,3.5', '13,5,"3.5', '13,5,3.5,"'


@pytest.mark.parametrize("row", OPEN)
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_rows_inside_an_odd_quote_are_not_skipped_as_one(tmp_path, row, closed, named):
    rows = [f"{10 + i},5,{i}.5" for i in range(30)]
    rows[3] = row
    if closed:
        rows[9] = '19,5,"9.5'
    names = ["input_tokens", "output_tokens", "arrival_s"]
    path = write(tmp_path, "\n".join([",".join(names), *rows]))
    options = {}
    if named:
        columns = dict(zip(("prompt_tokens", "output_tokens", "arrival"), names, strict=True))
        options = {"columns": columns, "where": {"output_tokens": "5"}}
    last = 11 if closed else 31
    with pytest.raises(InputError, match=f"it goes on to line {last}: is a quote not") as caught:
        read_trace(path, skip_bad_rows=last - 5, **options)
    assert [problem.line for problem in caught.value.problems] == [5]
    trace = read_trace(path, skip_bad_rows=last - 4, **options)
    assert len(trace) == 30 - (last - 4)
    assert trace.notes == (f"log: {last - 4} rows can't be used, left out",)


def test_bad_rows_among_very_long_values_keep_their_lines(tmp_path):
    text = "x" * 200_000 + "\n"
    rows = [f'"{text}",1,2,3', '"a\nb",1,x,3', "1,2", f'"{text}",1,x,3']
    path = write(tmp_path, "text,at,in,out\n" + "\n".join(rows))
    with pytest.raises(InputError) as caught:
        read_trace(path, columns=COLUMNS)
    assert [problem.line for problem in caught.value.problems] == [4, 6, 7]


def test_rows_before_a_stray_carriage_return_keep_their_lines(tmp_path):
    path = write(tmp_path, 'text,at,in,out\n"a\nb\nb",1,x,3\nc,1,y,3\nd\rd,1,2,3\ne,1,z,3\n')
    with pytest.raises(InputError) as caught:
        read_trace(path, columns=COLUMNS)
    assert [problem.line for problem in caught.value.problems][:2] == [2, 5]


def test_all_absent_columns_are_named(tmp_path):
    path = write(tmp_path, "a,b\n1,2\n")
    with pytest.raises(InputError) as caught:
        read_trace(path, columns=COLUMNS)
    messages = [problem.message for problem in caught.value.problems]
    assert messages == [f"no column {name!r}; columns: a, b" for name in ("at", "in", "out")]


def test_mistakes_in_the_columns_are_told(tmp_path):
    path = write(tmp_path, "a,b\n1,2\n")
    with pytest.raises(InputError, match=r"columns\.output_tokens: Field required"):
        read_trace(path, columns={"prompt_tokens": "a"})
    with pytest.raises(InputError, match=r"columns\.promt_tokens"):
        read_trace(path, columns={"promt_tokens": "a", "output_tokens": "b"})
    with pytest.raises(InputError, match="format azure, which has its own"):
        read_trace(path, format="azure", columns=COLUMNS)


def test_lengths_alone_need_no_times(tmp_path):
    path = write(tmp_path, "at,in,out\nnever,7,8\n,5,6\n")
    prompt, output = read_lengths(path, columns=COLUMNS)
    assert [prompt.tolist(), output.tolist()] == [[7, 5], [8, 6]]


@pytest.mark.parametrize("content", [b"\xff\xfea\x00,\x00", b"a,\xff\n1,2\n", b'"', b"[", b"{}"])
def test_bytes_that_are_no_log_are_refused(tmp_path, content):
    for options in ({}, {"columns": COLUMNS}):
        with pytest.raises(InputError, match="log"):
            read_trace(write(tmp_path, content), **options)


def test_the_unit_is_guessed_once_for_the_whole_file(tmp_path, monkeypatch):
    monkeypatch.setattr("kvsim.workload.traces._source._BLOCK_BYTES", 100)
    rows = ["junk,1,1", *(f"2024-05-10 00:00:{second:02},1,1" for second in range(60))]
    path = write(tmp_path, "\n".join(["at,in,out", *rows, *rows]))
    trace = read_trace(path, columns=COLUMNS, skip_bad_rows=2)
    assert trace.arrival_ns.tolist() == [i // 2 * 10**9 for i in range(120)]


@pytest.mark.parametrize(
    "time", ["5.960464477539063e-08", "1e-20", "0.00000000000000000000000000001"]
)
@pytest.mark.parametrize("form", ["{},1,1", '{{"at": {}, "in": 1, "out": 1}}'])
def test_times_near_zero_have_many_digits(tmp_path, time, form):
    header = "at,in,out\n" * (form[0] != "{" or form[1] == "}")
    path = write(tmp_path, header + "\n".join(form.format(at) for at in (time, "0.000001")))
    trace = read_trace(path, columns=COLUMNS)
    assert trace.arrival_ns.tolist() == [0, 1000 - round(float(time) * 1e9)]


MOONCAKE = '{"timestamp": 1, "input_length": 700, "output_length": 5, "hash_ids": %s}\n'


@pytest.mark.parametrize("line", ["null", "[1, null]", "[1, 36893488147419103232]", "[1, [2]]"])
def test_a_line_without_usable_hashes_is_told_by_its_number(tmp_path, line):
    path = tmp_path / "log.jsonl"
    path.write_text(MOONCAKE % "[1, 2]" + MOONCAKE % line)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert [problem.line for problem in caught.value.problems] == [2]


def test_null_in_place_of_an_object_is_a_bad_row_wherever_it_stands(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(MOONCAKE % "[1, 2]" + "null\nnull\n[]\n" + MOONCAKE % "[1, 2]" + "null\n5\n")
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert [problem.line for problem in caught.value.problems] == [2, 3, 4, 6, 7]


@pytest.mark.parametrize("start", ['"', ""])
def test_a_line_or_a_quoted_value_without_end_is_refused_at_its_place(tmp_path, monkeypatch, start):
    monkeypatch.setattr(_source, "_LONGEST_LINE_BYTES", 1000)
    monkeypatch.setattr(_source, "_BLOCK_BYTES", 100)
    path = tmp_path / "log.csv"
    end = "\n1,2,3" if start else "x"
    path.write_text("at,in,out\n1,2,3\n" + start + end * 2000)
    with pytest.raises(InputError, match="may have more than") as caught:
        read_trace(path, columns=COLUMNS)
    assert caught.value.problems[0].line == 3


@pytest.mark.parametrize("values", [[[1]], [{"a": 1}], [b"\xff"]])
def test_sessions_and_filters_must_be_text(tmp_path, values):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"at": [0], "in": [1], "out": [1], "who": values}), path)
    with pytest.raises(InputError, match="column 'who' has values that are no text"):
        read_trace(path, columns=COLUMNS | {"session": "who"})
    with pytest.raises(InputError, match="column 'who' has values that are no text"):
        read_trace(path, columns=COLUMNS, where={"who": "a"})


@pytest.mark.parametrize("kind", ["bool", "timestamp", "date", "true in JSON lines"])
def test_lengths_are_numbers_and_nothing_that_could_be_cast_to_them(tmp_path, kind):
    path = tmp_path / "log"
    types = {"bool": pa.bool_(), "timestamp": pa.timestamp("us"), "date": pa.date64()}
    if kind in types:
        column = pa.array([1, 1]).cast(types[kind])
        pq.write_table(pa.table({"at": [0, 1], "in": column, "out": [1, 2]}), path)
    else:
        path.write_text('{"at": 0, "in": true, "out": 1}\n{"at": 1, "in": true, "out": 2}\n')
    with pytest.raises(InputError, match="lengths must be whole numbers from 1") as caught:
        read_trace(path, columns=COLUMNS)
    assert len(caught.value.problems) == 2
