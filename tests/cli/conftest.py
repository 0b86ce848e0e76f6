"""The command line, run in this process, which is much quicker than in another."""

import io
import signal
import sys
from dataclasses import dataclass

import pytest

from kvsim.cli.main import main


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command_line(tmp_path, monkeypatch, capsys):
    """Return what runs `kvsim` with arguments and standard input in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "argv", ["kvsim", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as end:
            main()
        return Done(end.value.code or 0, *capsys.readouterr())

    return run
