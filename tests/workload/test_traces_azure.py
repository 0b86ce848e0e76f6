import re
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.workload.traces import read_trace
from kvsim.workload.traces.azure import HEADER

TRACES = Path(__file__).parents[2] / "scenarios" / "traces"


def write(folder: Path, *rows: str, end: str = "\r\n") -> Path:
    path = folder / "trace.csv"
    path.write_bytes("\r\n".join([HEADER, *rows]).encode() + end.encode())
    return path


def seconds_of_day(timestamp: str) -> Decimal:
    hour, minute, second = timestamp.split(" ")[1].split(":")
    return Decimal(hour) * 3600 + Decimal(minute) * 60 + Decimal(second)


@pytest.mark.parametrize(
    ("name", "requests"),
    [("AzureLLMInferenceTrace_conv.csv", 19366), ("AzureLLMInferenceTrace_code.csv", 8819)],
)
def test_published_traces_are_read_to_the_last_digit(name, requests):
    trace = read_trace(TRACES / name)
    rows = [line.split(",") for line in (TRACES / name).read_text().split()[1:]]
    # The timestamp holds a blank, so a row splits into the date and the rest.
    rows = [rows[i] + rows[i + 1] for i in range(0, len(rows), 2)]
    assert len(trace) == len(rows) == requests
    times = [seconds_of_day(f"{day} {time}") for day, time, _, _ in rows]
    exact = [int((time - times[0]) * 10**9) for time in times]
    assert trace.arrival_ns.tolist() == exact
    assert trace.prompt_tokens.tolist() == [int(row[2]) for row in rows]
    assert trace.output_tokens.tolist() == [int(row[3]) for row in rows]


@given(
    ticks=st.lists(st.integers(0, 10**13), min_size=1, max_size=30).map(sorted),
    last_line_ends=st.booleans(),
)
def test_every_100_ns_tick_survives(tmp_path_factory, ticks, last_line_ends):
    def timestamp(tick):
        days, rest = divmod(tick, 86_400 * 10**7)
        seconds, fraction = divmod(rest, 10**7)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:07}"
        return f"2023-11-{16 + days:02} {clock}"

    rows = [f"{timestamp(tick)},5,7" for tick in ticks]
    path = write(tmp_path_factory.mktemp("t"), *rows, end="\r\n" if last_line_ends else "")
    assert read_trace(path).arrival_ns.tolist() == [(tick - ticks[0]) * 100 for tick in ticks]


def test_rows_in_any_order_are_sorted_and_equal_times_keep_theirs(tmp_path):
    times = ["18:15:48", "18:15:46", "18:15:48", "18:15:47", "18:15:46"]
    rows = [f"2023-11-16 {time},{number},9" for number, time in enumerate(times, start=1)]
    trace = read_trace(write(tmp_path, *rows))
    assert trace.arrival_ns.tolist() == [0, 0, 10**9, 2 * 10**9, 2 * 10**9]
    assert trace.prompt_tokens.tolist() == [2, 5, 4, 1, 3]


def test_the_form_of_2024_has_a_time_zone(tmp_path):
    path = write(
        tmp_path,
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:00+00:00,2399,6",
        "2024-05-10 02:00:00.017335+02:00,76,15",
    )
    trace = read_trace(path)
    assert trace.arrival_ns.tolist() == [0, 9_930_000, 17_335_000]
    assert trace.prompt_tokens.tolist() == [2399, 2162, 76]


def test_a_trace_may_cross_midnight_and_a_leap_day(tmp_path):
    path = write(tmp_path, "2024-02-28 23:59:59.9999999,1,1", "2024-03-01 00:00:00,1,1")
    assert read_trace(path).arrival_ns.tolist() == [0, 86_400 * 10**9 + 100]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("2023-11-16 18:15:46.68,374", "bad row"),
        ("2023-11-16 18:15:46.68,374,x", "bad row"),
        ("2023-11-16 18:15:46.68,-374,5", "bad row"),
        ("2023-11-16 18:15:46.68,37.5,5", "bad row"),
        ("2023-11-16 25:15:46.68,374,5", "bad row"),
        ("2023-02-30 18:15:46.68,374,5", "no such date"),
        ("0001-01-01 18:15:46.68,374,5", "no such date from 1970 to 2199"),
        ("9999-12-31 18:15:46.68,374,5", "no such date from 1970 to 2199"),
        ("2023-11-16 18:15:46.68,0,5", "at least one token"),
        ("2023-11-16 18:15:46.68,5,0", "at least one token"),
        ("", "bad row"),
    ],
)
def test_a_bad_row_is_told_with_its_line(tmp_path, row, complaint):
    good = "2023-11-16 18:15:46.0000000,374,44"
    path = write(tmp_path, good, row, good)
    with pytest.raises(InputError, match=complaint) as caught:
        read_trace(path)
    assert [(p.file, p.line) for p in caught.value.problems] == [(str(path), 3)]


def test_all_bad_rows_are_told_up_to_twenty(tmp_path):
    path = write(tmp_path, *["nonsense"] * 33)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    lines = [problem.line for problem in caught.value.problems]
    assert lines == [*range(2, 22), None]
    assert "13 more" in caught.value.problems[-1].message


@pytest.mark.parametrize("content", [b"", b"a,b,c\n", HEADER.encode(), b"\xff\xfe\x00"])
def test_a_file_that_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(str(path))):
        read_trace(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="can't be read: No such file"):
        read_trace(tmp_path / "absent.csv")


def test_a_path_that_no_file_system_takes_is_refused(tmp_path):
    with pytest.raises(InputError, match="is no path"):
        read_trace(tmp_path / "a\0b")


def test_the_widest_trace_fits_its_clock(tmp_path):
    path = write(tmp_path, "1970-01-01 00:00:00,1,1", "2199-12-31 23:59:59.9999999,1,1")
    days = (date(2200, 1, 1) - date(1970, 1, 1)).days
    assert read_trace(path).arrival_ns.tolist() == [0, days * 86_400 * 10**9 - 100]


def test_rows_keep_their_columns_together(tmp_path):
    rows = [f"2023-11-16 18:15:{second:02}.5,{second + 1},{second + 100}" for second in range(9)]
    part = read_trace(write(tmp_path, *rows)).rows(2, 5)
    assert np.array_equal(part.prompt_tokens, [3, 4, 5])
    assert np.array_equal(part.output_tokens, [102, 103, 104])
    assert np.array_equal(part.arrival_ns, [2 * 10**9, 3 * 10**9, 4 * 10**9])
