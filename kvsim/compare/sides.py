"""Which runs are compared: directories, each with the variant that is looked at."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.metrics.summary import Summary
from kvsim.names import short_name
from kvsim.rundir.read import Run, open_run
from kvsim.scenario.schema import BASE
from kvsim.tables import Columns
from kvsim.units import seconds_to_ns

FEWEST, MOST = 2, 6
LETTERS = "ABCDEF"


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A variant of a run.

    Attributes:
        name: What it is called beside the others, which no other of them is.
        run: The run.
        variant: Its variant.
    """

    name: str
    run: Run
    variant: str

    @property
    def summary(self) -> Summary:
        """Its figures."""
        return self.run.summaries[self.variant]

    @property
    def requests(self) -> Columns:
        """Its table of requests."""
        return self.run.tables[self.variant]["requests"]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What it was resolved to."""
        inputs: Mapping[str, Any] = self.run.manifest["variants"][self.variant]
        return inputs

    @property
    def warmup_ns(self) -> int:
        """Requests that arrive before it don't count in latencies."""
        return seconds_to_ns(self.inputs["warmup_s"])

    def shares(self, key: str, other: "Side") -> bool:
        """Tell whether an entry of the manifest is the same in another run."""
        return bool(self.run.manifest[key] == other.run.manifest[key])


def open_sides(words: Sequence[str]) -> list[Side]:
    """Open what `RUN` or `RUN:VARIANT` names, in this order; without a variant its base.

    Raises:
        InputError: There are too few or too many, or some are no runs or have no such variant.
    """
    if not FEWEST <= len(words) <= MOST:
        raise InputError(f"{len(words)} given: name {FEWEST} to {MOST} of RUN or RUN:VARIANT")
    sides: list[Side] = []
    problems: list[Problem] = []
    opened: dict[Path, Run] = {}
    for word in words:
        try:
            sides.append(_side(word, opened))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*dict.fromkeys(problems))
    return _named_apart(sides, words)


def _side(word: str, opened: dict[Path, Run]) -> Side:
    folder, variant = _split(word)
    run = opened[folder] if folder in opened else open_run(folder)
    opened[folder] = run
    if variant not in run.summaries:
        hint = did_you_mean(variant, run.summaries)
        raise InputError(Problem(f"has no variant {variant!r}{hint}", str(folder)))
    name = folder.resolve().name
    return Side(name if variant == BASE else f"{name}:{variant}", run, variant)


def _split(word: str) -> tuple[Path, str]:
    """Split `RUN:VARIANT` where a folder ends; a folder may have colons in its name, too."""
    parts = word.split(":")
    for end in range(len(parts), 0, -1):
        folder = Path(":".join(parts[:end]))
        if folder.is_dir():
            return folder, ":".join(parts[end:]) if end < len(parts) else BASE
    return Path(word), BASE


def _named_apart(sides: Sequence[Side], words: Sequence[str]) -> list[Side]:
    """Call those that share a name as they were given, and number what was given twice.

    Names that can't be told apart where they are cut short begin with a letter.
    """
    shared = Counter(side.name for side in sides)
    names: list[str] = []
    for side, word in zip(sides, words, strict=True):
        name = side.name if shared[side.name] == 1 else word
        before = sum(other == name or other.startswith(f"{name} (") for other in names)
        names.append(f"{name} ({before + 1})" if before else name)
    cut = Counter(short_name(name) for name in names)
    return [
        replace(side, name=name if cut[short_name(name)] == 1 else f"{letter}: {side.name}")
        for side, name, letter in zip(sides, names, LETTERS, strict=False)
    ]
