"""Copies of another machine's files, found by the paths that they have there.

A worker on another machine can't read what lies beside the user's scenario. It is sent copies; who
asks for a file by its path is told where the copy lies.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_copies: ContextVar[Mapping[Path, Path]] = ContextVar("copies")


def found_at(path: Path) -> Path:
    """Return where a file lies: its copy, if there is one, else where its path says."""
    return _copies.get({}).get(path, path)


@contextmanager
def with_copies(copies: Mapping[Path, Path]) -> Iterator[None]:
    """Let files be found at these places meanwhile, in this thread; path there → path here."""
    token = _copies.set(copies)
    try:
        yield
    finally:
        _copies.reset(token)
