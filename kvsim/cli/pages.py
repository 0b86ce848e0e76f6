"""Pages that commands write: which files they may replace."""

from collections.abc import Sequence
from pathlib import Path


def refuse_foreign(
    out: Path, force: bool, inputs: Sequence[Path] = (), beside: Sequence[Path] = ()
) -> None:
    """Refuse to overwrite what kvsim did not write, before anything is simulated.

    Args:
        out: The page.
        force: Whether any other file may be replaced, too.
        inputs: Files that are read.
        beside: Files that are written along with the page: with an older one, theirs are replaced.

    Raises:
        InputError: Something else is there.
    """
    from kvsim.errors import InputError, Problem
    from kvsim.report.shell import is_page
    from kvsim.workload.files import refuse_inputs

    places = [out, *beside]
    if len(set(places)) < len(places):
        raise InputError(Problem("name the page .html: other files go beside it", str(out)))
    for path in places:
        refuse_inputs(path, inputs)
        if path.exists() and not path.is_file():
            raise InputError(Problem("is no file that could be replaced", str(path)))
    is_own = out.exists() and is_page(out)
    for path in places:
        if path.exists() and not force and not is_own:
            raise InputError(Problem("exists; --force overwrites it", str(path)))


def beside(out: Path, suffix: str) -> Path:
    """Return the file of another kind beside a page.

    Raises:
        InputError: The page has no name, as the folder `.`.
    """
    from kvsim.errors import InputError, Problem

    if not out.name:
        raise InputError(Problem("is no file that could be replaced", str(out)))
    return out.with_suffix(suffix)


def write_text(path: Path, text: str) -> None:
    """Write a file that appears whole, or not at all.

    Raises:
        InputError: It can't be written.
    """
    from kvsim.workload.files import written_whole

    with written_whole(path) as working:
        working.write_text(text, encoding="utf-8")
