"""Axes and conditions → points."""

import operator
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.studies.sweep.axes import axis_paths, directions_of
from kvsim.studies.sweep.schema import Condition, Sweep
from kvsim.study.point import Point

VARIANT = "variant"  # what conditions and columns call it
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


def points_of(sweep: Sweep) -> list[Point]:
    """Return all points: variants outside, then the axes, the last of them and replications inside.

    Raises:
        InputError: A condition can't be judged, or no point passes all of them; a problem has its
            path in the sweep file.
    """
    names = {*sweep.set, *axis_paths(sweep), VARIANT}
    problems = [
        Problem(why, path=f"where.{place}")
        for place, condition in enumerate(sweep.where)
        for why in _unknown(condition, names)
    ]
    if problems:
        raise InputError(*problems)
    points = [
        Point(changes, variant, replication)
        for variant, changes in _combinations(sweep)
        if _passes(sweep, {**changes, VARIANT: variant})
        for replication in range(sweep.replications)
    ]
    if not points:
        raise InputError(Problem("no point passes these conditions", path="where"))
    return points


def _combinations(sweep: Sweep) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = [direction.rows for direction in directions_of(sweep)]
    for variant, *chosen in product(sweep.variants, *rows):
        changes = dict(sweep.set)
        for row in chosen:
            changes |= row
        yield variant, changes


def _passes(sweep: Sweep, values: Mapping[str, Any]) -> bool:
    return all(_holds(condition, values, place) for place, condition in enumerate(sweep.where))


def _holds(condition: Condition, values: Mapping[str, Any], place: int) -> bool:
    left, right = _side(condition.left, values), _side(condition.right, values)
    if condition.op not in {"==", "!="}:
        for side in (left, right):
            if not _is_number(side):
                what = f"{side!r} is no number, so that {condition.op} says nothing of it"
                raise InputError(Problem(what, path=f"where.{place}"))
    return _OPERATORS[condition.op](left, right)


def _side(side: Any, values: Mapping[str, Any]) -> Any:
    """Return what one side of a comparison is at a point."""
    if not isinstance(side, list):
        return values.get(side, side) if isinstance(side, str) else side
    result: Any = 1
    for path in side:
        result = result * values[path] if _is_number(values[path]) and result is not None else None
    return result


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unknown(condition: Condition, names: set[str]) -> Iterator[str]:
    """Say which paths of a condition the sweep doesn't set."""
    needed = [
        path
        for side in (condition.left, condition.right)
        if isinstance(side, list)
        for path in side
    ]
    needed += [condition.left] if isinstance(condition.left, str) else []
    if isinstance(condition.right, str) and condition.op not in {"==", "!="}:
        needed.append(condition.right)
    for path in needed:
        if path not in names:
            hint = did_you_mean(path, names) or f"; it sets {', '.join(sorted(names))}"
            yield f"{path!r} is nothing that this sweep sets{hint}"
