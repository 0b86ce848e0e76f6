"""Where exports go: a file that appears whole, compressed if its name says so, or stdout."""

import gzip
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kvsim.errors import InputError, Problem
from kvsim.rundir.read import Run
from kvsim.workload.files import refuse_inputs, written_whole

STDOUT = Path("-")


def refuse_place(path: Path, run: Run, force: bool) -> None:
    """Refuse to write where something would be lost, before anything is read.

    Raises:
        InputError: There is a file already, or the place belongs to the run.
    """
    if path == STDOUT:
        return
    if path.resolve().is_relative_to(run.folder.resolve()):
        raise InputError(Problem("a run's folder holds the run and nothing else", str(path)))
    refuse_inputs(path, [run.folder / "manifest.json"])
    if path.exists() and not path.is_file():
        raise InputError(Problem("is no file that could be replaced", str(path)))
    if path.exists() and not force:
        raise InputError(Problem("exists; --force overwrites it", str(path)))


@contextmanager
def written(path: Path) -> Iterator[IO[str]]:
    """Yield a text file that takes its place at the end: the same text gives the same bytes.

    Raises:
        InputError: It can't be written.
    """
    if path == STDOUT:
        yield sys.stdout
        return
    with written_whole(path) as working, working.open("wb") as raw:
        if path.suffix != ".gz":
            with io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
                yield text
            return
        with (
            gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
            io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text,
        ):
            yield text
