"""Finds the constants with which predictions come closest to what was measured.

Gauss-Newton on relative errors: the figures depend on the constants nearly linearly, so a few steps
will do. How much a constant changes the figures is found by simulating with a little more of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.calibrate.constants import Constant, constants_of
from kvsim.calibrate.least_squares import LeastSquares, half_widths
from kvsim.calibrate.predict import Figure, MeasuredServer

Floats = NDArray[np.float64]
Tell = Callable[[int, int], None]  # simulations of all results that are done, of at most how many

# Constants that even one result tells: one by its gaps, one by its TTFT. Else one for each result.
_FEWEST = 2
# Each round finds the effects of the constants anew, by moving each up and down by this share of
# its range: TTFT jumps by a tenth where requests happen to meet otherwise, so first far across.
_MOVES = (0.2, 0.1, 0.05)
_STEPS = 3  # of each round, with the same effects
_HALVINGS = 3  # of a step that makes the errors larger
# Relative errors that predictions have with the best of constants, before more is known.
_SCATTER = {"gap": 0.01, "e2e_mean": 0.02, "ttft_mean": 0.05}
_LEAST_SCATTER = 0.005  # no kind of figure counts as more exact than this
_CLOSE = 1e-4  # share of a constant's range; smaller steps end a round


@dataclass(frozen=True, slots=True)
class Fitted:
    """A constant, before and after.

    Attributes:
        value_s: Its value in seconds.
        interval_s: In which it lies with 95 % confidence, cut at the bounds; None: unknown.
        kept: Why it stays as it was; empty if it was fitted.
    """

    constant: Constant
    value_s: float
    interval_s: tuple[float, float] | None = None
    kept: str = ""

    @property
    def bound(self) -> str:
        """Which bound the value lies at: `lower`, `upper` or none."""
        near_s = _CLOSE * self.constant.most_s
        if self.kept or near_s < self.value_s < self.constant.most_s - near_s:
            return ""
        return "lower" if self.value_s <= near_s else "upper"

    def as_dict(self) -> dict[str, Any]:
        """Return the constant for JSON."""
        return {
            "name": self.constant.path,
            "start_s": self.constant.start_s,
            "value_s": self.value_s,
            "interval_s": self.interval_s,
            "most_s": self.constant.most_s,
            "bound": self.bound,
            "kept": self.kept,
        }


@dataclass(frozen=True, slots=True)
class Fit:
    """What a fit has found.

    Attributes:
        constants: All of them, also those that were kept.
        before_ms: Each figure as predicted at the start.
        after_ms: The same with the fitted constants.
    """

    constants: Sequence[Fitted]
    before_ms: Floats
    after_ms: Floats


def fit(server: MeasuredServer, tell: Tell | None = None) -> Fit:
    """Fit what the figures can tell of the constants of a server's profile.

    Raises:
        InputError: Requests don't fit the server.
    """
    return _Search(server, tell).fit()


class _Search:
    """Works on shares of each constant's range, from 0 to 1, so that all have the same scale."""

    def __init__(self, server: MeasuredServer, tell: Tell | None) -> None:
        self._server = server
        self._constants = constants_of(server.profile)
        self._tell = tell
        self._done = 0
        self._most = 1 + len(_MOVES) * (2 * len(self._constants) + _STEPS * (1 + _HALVINGS))
        self._counts = np.array(_counting(server.figures))
        self._measured_ms = np.array([figure.measured_ms for figure in server.figures])
        self._kinds = np.array([_kind(figure) for figure in server.figures])[self._counts]
        self._weights = np.array([_LEAST_SCATTER / _SCATTER[kind] for kind in self._kinds])

    def fit(self) -> Fit:
        start = np.array([c.start_s / c.most_s for c in self._constants])
        before_ms = self._predict_ms(start)
        names = [constant.path for constant in self._constants]
        at_most = max(len({figure.result for figure in self._server.figures}), _FEWEST)
        effects = self._effects(start, range(len(names)), _MOVES[0])
        kept, why = self._problem(start, before_ms, effects).told_apart(names, at_most)
        shares, after_ms, effects = start, before_ms, effects[:, kept]
        for move in _MOVES if kept else ():
            if move != _MOVES[0]:
                effects = self._effects(shares, kept, move)
            shares, after_ms = self._improved(shares, after_ms, effects, kept)
            self._weights = self._weights_by_scatter(after_ms)
        widths = self._widths(shares, after_ms, effects, kept)
        values = self._values_s(shares)
        fitted = [
            self._fitted(place, values[constant], widths.get(place), why.get(place, ""))
            for place, constant in enumerate(self._constants)
        ]
        return Fit(fitted, before_ms, after_ms)

    def _values_s(self, shares: Floats) -> dict[Constant, float]:
        """Return the constants; one at its start is exactly as it was."""
        pairs = zip(self._constants, shares.tolist(), strict=True)
        return {
            c: c.start_s if share == c.start_s / c.most_s else share * c.most_s
            for c, share in pairs
        }

    def _predict_ms(self, shares: Floats) -> Floats:
        self._done += 1
        if self._tell:
            self._tell(min(self._done, self._most), self._most)
        return self._server.predict_ms(self._values_s(shares))

    def _errors(self, predicted_ms: Floats) -> Floats:
        """Return the relative errors of the figures that count."""
        errors = (predicted_ms - self._measured_ms) / self._measured_ms
        return np.asarray(errors[self._counts])

    def _effects(self, shares: Floats, places: Sequence[int], move: float) -> Floats:
        """Return the change of the errors over the range of each constant: (figures, constants).

        The front end delays requests, never steps. What it seems to change of the gaps between
        tokens is which steps happen to meet, so that is left out.
        """
        columns = []
        for place in places:
            ends = [min(shares[place] + move, 1.0), max(shares[place] - move, 0.0)]
            more, less = (self._errors(self._predict_ms(_with(shares, place, end))) for end in ends)
            change = (more - less) / (ends[0] - ends[1])
            if self._constants[place].part == "front_end":
                change[self._kinds == "gap"] = 0.0
            columns.append(change)
        return np.column_stack(columns)

    def _problem(self, shares: Floats, predicted_ms: Floats, effects: Floats) -> LeastSquares:
        """Return the linear problem of the step from these shares that leaves the least errors."""
        errors = self._weights * self._errors(predicted_ms)
        return LeastSquares(self._weights[:, None] * effects, -errors, -shares, 1 - shares)

    def _improved(
        self, shares: Floats, predicted_ms: Floats, effects: Floats, kept: list[int]
    ) -> tuple[Floats, Floats]:
        """Take steps as long as they make the errors smaller, if need be halved."""
        for _ in range(_STEPS):
            errors = self._weights * self._errors(predicted_ms)
            now = shares[kept]
            step = self._problem(now, predicted_ms, effects).solved()
            for _ in range(1 + _HALVINGS):
                if np.abs(step).max() < _CLOSE:
                    return shares, predicted_ms
                tried = shares.copy()
                tried[kept] = np.clip(now + step, 0.0, 1.0)
                tried_ms = self._predict_ms(tried)
                if np.sum((self._weights * self._errors(tried_ms)) ** 2) < np.sum(errors**2):
                    shares, predicted_ms = tried, tried_ms
                    break
                step = step / 2
            else:
                return shares, predicted_ms
        return shares, predicted_ms

    def _weights_by_scatter(self, predicted_ms: Floats) -> Floats:
        """Return weights by which a kind of figure counts less, the more its errors scatter."""
        errors = self._errors(predicted_ms)
        scatter = {
            kind: max(float(np.sqrt(np.mean(errors[self._kinds == kind] ** 2))), _LEAST_SCATTER)
            for kind in set(self._kinds.tolist())
        }
        return np.array([_LEAST_SCATTER / scatter[kind] for kind in self._kinds.tolist()])

    def _widths(
        self, shares: Floats, predicted_ms: Floats, effects: Floats, kept: list[int]
    ) -> Mapping[int, float]:
        """Return the half widths of the intervals of the constants that lie at no bound."""
        free = [i for i, place in enumerate(kept) if _CLOSE < shares[place] < 1 - _CLOSE]
        if not free:
            return {}
        errors = self._weights * self._errors(predicted_ms)
        weighted = self._weights[:, None] * effects[:, free]
        widths = half_widths(weighted, errors, len(set(self._kinds.tolist())))
        return {kept[i]: float(width) for i, width in zip(free, widths, strict=True)}

    def _fitted(self, place: int, value_s: float, width: float | None, why: str) -> Fitted:
        constant = self._constants[place]
        if why or width is None or not np.isfinite(width):
            return Fitted(constant, value_s, None, why)
        low_s, high_s = (value_s + sign * width * constant.most_s for sign in (-1, 1))
        return Fitted(constant, value_s, (max(low_s, 0.0), min(high_s, constant.most_s)))


def _with(shares: Floats, place: int, share: float) -> Floats:
    changed = shares.copy()
    changed[place] = share
    return changed


def _kind(figure: Figure) -> str:
    return "gap" if figure.metric in {"tpot_mean", "itl_mean_reported"} else figure.metric


def _counting(figures: Sequence[Figure]) -> list[bool]:
    """Tell which figures count: TTFT and one kind of gap; E2E, their sum, only without one of them.

    Figures that follow from others would pretend that more was measured than was.
    """
    of_result: dict[str, set[str]] = {}
    for figure in figures:
        of_result.setdefault(figure.result, set()).add(figure.metric)
    return [_counts(figure.metric, of_result[figure.result]) for figure in figures]


def _counts(metric: str, measured: set[str]) -> bool:
    if metric == "itl_mean_reported":
        return "tpot_mean" not in measured
    if metric == "e2e_mean":
        return not ("ttft_mean" in measured and measured & {"tpot_mean", "itl_mean_reported"})
    return True
