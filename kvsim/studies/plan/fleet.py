"""How many replicas of one candidate meet the SLO: simulations of whole fleets."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvsim.metrics.classes import all_targets
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.resolve import MOST_ENGINES
from kvsim.scenario.schema import BASE
from kvsim.statistics import mean_interval
from kvsim.studies.capacity.bounds import Bound, bounds_of
from kvsim.studies.capacity.knob import load_of
from kvsim.studies.capacity.observe import observe
from kvsim.studies.plan.bounds import judging_slack, least_replicas
from kvsim.studies.plan.candidates import Candidate
from kvsim.study.point import Point, make_ready, run_ready

Why = Literal["smallest", "dearer", "no use", "most", "budget"]

_GROWTH = 2  # replicas are raised by one part in so many while the SLO is missed
_NO_USE = 0.01  # if so many more replicas bring less than this, no number of them will do


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

    @property
    def changes(self) -> Mapping[str, Any]:
        """The demand as changes of the scenario."""
        return self.times(1.0)

    def times(self, factor: float) -> Mapping[str, Any]:
        """Return so many times the demand as changes of the scenario."""
        if self.factor * factor == 1:
            return {}
        knob = load_of(self.file.base)
        return knob.changes(knob.first * self.factor * factor)

    def point(
        self, candidate: Candidate, replicas: int, replication: int = 0, factor: float = 1.0
    ) -> Point:
        """Return one simulation of a fleet."""
        changes = {**candidate.changes, "replicas": replicas, **self.times(factor)}
        return Point(changes, BASE, replication)


@dataclass(frozen=True, slots=True)
class Least:
    """A candidate before any fleet of it was simulated: it would start, and needs that many."""

    candidate: Candidate
    replicas: int
    gpus: int  # of one replica

    def usd_per_hour(self, replicas: int) -> float:
        """Return what so many replicas cost."""
        return replicas * self.gpus * self.candidate.usd_per_gpu_hour


@dataclass(frozen=True, slots=True)
class Target:
    """How one target came out: what it bounds over what is allowed, 1 at the bound.

    `excess` is the mean over the draws, `worse` the upper end of its interval, which decides; they
    are equal where there is one draw.
    """

    name: str
    excess: float
    worse: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One fleet, simulated.

    Attributes:
        replicas: Of the candidate.
        met: Whether the worse end of every target's interval is within its bound.
        replications: How many draws it took to say so.
        targets: How each came out, the worst first.
        latencies_s: Means over the replications, of the figures that the SLO names.
        basis_share: On what the prices of the steps rest, as shares of their time.
        limit: What limits the fleet, in a sentence.
        busy: Share of the time in which engines run.
    """

    replicas: int
    met: bool
    replications: int
    targets: Sequence[Target]
    latencies_s: Mapping[str, float | None]
    basis_share: Mapping[str, float]
    limit: str
    busy: float | None


@dataclass(frozen=True, slots=True)
class Ask:
    """Which number of replicas is asked for.

    Attributes:
        least: The candidate.
        most: More than so many are too dear; None: any number.
        from_above: Try `most` first: only if it meets the SLO, smaller numbers are of interest.
        factor: Of the plan's demand.
        until_s: No simulation begins after this time (`time.time`).
        known: What was simulated before.
    """

    least: Least
    most: int | None = None
    from_above: bool = False
    factor: float = 1.0
    until_s: float | None = None
    known: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is known of a candidate: the smallest number of replicas, or why there is none.

    Attributes:
        least: The candidate.
        smallest: Fewest replicas that meet the SLO.
        why: `smallest`: it was found; `dearer`: it would cost more than the limit; `no use`: more
            replicas don't help; `most`: there are none so many; `budget`: time was up.
        trials: All that was simulated, by rising replicas.
    """

    least: Least
    smallest: int | None
    why: Why
    trials: Sequence[Trial] = field(default_factory=tuple)

    @property
    def chosen(self) -> Trial | None:
        """The smallest fleet that meets the SLO."""
        found = [trial for trial in self.trials if trial.replicas == self.smallest]
        return found[0] if found else None

    @property
    def shown(self) -> Trial | None:
        """The chosen fleet, else the largest that was tried."""
        return self.chosen or (self.trials[-1] if self.trials else None)


# Calls of workers


def work_on(load: Load, item: Candidate | Ask) -> Least | Fleet:
    """Do what a worker is asked for: first what a candidate needs at least, then its fleet.

    Raises:
        InputError: Such a server would not start, or can't serve these requests.
    """
    return smallest_fleet(load, item) if isinstance(item, Ask) else least_of(load, item)


def least_of(load: Load, candidate: Candidate, factor: float = 1.0) -> Least:
    """Return how many replicas of a candidate are needed at least.

    Raises:
        InputError: Such a server would not start, or can't serve a request.
    """
    ready = make_ready(load.file, load.point(candidate, 1, factor=factor))
    replicas = least_replicas(ready.variant, ready.requests, load.replications)
    return Least(candidate, replicas, ready.variant.num_gpus)


def smallest_fleet(load: Load, ask: Ask) -> Fleet:
    """Search the fewest replicas that meet the SLO; more replicas are taken to be no worse.

    Raises:
        InputError: The engine can't go on with these requests.
    """
    return _Search(load, ask).run()


class _Search:
    """Brackets the number of replicas from the proven bound, then halves the bracket."""

    def __init__(self, load: Load, ask: Ask) -> None:
        self._load, self._ask = load, ask
        self._trials = {trial.replicas: trial for trial in ask.known}
        ranks = load.file.base.engine.data_parallel_size
        most = MOST_ENGINES // ranks
        self._limit: Why = "most"
        if ask.most is not None and ask.most < most:
            most, self._limit = ask.most, "dearer"
        self._most = most

    def run(self) -> Fleet:
        """Return the fewest replicas, or why there is no number."""
        few = self._ask.least.replicas
        if self._ask.factor != 1:
            few = least_of(self._load, self._ask.least.candidate, self._ask.factor).replicas
        if few > self._most:
            return self._fleet(None, self._limit)
        try:
            missed, met = self._bracket(few)
            while met is not None and met - missed > 1:
                middle = (missed + met) // 2
                missed, met = (missed, middle) if self._meets(middle) else (middle, met)
        except _TimeIsUpError:
            return self._fleet(None, "budget")
        if met is not None:
            return self._fleet(met, "smallest")
        return self._fleet(None, self._limit if missed >= self._most else "no use")

    def _bracket(self, few: int) -> tuple[int, int | None]:
        """Return a number that misses (or is below the bound) and one that meets, if there is."""
        if self._ask.from_above:
            return (few - 1, self._most) if self._meets(self._most) else (self._most, None)
        missed, count = few - 1, few
        while not self._meets(count):
            if self._is_no_use(missed, count):
                return count, None
            missed = count
            if missed >= self._most:
                return missed, None
            count = min(count + max(1, count // _GROWTH), self._most)
        return missed, count

    def _is_no_use(self, fewer: int, count: int) -> bool:
        """Tell whether more replicas no longer bring any target nearer, though all is served."""
        before, now = self._trials.get(fewer), self._trials[count]
        if before is None:
            return False
        earlier = {target.name: target.excess for target in before.targets}
        missed = [target for target in now.targets if target.excess > 1]
        if not missed or any("max_failed_fraction" in target.name for target in missed):
            return False
        return all(one.excess > earlier[one.name] * (1 - _NO_USE) for one in missed)

    def _meets(self, replicas: int) -> bool:
        if replicas not in self._trials:
            until_s = self._ask.until_s
            if until_s is not None and time.time() >= until_s:
                raise _TimeIsUpError
            self._trials[replicas] = judged(
                self._load, self._ask.least.candidate, replicas, self._ask.factor
            )
        return self._trials[replicas].met

    def _fleet(self, smallest: int | None, why: Why) -> Fleet:
        trials = tuple(self._trials[count] for count in sorted(self._trials))
        return Fleet(self._ask.least, smallest, why, trials)


class _TimeIsUpError(Exception):
    """No further simulation may begin."""


# One fleet


def judged(load: Load, candidate: Candidate, replicas: int, factor: float = 1.0) -> Trial:
    """Simulate a fleet on paired draws, as many as it takes to say whether it meets the SLO.

    Targets are bounds on shares of requests, as in `kvsim.studies.capacity`; each meets its own
    if the worse end of its interval over the draws does. The horizon of the scenario is the
    question itself: nothing is cut but its own warm-up. A draw that misses settles it at once
    where no interval could be below the bound any more.

    Raises:
        InputError: The fleet can't be simulated.
    """
    bounds = bounds_of(load.file.base, steady=False)
    replications = load.replications if load.random else 1
    means: list[list[float]] = []
    summaries: list[dict[str, Any]] = []
    for replication in range(replications):
        point = load.point(candidate, replicas, replication, factor)
        finished = run_ready(make_ready(load.file, point))
        seen = observe(finished.tables, bounds, finished.context, steady=False)
        means.append([seen.mean(bound, seen.first) for bound in bounds])
        summaries.append(finished.summary())
        missed = any(mean > bound.allowed for mean, bound in zip(means[-1], bounds, strict=True))
        if missed and judging_slack(replications) == 1:
            break
    targets = [_target(bound, values) for bound, *values in zip(bounds, *means, strict=True)]
    targets.sort(key=lambda target: -target.worse)
    limits = summaries[0]["limits"]
    return Trial(
        replicas=replicas,
        met=len(means) == replications and targets[0].worse <= 1,
        replications=len(means),
        targets=targets,
        latencies_s=_mean_figures(summaries),
        basis_share=limits["basis_share"],
        limit=limits["sentence"],
        busy=summaries[0]["figures"]["busy_fraction"],
    )


def _target(bound: Bound, means: Sequence[float]) -> Target:
    """Return how a target came out; draws in which no request has a value don't count."""
    values = [mean for mean in means if not math.isnan(mean)]
    if not values:
        return Target(bound.name, 0.0, 0.0)
    interval = mean_interval(values)
    worse = interval.mean if interval.high is None else interval.high
    if not bound.allowed:
        return Target(bound.name, *(math.inf if x > 0 else 0.0 for x in (interval.mean, worse)))
    return Target(bound.name, interval.mean / bound.allowed, worse / bound.allowed)


def _mean_figures(summaries: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the mean over replications of each figure that a target bounds."""
    values: dict[str, list[float | None]] = {}
    for summary in summaries:
        for of_class, target in all_targets(summary):
            name = f"{of_class}: {target['name']}" if of_class else target["name"]
            values.setdefault(name, []).append(target["value"])
    return {
        name: None if None in found else sum(v for v in found if v is not None) / len(found)
        for name, found in values.items()
    }
