"""What was read of a file is remembered only for as long as the file stays as it is."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import InputError
from kvsim.workload.arrivals.trace import TraceArrivals
from kvsim.workload.files import once_per_state
from kvsim.workload.lengths.trace import TraceLengths

LONG_AGO_S = 1_600_000_000
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:{:02d}.0000000,{},9\n"


def settled(path: Path, text: str, age: int = 0) -> Path:
    """Write a file that was last changed long ago, so that it may be remembered."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (LONG_AGO_S - age, LONG_AGO_S - age))
    return path


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    reads: list[str] = []

    @once_per_state(most=4)
    def read(path: Path, how: str) -> str:
        reads.append(how)
        return path.read_text(encoding="utf-8")

    path = settled(tmp_path / "a", "first")
    assert [read(path, "x"), read(path, "x"), read(path, "y")] == ["first"] * 3
    assert reads == ["x", "y"]
    settled(path, "other", age=1)  # of the same size
    assert read(path, "x") == "other"
    time.sleep(0.05)  # the disk's clock ticks
    settled(path, "again", age=1)  # and of the same time: its state was changed later
    assert read(path, "x") == "again"
    settled(tmp_path / "b", "elsewhere").replace(path)
    assert read(path, "x") == "elsewhere"
    assert reads == ["x", "y", "x", "x", "x"]


def test_what_has_just_changed_is_read_anew(tmp_path: Path) -> None:
    @once_per_state(most=4)
    def read(path: Path) -> str:
        return path.read_text(encoding="utf-8")

    path = tmp_path / "a"
    for text in ("one", "two", "six"):  # sooner after each other than the disk's clock ticks
        path.write_text(text, encoding="utf-8")
        assert read(path) == text


def test_large_files_and_errors_are_not_remembered(tmp_path: Path) -> None:
    reads = 0

    @once_per_state(most=4, largest_bytes=3)
    def read(path: Path) -> str:
        nonlocal reads
        reads += 1
        return path.read_text(encoding="utf-8")

    large = settled(tmp_path / "large", "four")
    assert read(large) == read(large) == "four"
    assert reads == 2
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")
    settled(tmp_path / "none", "now")
    assert read(tmp_path / "none") == "now"


def test_a_log_is_parsed_once_for_each_way_to_read_it(tmp_path: Path) -> None:
    text = HEADER + "".join(ROW.format(n, 100 + n) for n in range(9))
    settled(tmp_path / "a.csv", text)

    def arrivals(**options: object) -> TraceArrivals:
        context = {"base_dir": tmp_path}
        return TraceArrivals.model_validate({"file": "a.csv", **options}, context=context)

    whole = arrivals().read()
    assert arrivals(rate_scale=3.0).read() is whole
    part = arrivals(where={"ContextTokens": 103}).read()
    assert part.prompt_tokens.tolist() == [103]
    assert arrivals(where={"ContextTokens": [103]}).read().prompt_tokens.tolist() == [103]
    with pytest.raises(InputError):
        arrivals(format="mooncake").read()
    settled(tmp_path / "a.csv", text + ROW.format(40, 7), age=9)
    assert len(arrivals().read()) == 10


def test_nobody_can_write_into_what_is_shared(tmp_path: Path) -> None:
    settled(tmp_path / "a.csv", HEADER + ROW.format(1, 5) + ROW.format(2, 6))
    context = {"base_dir": tmp_path}
    trace = TraceArrivals.model_validate({"file": "a.csv"}, context=context).read()
    lengths = TraceLengths.model_validate({"file": "a.csv"}, context=context).read_lengths()
    for values in (trace.arrival_ns, trace.prompt_tokens, *lengths):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1
    np.testing.assert_array_equal(lengths[0], [5, 6])
