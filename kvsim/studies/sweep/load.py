"""A sweep file → checked points; or all its mistakes in one go."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.scenario.change import changed
from kvsim.scenario.document import Document, Step, read_document
from kvsim.scenario.load import ScenarioFile, load_scenario
from kvsim.scenario.mistakes import mistakes_of
from kvsim.studies.sweep.axes import (
    Direction,
    axis_paths,
    directions_of,
    largest_size,
    sampled_ranges,
)
from kvsim.studies.sweep.expand import points_of
from kvsim.studies.sweep.schema import Range, Sweep
from kvsim.study.point import Point

Mistake = tuple[tuple[Step, ...], str]

_MOST_POINTS = 10**7  # all are held in memory, whatever conditions leave

# Parts of a scenario that change no result.
_IDLE = {
    "name": "it changes no result",
    "variants": "choose some by the sweep's own `variants`",
    "replications": "say how many by the sweep's own `replications`",
}


@dataclass(frozen=True, slots=True)
class SweepFile:
    """A sweep file whose every value has been looked at, but those of its points.

    Attributes:
        document: The file itself; it knows the lines.
        sweep: What it says.
        scenario: The scenario that it varies.
    """

    document: Document
    sweep: Sweep
    scenario: ScenarioFile

    @property
    def question(self) -> str:
        """Which question the sweep answers: the comment at the top of the file."""
        return self.document.comment

    @property
    def largest_size(self) -> int:
        """How many points there are at most, counted without making them."""
        return largest_size(self.sweep)

    def points(self) -> list[Point]:
        """Return the points, after each value of each axis was checked at one of them.

        Raises:
            InputError: Values are refused, with their places in the file; or no point is left.
        """
        if self.largest_size > _MOST_POINTS:
            what = f"its axes span {self.largest_size:,} points, more than {_MOST_POINTS:,} can be"
            raise InputError(Problem(what, self.document.file))
        try:
            points = points_of(self.sweep)
        except InputError as error:
            raise InputError(*map(self._located, error.problems)) from error
        if problems := list(dict.fromkeys(self._refused(points))):
            raise InputError(*problems)
        return points

    def _located(self, problem: Problem) -> Problem:
        steps = (int(s) if s.isdecimal() else s for s in (problem.path or "").split("."))
        return self.document.located(replace(problem, path=None), tuple(steps))

    def _refused(self, points: Sequence[Point]) -> Iterator[Problem]:
        """Yield what is wrong with values, each looked at in the first point that has it."""
        directions = directions_of(self.sweep)
        told: set[tuple[str, str]] = set()
        for point in _covering(points, directions):
            try:
                changed(self.scenario, point.changes, point.variant)
            except InputError as error:
                for problem in error.problems:
                    path, where = self._place_of(problem, point, directions)
                    if where and self._is_right_alone(path, point, directions):
                        continue  # it is the values together that are refused, at their points
                    # Of a range one mistake tells enough.
                    is_range = isinstance(self.sweep.axes.get(path), Range)
                    if (path, key := "" if is_range else problem.message) not in told:
                        told.add((path, key))
                        yield self._told(problem, where, is_range)

    def _is_right_alone(self, path: str, point: Point, directions: Sequence[Direction]) -> bool:
        """Tell whether a value is accepted without those of other axes."""
        row = next((one.rows[0] for one in directions if path in one.rows[0]), {})
        alone = {name: point.changes[name] for name in (*self.sweep.set, *row)}
        try:
            changed(self.scenario, alone, point.variant)
        except InputError:
            return False
        return True

    def _told(self, problem: Problem, where: tuple[Step, ...], is_range: bool) -> Problem:
        if not where:  # not of the sweep's making: it has its place in the scenario's file
            return problem
        hint = "; `whole: true` rounds" if is_range and "valid integer" in problem.message else ""
        return self.document.located(Problem(problem.message + hint), where)

    def _place_of(
        self, problem: Problem, point: Point, directions: Sequence[Direction]
    ) -> tuple[str, tuple[Step, ...]]:
        """Return which path a problem is about, and where the sweep file gives its value."""
        about = problem.path or ""
        path = next((p for p in point.changes if f"{about}.".startswith(f"{p}.")), None)
        if problem.file is not None or path is None:
            return about, ()
        if path in self.sweep.set:
            return path, ("set", path)
        direction = next(one for one in directions if path in one.rows[0])
        if direction.is_sampled or isinstance(self.sweep.axes.get(path), Range):
            return path, ("axes", path)
        step = next(i for i, row in enumerate(direction.rows) if row[path] is point.changes[path])
        if direction.place[0] == "zipped":
            return path, (*direction.place, step, path)
        exists = not problem.message.startswith("unknown key")  # else no value is to blame
        return path, (*direction.place, step) if exists else direction.place


def load_sweep(path: Path) -> SweepFile:
    """Read and check a sweep file and its scenario; points are not made yet.

    Raises:
        InputError: With every mistake found: each has the file, the line and the path.
    """
    return sweep_of(read_document(path), path.stem, path.parent)


def sweep_of(document: Document, name: str, scenario: ScenarioFile | Path) -> SweepFile:
    """Check a sweep.

    Args:
        document: The sweep.
        name: Its name, if it doesn't say one.
        scenario: What it varies, or the folder in which the scenario file is that it names.

    Raises:
        InputError: As of `load_sweep`.
    """
    data = {"name": name, **document.data}
    try:
        sweep = Sweep.model_validate(data)
    except ValidationError as error:
        mistakes: Iterable[Mistake] = mistakes_of(error, data, Sweep)
        raise _all_of(document, mistakes) from None
    if isinstance(scenario, Path):
        if not (scenario / sweep.scenario).is_file():
            what = f"there is no file {sweep.scenario!r} beside it"
            raise _all_of(document, [(("scenario",), what)])
        scenario = load_scenario(scenario / sweep.scenario)
    if mistakes := [*_of_variants(sweep, scenario), *_of_paths(sweep), *_of_values(sweep)]:
        raise _all_of(document, mistakes)
    return SweepFile(document, sweep, scenario)


def _all_of(document: Document, mistakes: Iterable[Mistake]) -> InputError:
    problems = [document.located(Problem(message), where) for where, message in mistakes]
    return InputError(*sorted(problems, key=lambda problem: problem.line or 0))


def _of_variants(sweep: Sweep, scenario: ScenarioFile) -> Iterator[Mistake]:
    for place, name in enumerate(sweep.variants):
        if name not in scenario.variants:
            known = did_you_mean(name, scenario.variants)
            known = known or f"; known are {', '.join(scenario.variants)}"
            yield ("variants", place), f"the scenario has no variant {name!r}{known}"
        if name in sweep.variants[:place]:
            yield ("variants", place), f"{name!r} is there already"


def _of_paths(sweep: Sweep) -> Iterator[Mistake]:
    """Say which paths are set twice, or in vain."""
    places: list[tuple[str, tuple[Step, ...]]] = [
        *((path, ("set", path)) for path in sweep.set),
        *((path, ("axes", path)) for path in sweep.axes),
        *((p, ("zipped", name, 0, p)) for name, rows in sweep.zipped.items() for p in rows[0]),
    ]
    for path, where in places:
        if why := _IDLE.get(path.split(".")[0]):
            yield where, f"can't be varied: {why}"
    for (path, _), (other, where) in combinations(places, 2):
        if f"{other}.".startswith(f"{path}.") or f"{path}.".startswith(f"{other}."):
            yield where, "is set already" if path == other else f"overlaps with {path}"


def _of_values(sweep: Sweep) -> Iterator[Mistake]:
    if not (axis_paths(sweep) or len(sweep.variants) > 1 or sweep.replications > 1):
        yield ("axes",), "nothing is varied: there is no axis, one variant and one replication"
    for path, axis in sweep.axes.items():
        if not isinstance(axis, Range):
            yield from _repeated(axis, ("axes", path))
    for name, rows in sweep.zipped.items():
        yield from _repeated(rows, ("zipped", name))
        for place, row in enumerate(rows):
            if set(row) != set(rows[0]):
                names = ", ".join(rows[0])
                yield ("zipped", name, place), f"must set the same paths as the first row: {names}"
    ranges = sampled_ranges(sweep)
    if sweep.samples is None:
        for path in ranges:
            yield ("axes", path), "needs a step or a count, or `samples` for the whole file"
    elif not ranges:
        yield ("samples",), "finds nothing to sample: leave out step and count of some range"


def _repeated(values: Sequence[Any], where: tuple[Step, ...]) -> Iterator[Mistake]:
    seen: set[str] = set()
    for place, value in enumerate(values):
        if (key := repr(_plain(value))) in seen:
            yield (*where, place), f"{value!r} is there already: points would be duplicates"
        seen.add(key)


def _plain(value: Any) -> Any:
    """Return a value in which equal numbers look alike, such as 5 and 5.0."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _covering(points: Sequence[Point], directions: Sequence[Direction]) -> Iterator[Point]:
    """Yield points that together have each value of each axis; of samples the extreme ones."""
    wanted = {item for one in directions for item in _to_be_seen(one)}
    yield points[0]
    for point in points:
        if not wanted:
            return
        found = wanted.intersection(_items(point.changes))
        if found:
            wanted -= found
            yield point


def _to_be_seen(direction: Direction) -> Iterator[tuple[str, str]]:
    if not direction.is_sampled:
        yield from (item for row in direction.rows for item in _items(row))
        return
    for path in direction.rows[0]:
        values = [row[path] for row in direction.rows]
        yield from ((path, repr(value)) for value in (min(values), max(values)))


def _items(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((path, repr(value)) for path, value in row.items())
