"""Mistakes in what the user gave us: told in one message, exit code 2, never a traceback."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake, with the place where the user can mend it."""

    message: str
    file: str | None = None
    line: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        where = ": ".join(part for part in (place, self.path) if part)
        return f"{where}: {self.message}" if where else self.message


class BrokenLawError(AssertionError):
    """kvsim contradicts itself: a defect of kvsim, never of the input."""


def require(holds: bool, law: str) -> None:
    """Raise `BrokenLawError` naming the law if it doesn't hold; works under `python -O` too."""
    if not holds:
        raise BrokenLawError(law)


class InputError(Exception):
    """The input can't be used as it stands; carries every problem found, not only the first."""

    def __init__(self, *problems: Problem | str) -> None:
        self.problems: Sequence[Problem] = [
            problem if isinstance(problem, Problem) else Problem(problem) for problem in problems
        ]
        super().__init__("\n".join(str(problem) for problem in self.problems))
