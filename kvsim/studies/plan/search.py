"""The cheapest fleet: candidates by their proven least cost, until none can be cheaper."""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from kvsim.errors import BrokenLawError, InputError, Problem
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.schema import BASE
from kvsim.studies.plan.candidates import Candidate, Options, candidates_of
from kvsim.studies.plan.fleet import (
    Ask,
    Fleet,
    Least,
    work_on,
)
from kvsim.studies.plan.result import Plan, Skipped, WhyNot
from kvsim.studies.plan.trial import Load
from kvsim.study.point import Point
from kvsim.study.randomness import is_random
from kvsim.study.tasks import Crew, Failure, Work, run_tasks

Key = TypeVar("Key", bound=Hashable)

# Candidates that are looked at side by side, whatever the number of processes: each of them only
# has to be cheaper than what was known before, so that the outcome depends on no process's speed.
WAVE = 4
DEMANDS = (0.5, 1.5, 2.0)  # of the plan's, for which the winner's fleet is told as well
_DEAREST = 4  # a candidate that is looked at for comparison may cost so many times the winner

Tell = Callable[[int, int], None]  # candidates done, of how many


def find_plan(
    file: ScenarioFile,
    options: Options,
    crew: Crew,
    demands: bool = False,
    tell: Tell | None = None,
) -> Plan:
    """Search the cheapest fleet that serves a scenario's demand within its SLO.

    Branch and bound: a candidate is simulated only while its proven least cost is below the cost
    of the best fleet known. The same input gives the same plan, however many work at it, unless
    a budget cuts it short.

    Args:
        file: The scenario; its base is planned for.
        options: What may be chosen.
        crew: Who simulates.
        demands: Also search the winner's fleets for other demands.
        tell: Is told how far the search has come.

    Raises:
        InputError: There is no SLO, no candidate, or the traffic can't be drawn.
    """
    scenario = file.base
    if not scenario.slo and not scenario.class_slos:
        what = "say what the fleet has to meet, such as ttft_p99_s"
        raise InputError(file.located(Problem(what, path="slo"), BASE))
    candidates = candidates_of(file, options)
    search = _Search(file, options, crew, tell or (lambda done, of: None))
    return search.run(candidates, demands)


class _Search:
    """Keeps the cheapest fleet known, and what was found of each candidate, by its place."""

    def __init__(self, file: ScenarioFile, options: Options, crew: Crew, tell: Tell) -> None:
        self._options, self._crew, self._tell = options, crew, tell
        self._load = Load(file, options.load_factor, options.replications)
        several = Point({"replicas": 2, **self._load.times(1.0)})
        self._load = replace(self._load, random=is_random(file, several))
        self._work = Work(work_on, self._load)
        self._until_s = None if options.budget_s is None else time.time() + options.budget_s
        self._skipped: dict[int, Skipped] = {}
        self._leasts: dict[int, Least] = {}
        self._fleets: dict[int, Fleet] = {}
        self._best: int | None = None
        self._proven = True

    def run(self, candidates: Sequence[Candidate], demands: bool) -> Plan:
        """Search, then look at some other candidates and at other demands."""
        self._bound(candidates)
        waiting = sorted(self._leasts, key=self._rank)
        while wave := self._next_wave(waiting):
            self._simulate({place: self._ask_cheaper(place) for place in wave})
            best = [place for place, fleet in self._fleets.items() if fleet.smallest is not None]
            self._best = min(best, key=self._cost, default=None)
        late = any(fleet.why == "budget" for fleet in self._fleets.values())
        left_out = any(skip.why in {"budget", "killed"} for skip in self._skipped.values())
        self._proven = not late and not left_out
        self._compare()
        steps = self._other_demands() if demands else []
        return self._plan(steps)

    def _bound(self, candidates: Sequence[Candidate]) -> None:
        """Find what each candidate needs at least, or why it would not start."""
        for place, found in self._run(dict(enumerate(candidates))):
            if isinstance(found, Failure):
                self._skipped[place] = Skipped(candidates[place], "refused", None, found.message)
            elif isinstance(found, Least):
                self._leasts[place] = found

    def _next_wave(self, waiting: list[int]) -> list[int]:
        """Take the next candidates that may be cheaper; the others are skipped."""
        wave: list[int] = []
        while waiting and len(wave) < WAVE:
            place = waiting.pop(0)
            least_usd = self._usd(place, self._leasts[place].replicas)
            if self._best is not None and least_usd >= self._cost(self._best)[0]:
                self._skip(place, "dearer")
            elif self._time_is_up():
                self._skip(place, "budget")
            else:
                wave.append(place)
        return wave

    def _ask_cheaper(self, place: int) -> Ask:
        """Ask for a fleet that is cheaper than the best one known."""
        least = self._leasts[place]
        if self._best is None:
            return Ask(least, until_s=self._until_s)
        most = self._most_below(place, self._cost(self._best)[0])
        return Ask(least, most, from_above=True, until_s=self._until_s)

    def _most_below(self, place: int, usd_per_hour: float) -> int:
        """Return the most replicas whose fleet, spare ones included, costs less than so much."""
        each_usd = self._leasts[place].usd_per_hour(1)
        count = math.ceil(usd_per_hour / each_usd) - self._options.spare
        while count > 0 and self._usd(place, count) >= usd_per_hour:
            count -= 1
        return max(count, 0)

    def _compare(self) -> None:
        """Give some of the candidates that can't be cheaper a fleet of their own."""
        if self._best is None or self._time_is_up():
            return
        dearest_usd = _DEAREST * self._cost(self._best)[0]
        asks: dict[int, Ask] = {}
        for place in self._to_compare(dearest_usd):
            most = self._most_below(place, dearest_usd)
            known = self._fleets[place].trials if place in self._fleets else ()
            asks[place] = Ask(self._leasts[place], most, until_s=self._until_s, known=tuple(known))
        self._simulate(asks)

    def _to_compare(self, dearest_usd: float) -> list[int]:
        """Return candidates without a fleet: first the best of each GPU that has none.

        Those as precise as the scenario come before others; those that surely cost more than
        `dearest_usd` an hour are left out.
        """
        seen = {
            fleet.least.candidate.gpu
            for fleet in self._fleets.values()
            if fleet.smallest is not None
        }
        firsts: list[int] = []
        others: list[int] = []
        for place in sorted(self._leasts, key=self._worth_a_look):
            fleet = self._fleets.get(place)
            is_open = fleet is None or fleet.why == "dearer"
            if is_open and self._rank(place)[0] < dearest_usd:
                gpu = self._leasts[place].candidate.gpu
                (others if gpu in seen else firsts).append(place)
                seen.add(gpu)
        return [*firsts, *others][: self._options.also]

    def _worth_a_look(self, place: int) -> tuple[bool, tuple[float, int]]:
        return self._leasts[place].candidate.is_of_other_precision, self._rank(place)

    def _other_demands(self) -> list[tuple[float, Fleet]]:
        """Return the winner's fleets for other demands."""
        if self._best is None or self._time_is_up():
            return []
        winner = self._fleets[self._best]
        asks = {
            factor: Ask(winner.least, factor=factor, until_s=self._until_s) for factor in DEMANDS
        }
        fleets = {1.0: winner}
        for factor, found in self._run(asks):
            if isinstance(found, Fleet):
                fleets[factor] = found
        return sorted(fleets.items())

    def _simulate(self, asks: Mapping[int, Ask]) -> None:
        for place, found in self._run(asks):
            if isinstance(found, Failure):
                self._skip(place, "killed" if found.kind == "killed" else "refused", found.message)
            elif isinstance(found, Fleet):
                self._fleets[place] = found
                self._skipped.pop(place, None)
            self._tell(len(self._fleets) + len(self._skipped), self._count)

    def _run(
        self, asks: Mapping[Key, Candidate | Ask]
    ) -> Iterator[tuple[Key, Least | Fleet | Failure]]:
        """Yield what was found; a defect ends the search."""
        for key, found in run_tasks(self._crew, self._work, asks.items()):
            if isinstance(found, Failure) and found.kind == "defect":
                raise BrokenLawError(found.message)
            yield key, found

    def _plan(self, demands: Sequence[tuple[float, Fleet]]) -> Plan:
        best = self._best
        others = sorted((place for place in self._fleets if place != best), key=self._cost)
        fleets = [self._fleets[place] for place in ([] if best is None else [best]) + others]
        return Plan(
            self._load.file,
            self._options,
            self._load.random,
            None if best is None else self._fleets[best],
            fleets,
            [self._skipped[place] for place in sorted(self._skipped)],
            demands,
            self._proven,
        )

    # Small words

    @property
    def _count(self) -> int:
        return len(self._leasts) + sum(skip.usd_per_hour is None for skip in self._skipped.values())

    def _usd(self, place: int, replicas: int) -> float:
        return self._leasts[place].usd_per_hour(replicas + self._options.spare)

    def _rank(self, place: int) -> tuple[float, int]:
        return self._usd(place, self._leasts[place].replicas), place

    def _cost(self, place: int) -> tuple[float, int, int]:
        """Return by what fleets are compared: cost, then GPUs, then the order of the options."""
        fleet = self._fleets[place]
        if fleet.smallest is None:
            return math.inf, 0, place
        gpus = fleet.smallest * fleet.least.gpus
        return self._usd(place, fleet.smallest), gpus, place

    def _skip(self, place: int, why: WhyNot, message: str = "") -> None:
        least = self._leasts[place]
        usd = self._usd(place, least.replicas)
        self._skipped[place] = Skipped(least.candidate, why, usd, message)

    def _time_is_up(self) -> bool:
        return self._until_s is not None and time.time() >= self._until_s
