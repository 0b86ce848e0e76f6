"""Axes of a sweep: in each direction, rows of values that change together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.rng import stream
from kvsim.studies.sweep.schema import Range, Samples, Sweep

_DIGITS = 12  # of a range's values: 1 + 2 · 0.1 is 1.2
_SAMPLED_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Direction:
    """One axis.

    Attributes:
        place: Where it stands in the sweep file.
        rows: Dotted path → value, for each of its steps; all rows have the same paths.
        is_sampled: Whether the rows were drawn.
    """

    place: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]
    is_sampled: bool = False


def axis_paths(sweep: Sweep) -> list[str]:
    """Return the paths that axes change, in the order of the file."""
    rows = (path for rows in sweep.zipped.values() for path in rows[0])
    return [*sweep.axes, *rows]


def directions_of(sweep: Sweep) -> list[Direction]:
    """Return the axes with all their values; samples are one axis, the last."""
    found = [
        Direction(("axes", path), [{path: value} for value in _values(axis)])
        for path, axis in sweep.axes.items()
        if not (isinstance(axis, Range) and axis.is_sampled)
    ]
    found += [Direction(("zipped", name), rows) for name, rows in sweep.zipped.items()]
    if sweep.samples is not None:
        found.append(Direction(("samples",), _sampled(sampled_ranges(sweep), sweep.samples), True))
    return found


def largest_size(sweep: Sweep) -> int:
    """Return how many points the axes span with their replications, without making them.

    Conditions, and values that become equal by rounding, can only make it fewer.
    """
    size = len(sweep.variants) * sweep.replications
    for axis in sweep.axes.values():
        if not isinstance(axis, Range):
            size *= len(axis)
        elif not axis.is_sampled:
            size *= _steps(axis)
    for rows in sweep.zipped.values():
        size *= len(rows)
    return size * (sweep.samples.count if sweep.samples else 1)


def sampled_ranges(sweep: Sweep) -> dict[str, Range]:
    """Return the ranges whose values are drawn, by their paths."""
    return {
        path: axis
        for path, axis in sweep.axes.items()
        if isinstance(axis, Range) and axis.is_sampled
    }


def _values(axis: Any) -> Sequence[Any]:
    return list(dict.fromkeys(_of_range(axis))) if isinstance(axis, Range) else axis


def _steps(axis: Range) -> int:
    if axis.step is None:
        return axis.count or 0
    return int((axis.highest - axis.lowest) / axis.step + 1e-9) + 1


def _of_range(axis: Range) -> Iterator[int | float]:
    count = _steps(axis)
    for place in range(count):
        if axis.step is not None:
            yield _tidy(axis, axis.lowest + place * axis.step)
        else:
            yield _at(axis, place / (count - 1))


def _at(axis: Range, share: float, digits: int = _DIGITS) -> int | float:
    """Return the value at a share of the way from one bound to the other."""
    if axis.scale == "log":
        return _tidy(axis, axis.lowest * (axis.highest / axis.lowest) ** share, digits)
    return _tidy(axis, axis.lowest + (axis.highest - axis.lowest) * share, digits)


def _tidy(axis: Range, value: float, digits: int = _DIGITS) -> int | float:
    """Return a value without the noise of arithmetic, inside the bounds, whole if it should be."""
    near = min(max(float(f"{value:.{digits}g}"), axis.lowest), axis.highest)
    between_integers = isinstance(axis.lowest, int) and isinstance(axis.highest, int)
    if axis.whole or (between_integers and near == round(near)):
        return round(near)
    return float(near)


def _sampled(ranges: Mapping[str, Range], samples: Samples) -> list[dict[str, int | float]]:
    """Draw rows that fill the space of the ranges; equal ones are taken once."""
    from scipy.stats import qmc  # takes a second to import

    draw = stream(samples.seed, "sweep_samples")
    if samples.kind == "sobol":
        shares = qmc.Sobol(len(ranges), rng=draw).random_base2(samples.count.bit_length() - 1)
    else:
        shares = qmc.LatinHypercube(len(ranges), rng=draw).random(samples.count)
    found: dict[tuple[int | float, ...], None] = {}
    for row in shares:
        values = (
            _drawn(axis, share) for axis, share in zip(ranges.values(), row.tolist(), strict=True)
        )
        found.setdefault(tuple(values))
    return [dict(zip(ranges, values, strict=True)) for values in found]


def _drawn(axis: Range, share: float) -> int | float:
    if axis.whole and axis.scale == "linear":  # each whole number has an equal share
        lowest, highest = round(axis.lowest), round(axis.highest)
        return min(lowest + int(share * (highest - lowest + 1)), highest)
    return _at(axis, share, _SAMPLED_DIGITS)
