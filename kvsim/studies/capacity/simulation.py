"""One simulation of a search, as a worker makes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import InputError
from kvsim.scenario.change import changed
from kvsim.scenario.load import ScenarioFile, deep_merge
from kvsim.scenario.schema import BASE
from kvsim.studies.capacity.bounds import Bound
from kvsim.studies.capacity.knob import Knob, so_long
from kvsim.studies.capacity.observe import Observed, observe
from kvsim.study.point import Point, make_ready, run_ready


@dataclass(frozen=True, slots=True)
class Ask:
    """A value, a replication, and how many requests; None: as many as the scenario says."""

    value: float
    replication: int
    requests: int | None


Simulate = Callable[[Sequence[Ask]], Sequence[Observed]]


@dataclass(frozen=True, slots=True)
class Question:
    """What all simulations of a search have in common; sent to each worker once.

    Attributes:
        file: The scenario.
        variant: Which variant.
        changes: Values that all simulations have.
        knob: What is varied.
        bounds: What is averaged.
        steady: Whether a steady state is asked about.
    """

    file: ScenarioFile
    knob: Knob
    bounds: Sequence[Bound]
    steady: bool
    variant: str = BASE
    changes: Mapping[str, Any] = field(default_factory=dict)

    def point(self, ask: Ask) -> Point:
        """Return what is simulated."""
        changes: dict[str, Any] = dict(self.changes)
        more = [self.knob.changes(ask.value)]
        if ask.requests is not None:
            more.append(so_long(self.file.variants[self.variant], ask.requests))
        for each in more:
            for path, value in each.items():
                changes[path] = deep_merge(changes.get(path), value)
        return Point(changes, self.variant, ask.replication)

    @property
    def slo(self) -> Mapping[str, float]:
        """The targets of all traffic, and those of classes by class and name."""
        scenario = changed(self.file, self.changes, self.variant).base
        own = dict(scenario.slo or {})
        return own | {
            f"{name}: {target}": bound
            for name, slo in scenario.class_slos.items()
            for target, bound in slo.items()
        }

    @property
    def tables(self) -> Sequence[str]:
        """The tables that are looked at: those of steps are large, and only ITL needs them."""
        needs_steps = any(bound.latency == "itl" for bound in self.bounds)
        return ("requests", "steps", "events") if needs_steps else ("requests",)


def simulate_once(question: Question, ask: Ask) -> Observed:
    """Simulate, and return the series; a server that would not start is told as such.

    Raises:
        InputError: The traffic can't be drawn, or the engine can't go on with it.
    """
    point = question.point(ask)
    try:
        ready = make_ready(question.file, point)
    except InputError as error:
        if question.knob.is_setting:
            return Observed.refused(str(error))
        raise
    finished = run_ready(ready, question.tables)
    return observe(finished.tables, question.bounds, finished.context, question.steady)
