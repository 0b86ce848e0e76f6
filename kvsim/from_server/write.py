"""A draft → a file, if the scenario can run; or everything that is wrong with it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        InputError: With every problem: of the command, and of the scenario that it makes; or the
            file exists, or can't be written.
    """
    if out.exists() and not force:
        raise InputError(Problem("exists; --force overwrites it", str(out)))
    if out.exists() and not out.is_file():
        raise InputError(Problem("is no file that could be replaced", str(out)))
    try:
        with _beside(out) as file:
            file.write_text(draft.text, encoding="utf-8")
            problems = [*draft.problems, *_problems_of(file)]
            if draft.gpu_is_assumed and any(problem.path == "engine" for problem in problems):
                problems.append(Problem("the GPU is assumed: choose yours with --gpu"))
            if problems:
                raise InputError(*problems)
            file.replace(out)
    except OSError as error:
        raise InputError(Problem(f"can't be written: {error.strerror}", str(out))) from None


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """Yield a new file in the folder of `out`, so that paths mean the same in both."""
    file = out.with_name(f"kvsim-init-{os.getpid()}.yaml")
    file.touch(exist_ok=False)
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


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
