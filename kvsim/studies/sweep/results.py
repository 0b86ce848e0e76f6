"""What all points came to, by columns; repetitions of a point lie side by side."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.catalog import METRICS
from kvsim.statistics import Interval, mean_interval
from kvsim.studies.sweep.outcome import DONE, Outcome
from kvsim.studies.sweep.schema import Sweep
from kvsim.study.point import Point
from kvsim.study.tasks import Failure

_PLACES = {name: place for place, name in enumerate(METRICS)}


@dataclass(frozen=True, eq=False)
class Results:
    """Results of all points, in their order.

    Attributes:
        sweep: What was asked for.
        points: Replications innermost.
        figures: One column for each of METRICS, NaN where there is no value; shape (points,
            metrics).
        status: `done`, or the kind of failure.
        met: Whether the SLO is met; None if it isn't known.
        verdicts: The same in sentences; empty for failures.
        errors: Messages of failures; empty for others.
    """

    sweep: Sweep
    points: Sequence[Point]
    figures: NDArray[np.float64]
    status: Sequence[str]
    met: Sequence[bool | None]
    verdicts: Sequence[str]
    errors: Sequence[str]

    @cached_property
    def settings(self) -> Sequence[Point]:
        """The points without their repetitions."""
        return self.points[:: self.sweep.replications]

    def of(self, metric: str) -> NDArray[np.float64]:
        """Return a figure; shape (settings, replications)."""
        column: NDArray[np.float64] = self.figures[:, _PLACES[metric]]
        return column.reshape(-1, self.sweep.replications)

    def means(self, metric: str) -> NDArray[np.float64]:
        """Return the mean of a figure, NaN if a replication has none; shape (settings,)."""
        means: NDArray[np.float64] = self.of(metric).mean(axis=1)
        return means

    def mean(self, setting: int, metric: str) -> float:
        """Return the mean of a figure of one setting, NaN if a replication has none."""
        return float(self.of(metric)[setting].mean())

    def interval(self, setting: int, metric: str) -> Interval | None:
        """Return the mean of a figure with its interval; None if a replication has none."""
        values = self.of(metric)[setting]
        return None if np.isnan(values).any() else mean_interval(values)

    @cached_property
    def failed(self) -> NDArray[np.bool_]:
        """Tell which settings have a replication that failed; shape (settings,)."""
        failed: NDArray[np.bool_] = self._count([status != DONE for status in self.status]) > 0
        return failed

    @cached_property
    def all_met(self) -> NDArray[np.bool_]:
        """Tell which settings meet their SLO in all replications; shape (settings,)."""
        met: NDArray[np.bool_] = (
            self._count([met is True for met in self.met]) == self.sweep.replications
        )
        return met

    def _count(self, truths: Sequence[bool]) -> NDArray[np.int64]:
        """Count what is true of each setting's replications."""
        counts: NDArray[np.int64] = (
            np.array(truths, dtype=np.int64).reshape(-1, self.sweep.replications).sum(axis=1)
        )
        return counts

    @cached_property
    def is_judged(self) -> bool:
        """Whether any point has an SLO that could be judged."""
        return any(met is not None for met in self.met)


def collect(sweep: Sweep, points: Sequence[Point], found: Iterable[Outcome | Failure]) -> Results:
    """Return the results of points, `found` in their order."""
    figures = np.full((len(points), len(METRICS)), np.nan)
    rows: list[tuple[str, bool | None, str, str]] = []
    for figures_here, result in zip(figures, found, strict=True):
        if isinstance(result, Failure):
            rows.append((result.kind, None, "", result.message))
            continue
        rows.append((DONE, result.met, result.verdict, ""))
        for name, value in result.figures.items():
            figures_here[_PLACES[name]] = value
    status, met, verdicts, errors = zip(*rows, strict=True)
    return Results(sweep, points, figures, status, met, verdicts, errors)
