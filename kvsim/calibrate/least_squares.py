"""Linear least squares of a few bounded constants: values, intervals, which can't be told apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LARGEST_CORRELATION = 0.95
LEAST_EFFECT = 1e-4  # weighted share of a figure that a constant changes over its whole range
_CONFIDENCE = 0.95
_TOO_MANY = "is one more than so few results can tell"


def stand_ins(effects: Floats) -> list[set[int]]:
    """Return which others can stand in for each constant: none, a single one, or all together.

    A single one, if their effects correlate by more than 0.95; all, if their best combination does.
    The combination counts only where no single one does: of two that are nearly alike the small
    difference could make up for anything.
    """
    lengths = np.linalg.norm(effects, axis=0)
    cosines = np.abs(effects.T @ effects) / np.outer(lengths, lengths)
    everyone = set(range(effects.shape[1]))
    single = [
        {i for i in everyone if i != j and cosines[i, j] > LARGEST_CORRELATION}
        for j in range(effects.shape[1])
    ]
    if any(single):
        return single
    return [
        everyone - {j} if _made_up(effects, j) > LARGEST_CORRELATION else set() for j in everyone
    ]


def _made_up(effects: Floats, place: int) -> float:
    """Return how well a combination of the others imitates a constant: multiple correlation."""
    own, others = effects[:, place], np.delete(effects, place, axis=1)
    imitated = others @ np.linalg.lstsq(others, own, rcond=None)[0]
    return math.sqrt(float(imitated @ imitated) / float(own @ own))


def half_widths(effects: Floats, residuals: Floats, kinds: int = 1) -> Floats:
    """Return the half widths of the 95 % intervals of unbounded constants.

    They come from the scatter of the residuals; infinite where these are no more than the
    constants.

    Args:
        effects: Shape (figures, constants).
        residuals: What the fit leaves, shape (figures,).
        kinds: Kinds of figures that were weighted by their own scatter; each tells its scatter
            alone, so the degrees of freedom are shared among them.
    """
    spare = len(residuals) - effects.shape[1]
    if spare < 1:
        return np.full(effects.shape[1], math.inf)
    variance = float(residuals @ residuals) / spare
    spread = variance * np.diag(np.linalg.pinv(effects.T @ effects))
    widths: Floats = student_t(max(spare // kinds, 1)) * np.sqrt(spread)
    return widths


def student_t(spare: int) -> float:
    """Return the two-sided 95 % point of Student's t.

    Exact for 1 and 2 degrees of freedom, else the expansion of Abramowitz and Stegun (26.7.5):
    within 1 %.
    """
    tail = (1 + _CONFIDENCE) / 2
    if spare == 1:
        return math.tan(math.pi * (tail - 0.5))
    if spare == 2:
        return (2 * tail - 1) * math.sqrt(2 / (4 * tail * (1 - tail)))
    z = NormalDist().inv_cdf(tail)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / spare**power for power, term in enumerate(terms))


@dataclass(frozen=True, slots=True)
class LeastSquares:
    """Find x from `least` to `most` with the smallest |effects·x - wanted|².

    Attributes:
        effects: What each constant does to each figure, shape (figures, constants).
        wanted: Shape (figures,).
        least: Lower bounds, shape (constants,).
        most: Upper bounds, shape (constants,).
    """

    effects: Floats
    wanted: Floats
    least: Floats
    most: Floats

    def solved(self) -> Floats:
        """Return the x.

        Constants are few, so all ways are tried in which some of them lie at a bound: one of these
        has the solution.
        """
        effects, wanted, least, most = self.effects, self.wanted, self.least, self.most
        best, best_square = np.clip(np.zeros(len(least)), least, most), math.inf
        for at in product((None, least, most), repeat=len(least)):
            x = np.array([0.0 if bound is None else bound[i] for i, bound in enumerate(at)])
            free = np.array([bound is None for bound in at], dtype=bool)
            if free.any():
                x[free] = np.linalg.lstsq(effects[:, free], wanted - effects @ x, rcond=None)[0]
            square = float(np.sum((effects @ x - wanted) ** 2))
            inside = np.all((x >= least - 1e-9) & (x <= most + 1e-9))
            if inside and square < best_square * (1 - 1e-12):
                best, best_square = np.clip(x, least, most), square
        return best

    def of(self, places: Sequence[int]) -> "LeastSquares":
        """Return the problem with these constants alone; the others stay at 0."""
        chosen = list(places)
        return replace(
            self,
            effects=self.effects[:, chosen],
            least=self.least[chosen],
            most=self.most[chosen],
        )

    def told_apart(self, names: Sequence[str], at_most: int) -> tuple[list[int], dict[int, str]]:
        """Return the constants that the figures can tell apart, and why not the others.

        Of several that can stand in for each other the one is given up without which the rest comes
        closest to what is wanted, again and again; then so of all, until no more than `at_most` are
        left.
        """
        kept = [i for i in range(len(names)) if np.abs(self.effects[:, i]).max() >= LEAST_EFFECT]
        why = {i: "has no effect in these runs" for i in range(len(names)) if i not in kept}
        while len(kept) > 1:
            others = dict(zip(kept, stand_ins(self.effects[:, kept]), strict=True))
            confused = [i for i in kept if others[i]]
            if not confused and len(kept) <= at_most:
                break
            spared = min(confused or kept, key=lambda i: self._left_without(i, kept))
            alike = " and ".join(names[kept[place]] for place in sorted(others[spared]))
            why[spared] = f"can't be told apart from {alike} by these runs" if alike else _TOO_MANY
            kept.remove(spared)
        return kept, why

    def _left_without(self, place: int, kept: Sequence[int]) -> tuple[float, float]:
        """Return the squares left without a constant, and how much it does, should others tie."""
        rest = self.of([i for i in kept if i != place])
        square = float(np.sum((rest.effects @ rest.solved() - self.wanted) ** 2))
        scale = float(self.wanted @ self.wanted) or 1.0
        return round(square / scale, 6), float(np.linalg.norm(self.effects[:, place]))
