"""Text for the terminal: no line is too wide, no number is broken."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvsim.cli.text import LEAST_LABEL, WIDTH, aligned, columns_of, painted, wrapped
from kvsim.metrics.catalog import METRICS, format_figure, format_range

NAMES = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S"), include_characters=" "),
    max_size=90,
)
METRIC = st.sampled_from(sorted(METRICS))
AMOUNT = st.floats(1e-9, 1e14) | st.integers(0, 10**12) | st.just(0.0)
FIGURE = st.builds(format_figure, METRIC, AMOUNT)
RANGE = st.builds(
    lambda name, two: format_range(name, min(two), max(two)), METRIC, st.tuples(AMOUNT, AMOUNT)
)


def lines_of(text):
    lines = text.splitlines()
    assert all(columns_of(line) <= WIDTH for line in lines), lines
    return lines


def test_indented_lines_are_no_wider_than_others():
    lines = wrapped("; ".join(["a100_sxm, TP 4, fp8 KV ($26.52/h)"] * 9), "    ").splitlines()
    assert len(lines) > 3
    assert all(line.startswith("    ") and len(line) <= WIDTH for line in lines)


@settings(max_examples=40)
@given(st.lists(st.tuples(NAMES, FIGURE | RANGE), min_size=1, max_size=6))
def test_sentences_keep_numbers_with_their_units(parts):
    """A figure and its unit stand in one line, whatever stands around them."""
    text = "; ".join(f"{name} is {figure}," for name, figure in parts)
    lines = lines_of(wrapped(text))
    for _, figure in parts:
        assert any(f"{figure}," in line for line in lines), (figure, lines)


@settings(max_examples=40)
@given(st.lists(st.sampled_from("ab cd"), max_size=300).map("".join))
def test_nothing_is_lost_or_added_between_lines(text):
    assert "".join(wrapped(text).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "figure",
    [
        *("12.3 s", "310 to 351 ms", "1,234 requests/s", "97.4 %", "14.96 GiB", "$2.50/h", "1 %"),
        *("12 days", "3 of 4 targets", "1.07e+16 tokens", "850 µs", "2.1 years", "0.857\u00a0×"),
    ],
)
def test_figures_are_not_broken_wherever_they_stand(figure):
    for place in range(WIDTH):
        before = "x" * place
        lines = lines_of(wrapped(f"{before} {figure} and more words that follow here " + "y" * 20))
        assert any(figure.replace("\u00a0", " ") in line for line in lines), (place, lines)


@settings(max_examples=40)
@example(names=["a" * 90, " "], rows=[])
@given(
    st.lists(NAMES, min_size=1, max_size=7),
    st.lists(st.tuples(NAMES, st.lists(FIGURE | RANGE, min_size=7, max_size=7)), max_size=4),
)
def test_tables_break_no_cell(names, rows):
    table = [["", *names], *([label, *cells[: len(names)]] for label, cells in rows)]
    lines = lines_of(aligned(table))
    for row in table[1:]:
        for cell in row[1:]:
            assert any(cell in line for line in lines), (cell, lines)


def test_a_table_that_fits_is_set_as_it_is():
    rows = [["", "a heading of some length", "b"], ["x", "1 s", "2 s"]]
    assert aligned(rows) == "   a heading of some length    b\nx                       1 s  2 s"


def test_headings_are_set_in_lines_before_columns_go_below():
    rows = [["", *["a heading"] * 8], ["label", *["12 s"] * 8]]
    lines = lines_of(aligned(rows))
    assert [line.split() for line in lines] == [
        ["a"] * 8,
        ["heading"] * 8,
        ["label", *["12", "s"] * 8],
    ]


def test_columns_that_do_not_fit_go_on_below():
    rows = [["", *"abcdef"], ["first", *["1.5 requests/s"] * 6], ["second", *["2 s"] * 6]]
    first, second = aligned(rows).split("\n\n")
    assert [line.split()[0] for line in first.splitlines()] == ["a", "first", "second"]
    assert [line.split()[0] for line in second.splitlines()] == ["e", "first", "second"]


def test_a_long_label_leaves_room_for_the_numbers():
    rows = [["target", "found"], ["x" * 200 + ": ttft_p99_s", "1.5 s"]]
    lines = lines_of(aligned(rows))
    assert lines[1].endswith("1.5 s")
    assert "".join(line.split("  ")[0] for line in lines[1:]).count("x") == 200
    assert LEAST_LABEL < 20


def test_wide_characters_take_two_columns():
    assert columns_of("日本e\u0301\u202e") == 5
    assert lines_of(wrapped("日本" * 60))[0] == "日本" * 20


@pytest.mark.parametrize(
    ("is_terminal", "environment", "is_colored"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_color_is_for_terminals_that_want_it(monkeypatch, is_terminal, environment, is_colored):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    text = "Misses its SLO: by far.\n\nSLO   met   MISSED?\nttft  1 s   met\nOne met another."
    found = painted(text)
    assert (found != text) is is_colored
    assert re.sub(r"\033\[\d+m", "", found) == text
    if is_colored:
        assert found.startswith("\033[31mMisses its SLO\033[0m: by far.")
        assert "\033[33mMISSED?\033[0m\n" in found
        assert "1 s   \033[32mmet\033[0m\n" in found
        assert found.endswith("One met another.")
