"""What a sensitivity is computed of: a function of the factors, that may be a simulation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.metrics.catalog import METRICS
from kvsim.scenario.load import ScenarioFile
from kvsim.studies.sensitivity.factors import Factor
from kvsim.study.point import Point, run_point
from kvsim.study.tasks import Crew, Failure, Tell, Work, run_tasks


@dataclass(frozen=True, slots=True)
class Ask:
    """Where a model is evaluated.

    Attributes:
        values: One for each factor; None: as in the scenario.
        replication: Equal ones face the same draws.
    """

    values: tuple[float | None, ...]
    replication: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model says; where it has no value, why."""

    value: float | None
    why: str = ""


Model = Callable[[Sequence[Ask]], Sequence[Answer]]


def simulated(
    file: ScenarioFile,
    factors: Sequence[Factor],
    metric: str,
    crew: Crew,
    tell: Tell | None = None,
) -> Model:
    """Return the model that simulates the scenario's base and gives one of its figures.

    Equal points are simulated once. A server that would not start has no value.

    Raises:
        InputError: There is no such figure.
    """
    if metric not in METRICS:
        hint = did_you_mean(metric, METRICS, at_most=3) or "; docs/metrics.md lists them"
        raise InputError(Problem(f"there is no metric {metric!r}{hint}", path="--metric"))

    def evaluate(asks: Sequence[Ask]) -> Sequence[Answer]:
        points = {ask: _point(factors, ask) for ask in asks}
        found: dict[Ask, Answer] = {}
        for ask, result in run_tasks(crew, Work(_figure, (file, metric)), points.items()):
            found[ask] = _answer(result)
            if tell:
                tell(len(found), len(points))
        return [found[ask] for ask in asks]

    return evaluate


def _point(factors: Sequence[Factor], ask: Ask) -> Point:
    changes: dict[str, Any] = {}
    for factor, value in zip(factors, ask.values, strict=True):
        if value is not None:
            changes |= dict(factor.changes(value))
    return Point(changes, replication=ask.replication)


def _figure(shared: tuple[ScenarioFile, str], point: Point) -> Answer:
    """Simulate, and return the figure (in a worker)."""
    file, metric = shared
    value = run_point(file, point).summary()["figures"][metric]
    return Answer(value, "" if value is not None else "the run has no such value")


def _answer(result: Answer | Failure) -> Answer:
    if not isinstance(result, Failure):
        return result
    if result.kind == "defect":
        raise result.error()
    return Answer(None, result.message)
