"""Files that a workload reads: found beside the scenario file, known by their content."""

import hashlib
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from kvsim.errors import InputError, Problem
from kvsim.policy import Policy
from kvsim.workload.limits import Printable


class ReadsFile(Policy):
    """A policy that reads a file which the scenario names.

    A relative path counts from the folder of the scenario file, which validation passes on in
    its context as `base_dir`. The path stays as the user wrote it, so that a scenario reads the
    same on every machine.
    """

    file: Printable | None = None
    _base_dir: Path = PrivateAttr(default=Path())

    def model_post_init(self, context: Any, /) -> None:
        """Remember the folder of the scenario file."""
        self._base_dir = Path((context or {}).get("base_dir", "."))

    @property
    def path(self) -> Path:
        """Where the file lies; InputError if the policy names none."""
        if self.file is None:
            raise InputError(f"{self.kind} names no file")
        return self._base_dir / self.file


def read_bytes(path: Path) -> bytes:
    """Return a file's content; InputError if it can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(Problem(f"can't be read: {error.strerror}", str(path))) from error
    except ValueError as error:  # what no file system takes, such as a NUL
        raise InputError(Problem(f"is no path: {error}", repr(str(path)))) from error


def read_lines(path: Path) -> list[str]:
    """Return a text file's lines, whatever ends them; InputError if it can't be read."""
    try:
        return read_bytes(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(Problem(f"is not UTF-8 text: {error.reason}", str(path))) from error


def content_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(read_bytes(path)).hexdigest()
