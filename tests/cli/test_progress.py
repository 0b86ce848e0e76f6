"""Bars on stderr, for who sees them."""

import io
import sys

import pytest

from kvsim.cli.progress import counted


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_is_counted_is_shown_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with counted("points") as tell:
        tell(4, 6)
        tell(6, 8, "last points")
    shown = sys.stderr.getvalue()
    assert "last points" in shown
    assert "6/8" in shown


@pytest.mark.parametrize("stderr", [io.StringIO(), None])
def test_nothing_is_told_where_nobody_looks(monkeypatch, stderr):
    monkeypatch.setattr(sys, "stderr", stderr)
    with counted("points") as tell:
        assert tell is None
    assert stderr is None or stderr.getvalue() == ""
