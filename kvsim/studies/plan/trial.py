"""One fleet, simulated: does it meet the SLO at the worse end of what the draws say?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.metrics.classes import all_targets
from kvsim.metrics.summary import Summary
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.schema import BASE
from kvsim.statistics import mean_interval
from kvsim.studies.capacity.bounds import Bound, bounds_of
from kvsim.studies.capacity.knob import load_of, with_requests
from kvsim.studies.capacity.observe import observe
from kvsim.studies.plan.bounds import judging_slack
from kvsim.studies.plan.candidates import Candidate
from kvsim.study.point import Point, make_ready, run_ready


@dataclass(frozen=True, slots=True)
class Load:
    """What all fleets of a plan face; sent to each worker once.

    Attributes:
        file: The scenario.
        factor: How many times its demand.
        replications: Independent draws that a fleet is judged on.
        random: Whether draws differ at all: a recorded trace is the same each time.
    """

    file: ScenarioFile
    factor: float
    replications: int
    random: bool = True

    def times(self, factor: float) -> Mapping[str, Any]:
        """Return so many times the demand as changes of the scenario.

        It lasts as long as the scenario's own: as many times the requests. The same number would
        have come and gone before a fleet that is too small had a queue.
        """
        if self.factor * factor == 1:
            return {}
        knob = load_of(self.file.base)
        return with_requests(
            self.file.base, knob.changes(knob.first * self.factor * factor), self.factor * factor
        )

    def point(
        self, candidate: Candidate, replicas: int, replication: int = 0, factor: float = 1.0
    ) -> Point:
        """Return one simulation of a fleet."""
        changes = {**candidate.changes, "replicas": replicas, **self.times(factor)}
        return Point(changes, BASE, replication)


@dataclass(frozen=True, slots=True)
class Target:
    """How a target of the SLO came out.

    Attributes:
        name: As in the SLO, its class before it if it has one.
        bound: What the SLO allows.
        value: The figure, the mean over the draws; None: some draw has no such value.
        excess: What is beyond the bound over what may be, the mean over the draws: for p99, the
            share of requests beyond it over 1 %.
        worse: Upper end of its interval, which decides; `excess` where there is one draw.
    """

    name: str
    bound: float
    value: float | None
    excess: float
    worse: float

    @property
    def used(self) -> float:
        """The figure over the bound; 0 where it is unknown."""
        return self.value / self.bound if self.value is not None and self.bound else 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One fleet, simulated.

    Attributes:
        replicas: Of the candidate.
        met: Whether the worse end of every target's interval is within its bound.
        replications: How many draws it took to say so.
        targets: How each came out, the tightest first.
        basis_share: On what the prices of the steps rest, as shares of their time.
        limit: What limits the fleet, in a sentence.
        busy: Share of the time in which engines run.
        waiting: Share of the busy time in which requests wait.
        running: Most sequences that ran at once on a replica.
    """

    replicas: int
    met: bool
    replications: int
    targets: Sequence[Target]
    basis_share: Mapping[str, float]
    limit: str
    busy: float | None
    waiting: float | None
    running: int

    def target(self, name: str) -> Target | None:
        """Return a target by its name."""
        return next((target for target in self.targets if target.name == name), None)


def judged(load: Load, candidate: Candidate, replicas: int, factor: float = 1.0) -> Trial:
    """Simulate a fleet on paired draws, as many as it takes to say whether it meets the SLO.

    Targets are bounds on shares of requests, as in `kvsim.studies.capacity`; each is met if the
    worse end of its interval over the draws is. The horizon of the scenario is the question
    itself: nothing is cut but its own warm-up. A draw that misses settles it at once where no
    interval could be below the bound any more.

    Raises:
        InputError: The fleet can't be simulated.
    """
    bounds = bounds_of(load.file.base, steady=False)
    replications = load.replications if load.random else 1
    shares: list[list[float]] = []
    summaries: list[Summary] = []
    for replication in range(replications):
        point = load.point(candidate, replicas, replication, factor)
        finished = run_ready(make_ready(load.file, point))
        seen = observe(finished.tables, bounds, finished.context, steady=False)
        shares.append([seen.mean(bound, seen.first) for bound in bounds])
        summaries.append(finished.summary())
        missed = any(share > bound.allowed for share, bound in zip(shares[-1], bounds, strict=True))
        if missed and judging_slack(replications) == 1:
            break
    figures = _figures(summaries)
    targets = [
        _target(bound, values, figures[bound.name])
        for bound, *values in zip(bounds, *shares, strict=True)
    ]
    met = len(shares) == replications and all(target.worse <= 1 for target in targets)
    return _trial(replicas, met, targets, summaries)


def _trial(replicas: int, met: bool, targets: list[Target], summaries: Sequence[Summary]) -> Trial:
    """Return a trial; a missed target comes first, then that whose figure is nearest its bound."""
    targets.sort(key=lambda target: (-max(target.worse, 1.0), -target.used))
    limits, figures = summaries[0]["limits"], summaries[0]["figures"]
    return Trial(
        replicas=replicas,
        met=met,
        replications=len(summaries),
        targets=targets,
        basis_share=limits["basis_share"],
        limit=limits["sentence"],
        busy=figures["busy_fraction"],
        waiting=figures["waiting_fraction"],
        running=figures["running_seqs_max"],
    )


def _target(bound: Bound, shares: Sequence[float], figure: tuple[float, float | None]) -> Target:
    """Return how a target came out; draws in which no request has a value don't count."""
    known = [share for share in shares if not math.isnan(share)]
    if not known:
        return Target(bound.name, *figure, 0.0, 0.0)
    interval = mean_interval(known)
    worse = interval.mean if interval.high is None else interval.high
    excess, worst = (_over(share, bound.allowed) for share in (interval.mean, worse))
    return Target(bound.name, *figure, excess, worst)


def _over(share: float, allowed: float) -> float:
    if allowed > 0:
        return share / allowed
    return math.inf if share > 0 else 0.0


def _figures(summaries: Sequence[Summary]) -> dict[str, tuple[float, float | None]]:
    """Return bound and mean figure of each target; None where a draw has no such value."""
    values: dict[str, list[float | None]] = {}
    bounds: dict[str, float] = {}
    for summary in summaries:
        for of_class, target in all_targets(summary):
            name = f"{of_class}: {target['name']}" if of_class else target["name"]
            bounds[name] = target["bound"]
            values.setdefault(name, []).append(target["value"])
    means = {name: _mean_if_known(found) for name, found in values.items()}
    return {name: (bounds[name], mean) for name, mean in means.items()}


def _mean_if_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
