"""How many replicas of one candidate meet the SLO: a search over whole fleets."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvsim.scenario.resolve import MOST_ENGINES
from kvsim.studies.plan.bounds import least_replicas
from kvsim.studies.plan.candidates import Candidate
from kvsim.studies.plan.trial import Load, Target, Trial, judged
from kvsim.study.point import make_ready

Why = Literal["smallest", "dearer", "no use", "most", "budget"]

_GROWTH = 2  # replicas are raised by one part in so many while the SLO is missed
_NO_GAIN = 0.01  # a figure that so many more replicas improve by less has come to its floor,
_FAR = 1.05  # if it is that far beyond its bound, or each request is alone,
_CALM = 0.01  # and requests wait in less of the busy time


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
        known = [count for count, trial in self._trials.items() if not trial.met]
        missed = max([few - 1, *known])
        count = min(missed + 1, self._most)
        while not self._meets(count):
            if self._is_no_use(missed, count):
                return count, None
            missed = count
            if missed >= self._most:
                return missed, None
            count = min(count + max(1, count // _GROWTH), self._most)
        return missed, count

    def _is_no_use(self, fewer: int, count: int) -> bool:
        """Tell whether a target is missed by a figure that more replicas no longer improve."""
        before, now = self._trials.get(fewer), self._trials[count]
        if before is None or now.waiting is None or now.waiting > _CALM:
            return False
        return any(_is_at_floor(before, now, target) for target in now.targets if target.excess > 1)

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


def _is_at_floor(before: Trial, now: Trial, target: Target) -> bool:
    earlier = before.target(target.name)
    if earlier is None or earlier.value is None or target.value is None:
        return False
    gains = target.value < earlier.value * (1 - _NO_GAIN)
    return not gains and (target.used > _FAR or now.running <= 1)
