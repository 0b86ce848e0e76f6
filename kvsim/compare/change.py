"""What a figure is in another run than the base: difference and ratio, and how sure both are.

Runs that faced the same are compared part by part (`parts`): what both have in common cancels. Runs
that faced something else are independent: the intervals of their figures are put together (the
method of variance estimates recovery: Zou and Donner 2008). Intervals are of 95 %.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvsim.compare.parts import Bounds, Estimate

Standing = Literal["sure", "unknown", "alike", "missing"]


@dataclass(frozen=True, slots=True)
class Change:
    """A figure in the base and in another run.

    Attributes:
        name: Of the figure, as in `kvsim.metrics.catalog`.
        base: Its value in the base; None if there is none. Likewise `other`.
        bounds: The 95 % interval of other − base; None if it isn't known.
        ratio_bounds: That of other / base.
    """

    name: str
    base: float | None
    other: float | None
    bounds: Bounds | None = None
    ratio_bounds: Bounds | None = None

    @property
    def difference(self) -> float | None:
        """Other − base."""
        return None if self.base is None or self.other is None else self.other - self.base

    @property
    def ratio(self) -> float | None:
        """Other / base; None if either has no value, or the base's is zero."""
        return self.other / self.base if self.base and self.other is not None else None

    @property
    def standing(self) -> Standing:
        """Whether the figure differs.

        `sure`: zero lies outside of the difference's interval; `alike`: it lies within, or there is
        no difference; `unknown`: they differ, and no interval is known; `missing`: one of them has
        no such value.
        """
        if self.difference is None:
            return "missing"
        if not self.difference:
            return "alike"
        if self.bounds is None:
            return "unknown"
        low, high = self.bounds
        return "alike" if low <= 0 <= high else "sure"

    @property
    def size(self) -> float:
        """How large the difference is, whichever of both is the base: |log(ratio)|."""
        if self.difference is None or not self.difference:
            return 0.0
        return abs(math.log(self.ratio)) if self.ratio and self.ratio > 0 else math.inf


def by_weight(changes: list[Change]) -> list[Change]:
    """Put what matters first: sure differences, then those of unknown certainty, then the rest.

    Within each of these the largest ratio, up or down, comes first.
    """
    order = ("sure", "unknown", "missing", "alike")
    return sorted(changes, key=lambda change: (order.index(change.standing), -change.size))


def paired(name: str, base: Estimate | None, other: Estimate | None) -> Change:
    """Compare a figure of two runs, which was taken again on the same parts of both."""
    if base is None or other is None:
        known, known_other = (each.value if each else None for each in (base, other))
        return Change(name, known, known_other)
    bounds = base.bounds(other.value - base.value, other.again - base.again)
    ratio_bounds = None
    if min(base.value, other.value, *base.again, *other.again) > 0:
        logs = base.bounds(math.log(other.value / base.value), np.log(other.again / base.again))
        ratio_bounds = _exp(logs[0]), _exp(logs[1])
    return Change(name, base.value, other.value, bounds, ratio_bounds)


def independent(
    name: str,
    values: tuple[float | None, float | None],
    intervals: tuple[Bounds | None, Bounds | None],
) -> Change:
    """Compare a figure of two independent runs, base first, of which the intervals are known."""
    base, other = values
    if base is None or other is None or None in intervals:
        return Change(name, base, other)
    within, within_other = (bounds for bounds in intervals if bounds is not None)
    bounds = _recovered(base, within, other, within_other)
    ratio_bounds = None
    if min(base, other, *within, *within_other) > 0:
        logs = _recovered(*_in_logs(base, within), *_in_logs(other, within_other))
        ratio_bounds = _exp(logs[0]), _exp(logs[1])
    return Change(name, base, other, bounds, ratio_bounds)


def _recovered(base: float, within: Bounds, other: float, within_other: Bounds) -> Bounds:
    low = math.hypot(other - within_other[0], within[1] - base)
    high = math.hypot(within_other[1] - other, base - within[0])
    return other - base - low, other - base + high


def _in_logs(value: float, within: Bounds) -> tuple[float, Bounds]:
    return math.log(value), (math.log(within[0]), math.log(within[1]))


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))  # more is no number
