"""Files that a workload reads: found beside the scenario file, known by their content."""

import hashlib
import lzma
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from pydantic import PrivateAttr

from kvsim.copies import found_at
from kvsim.errors import InputError, Problem
from kvsim.policy import Policy
from kvsim.units import MIB, NS_PER_S
from kvsim.workload.limits import Printable

_XZ = b"\xfd7zXZ\x00"
_SETTLED_NS = 2 * NS_PER_S  # clocks of file systems are coarse: what just changed may change again
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # by their first bytes


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
        return found_at(self._base_dir / self.file)


@contextmanager
def told_by_name(path: Path, wrong: str = "can't be read") -> Iterator[None]:
    """Turn what the operating system or Arrow says of a file into an `InputError`."""
    import pyarrow as pa  # takes a while: schemas are read without it

    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(Problem(f"{wrong}: {reason}", str(path))) from error
    except (pa.ArrowException, lzma.LZMAError, EOFError) as error:
        raise InputError(Problem(f"{wrong}: {error}", str(path))) from error
    except ValueError as error:  # what no file system takes, such as a NUL
        raise InputError(Problem(f"is no path: {error}", repr(str(path)))) from error


@contextmanager
def decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading; gzip, zstd and xz are decompressed, whatever its name says.

    Raises:
        InputError: It can't be opened, is broken, or is no regular file: pipes can't be read
            twice, and devices may have no end.
    """
    _refuse_special(path)
    with told_by_name(path):
        file = path.open("rb")
    with file:
        with told_by_name(path):
            magic = file.read(len(_XZ))
            file.seek(0)
        if magic == _XZ:
            with lzma.open(file) as content:
                yield content
            return
        for beginning, name in _COMPRESSIONS.items():
            if magic.startswith(beginning):
                import pyarrow as pa

                yield pa.CompressedInputStream(file, name)
                return
        yield file


Reads = TypeVar("Reads", bound=Callable[..., Any])  # of a path, and further arguments by place


def once_per_state(most: int, largest_bytes: float = 64 * MIB) -> Callable[[Reads], Reads]:
    """Remember what a function has read of a file for as long as the file stays as it is.

    What it returns is shared, so nobody may change it. Its arguments must be hashable.

    Args:
        most: So many results are remembered, those that were asked for last.
        largest_bytes: What is read of larger files is not, since it would fill the memory.
    """

    def remembering(read: Reads) -> Reads:
        @lru_cache(most)
        def kept(_: tuple[int, ...], *arguments: Any) -> Any:
            return read(*arguments)

        @wraps(read)
        def asked(path: Path, *further: Any) -> Any:
            state = _state_of(path, largest_bytes)
            return kept(state, path, *further) if state else read(path, *further)

        return cast(Reads, asked)

    return remembering


def _state_of(path: Path, largest_bytes: float) -> tuple[int, ...]:
    """Return what changes with a file's content; nothing if that can't be relied on."""
    try:
        file = path.stat()
    except (OSError, ValueError):
        return ()
    if file.st_size > largest_bytes or time.time_ns() - file.st_mtime_ns < _SETTLED_NS:
        return ()
    return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a file beside `path` that takes its place at the end, or vanishes after an error.

    Raises:
        InputError: It can't be written, or would take the place of what is no regular file.
    """
    if path.exists() and not path.is_file():
        raise InputError(Problem("is no file that could be replaced", str(path)))
    working = path.with_name(f".{path.name}.{os.getpid()}")
    with told_by_name(path, "can't be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield working
            working.replace(path)
        finally:
            working.unlink(missing_ok=True)


def content_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content; InputError if it can't be read."""
    _refuse_special(path)
    with told_by_name(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_special(path: Path) -> None:
    with told_by_name(path):
        mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError(Problem("is a folder", str(path)))
    if not stat.S_ISREG(mode):
        raise InputError(Problem("is no regular file: write what it holds to one", str(path)))


def refuse_inputs(out: Path, inputs: Sequence[Path]) -> None:
    """Refuse to write over a file that is read.

    Raises:
        InputError: `out` is one of the inputs.
    """
    if any(path.exists() and out.exists() and out.samefile(path) for path in inputs):
        raise InputError(Problem("is read: choose another file to write", str(out)))


def text_of(path: Path) -> str:
    """Return the text of a file, compressed or not.

    Raises:
        InputError: It can't be read, or isn't UTF-8.
    """
    with decompressed(path) as file:
        data = file.read()
    try:
        return data.decode("utf-8-sig")
    except ValueError as error:
        raise InputError(Problem(f"is not UTF-8 text: {error}", str(path))) from error
