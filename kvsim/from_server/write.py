"""A draft → a file, if the scenario can run; or everything that is wrong with it."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

from kvsim.errors import InputError, Problem
from kvsim.from_server.draft import Draft
from kvsim.from_server.flags import flags
from kvsim.scenario.load import load_scenario
from kvsim.scenario.resolve import resolve_all


def write_scenario(draft: Draft, out: Path, force: bool = False) -> None:
    """Write a draft that loads and whose server would start.

    Args:
        draft: What to write.
        out: The file; it appears whole, or not at all.
        force: Whether it may take the place of another.

    Raises:
        InputError: With every problem: of the command, and of the scenario that it makes.
    """
    if out.exists() and not force:
        raise InputError(Problem("exists; --force overwrites it", str(out)))
    with NamedTemporaryFile(
        "w", encoding="utf-8", dir=out.parent, prefix="kvsim-init-", suffix=".yaml", delete=False
    ) as file:
        file.write(draft.text)
    written = Path(file.name)
    try:
        problems = [*draft.problems, *_problems_of(written)]
        if draft.gpu_is_assumed and any(problem.path == "engine" for problem in problems):
            problems.append(Problem("the GPU is assumed: choose yours with --gpu"))
        if problems:
            raise InputError(*problems)
        written.chmod(0o666 & ~_umask())
        written.replace(out)
    finally:
        written.unlink(missing_ok=True)


def _problems_of(written: Path) -> Iterator[Problem]:
    """Yield what is wrong with a scenario, in the words of the command that it came from."""
    try:
        resolve_all(load_scenario(written))
    except InputError as error:
        for problem in error.problems:
            section, _, name = (problem.path or "").partition(".")
            flag = f"--{name.replace('_', '-')}"
            if section == "engine" and flag in flags():
                yield Problem(f"{flag}: {problem.message}")
            elif (problem.path, problem.message) != ("model", "is required"):  # told by the draft
                yield Problem(problem.message, path=problem.path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
