"""Mistakes in what the user gave us: told in one message, exit code 2, never a traceback."""

import difflib
from collections.abc import Iterable, Sequence
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


def did_you_mean(word: str, known: Iterable[str], at_most: int = 1) -> str:
    """Return `; did you mean X or Y?` with the closest known words, or nothing if none comes close.

    A word comes close to a name, to its beginning, or to what follows its last slash.
    """
    names = list(known)
    spelled = {_plain(name.rpartition("/")[2]): name for name in names}
    spelled |= {_plain(name): name for name in names}
    wanted = _plain(word)
    close = [plain for plain in spelled if plain.startswith(f"{wanted}_")]
    close += difflib.get_close_matches(wanted, spelled, n=at_most, cutoff=0.6)
    hints = list(dict.fromkeys(spelled[plain] for plain in close))[:at_most]
    return f"; did you mean {' or '.join(hints)}?" if hints else ""


def _plain(word: str) -> str:
    return word.lower().replace("-", "_").replace(" ", "_")
