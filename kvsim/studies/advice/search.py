"""The capacity of the scenario as it is, then that of each change, until the time is up.

All searches face the same draws. Which values they try depends on results alone: the time decides
only how many changes are reached, and a search that it cuts short counts as not made.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvsim.errors import InputError, Problem
from kvsim.metrics.summary import Summary
from kvsim.scenario.change import changed
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.resolve import resolve_all
from kvsim.scenario.schema import BASE
from kvsim.studies.advice.candidates import Change, Declined, Evidence, candidates_of
from kvsim.studies.capacity.answer import CapacityAnswer
from kvsim.studies.capacity.knob import load_of
from kvsim.studies.capacity.search import (
    Options,
    ask,
    find_capacity,
    pilot_of,
    replications_differ,
)
from kvsim.studies.capacity.simulation import Ask, Question
from kvsim.study.point import Point, make_ready, run_ready
from kvsim.study.tasks import Crew, Failure, Work, run_tasks

AS_IT_IS = Change("base", "as it is", {})

# Rough searches: what is asked is a ratio within a tenth. On the scenarios that ship a search takes
# 1 to 10 s; one to a twentieth, as `kvsim capacity` does it, takes a minute where queues are long.
_ROUGH = Options(precision=0.05, max_replications=8, step=1.2, longer=3)
_OFTEN = 0.05  # preemptions a request: such steps are simulated one by one, and take long
_EXACT = 0.015  # precision where nothing is random, and a load is simulated once
_LONGER = 4  # pilots that the run at the capacity is long, so that its filling hardly counts

Tell = Callable[[int, int, str], None]  # scenarios done, of how many at most; which one is next


@dataclass(frozen=True, slots=True)
class Seen:
    """A scenario, changed or not, of which the capacity was searched.

    Attributes:
        change: What differs.
        answer: Its capacity.
        summary: Figures of a run at its capacity; None if there is none.
        gpus: All GPUs of this run.
    """

    change: Change
    answer: CapacityAnswer
    summary: Summary | None
    gpus: int

    @property
    def capacity(self) -> float | None:
        """The limit, or the highest load that surely meets the SLO where no limit was found."""
        return self.answer.feasible if self.answer.value is None else self.answer.value


@dataclass(frozen=True, slots=True)
class Advice:
    """What was found.

    Attributes:
        base: The scenario as it is; None if the time was up before.
        seen: Changes of which the capacity is known, in the order in which they were looked at.
        late: Changes that the time did not suffice for.
        declined: Changes that were not tried, and why.
        own_load: Load of the scenario as it is, in the unit of the capacities.
        own_requests_per_s: The same in requests/s, retries left out; None if it has no rate.
        budget_s: Time that there was.
    """

    base: Seen | None
    seen: list[Seen]
    late: list[Change]
    declined: list[Declined]
    own_load: float
    own_requests_per_s: float | None
    budget_s: float


def refuse_unanswerable(file: ScenarioFile) -> None:
    """Refuse a scenario of which no capacity can be searched, before anything runs.

    Raises:
        InputError: There is no SLO, or no load to vary; says what to set.
    """
    try:
        load_of(file.base)
    except InputError as error:
        what = "--advise searches the highest load, and this one has no rate that can be scaled"
        raise InputError(file.located(Problem(what, path="workload"), BASE)) from error
    try:
        ask(file, _ROUGH)
    except InputError as error:
        located = (file.located(problem, BASE) for problem in error.problems)
        problems = (replace(one, message=f"--advise: {one.message}") for one in located)
        raise InputError(*problems) from error


def find_advice(
    file: ScenarioFile,
    summary: Summary,
    crew: Crew,
    budget_s: float,
    tell: Tell | None = None,
) -> Advice:
    """Search the capacity of the base as it is, and of its most promising changes.

    Args:
        file: The scenario.
        summary: Figures of its base's run, at its own load.
        crew: Who simulates; the result does not depend on it.
        budget_s: Time by the clock on the wall; no simulation begins after it.
        tell: Is told how many capacities are known.

    Raises:
        InputError: No capacity can be searched, or the base can't be simulated.
        BrokenLawError: kvsim failed.
    """
    deadline = time.monotonic() + budget_s
    tell = tell or (lambda done, of, words: None)
    tell(0, 1, AS_IT_IS.words)
    rough = _rough(summary)
    base = _look(file, rough, AS_IT_IS, crew, deadline)
    changes, declined = _candidates(file, summary, base)
    seen: list[Seen] = []
    late: list[Change] = []
    first = base.capacity if base else None
    for place, change in enumerate(changes):
        tell(1 + place, 1 + len(changes), change.words)
        try:
            options = replace(rough, changes=change.changes, first=first)
            found = base and _look(file, options, change, crew, deadline)
        except InputError as error:
            declined.append(_refused(change, error))
            continue
        if found is None:
            late = changes[place:]
            break
        seen.append(found)
    own_load = ask(file, _ROUGH).knob.first
    return Advice(base, seen, late, declined, own_load, _sent_per_s(summary), budget_s)


def _rough(summary: Summary) -> Options:
    """Return how hard to search: with shorter runs where the base's own run preempts often."""
    figures = summary["figures"]
    often = figures["preemptions_total"] > _OFTEN * figures["requests_total"]
    return replace(_ROUGH, longer=1) if often else _ROUGH


def _look(
    file: ScenarioFile, options: Options, change: Change, crew: Crew, deadline: float
) -> Seen | None:
    """Search the capacity of a change; None if the time is up before it is told."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        return None
    options = replace(options, budget_s=left_s)
    question = ask(file, options)
    if not replications_differ(question):
        options = replace(options, precision=_EXACT)
    answer = find_capacity(file, options, crew)
    if time.monotonic() > deadline:  # what a search does in haste depends on this machine
        return None
    seen = Seen(change, answer, None, 0)
    if seen.capacity is None:
        return seen
    pilot = pilot_of(question)
    requests = None if pilot is None else _LONGER * pilot
    work = Work(_figures_at, question)
    for _, found in run_tasks(crew, work, [(0, Ask(seen.capacity, 0, requests))]):
        if isinstance(found, Failure):
            raise found.error()
        seen = replace(seen, summary=found[0], gpus=found[1])
    return seen


def _figures_at(question: Question, asked: Ask) -> tuple[Summary, int]:
    """Return the figures at a load, and the number of GPUs."""
    finished = run_ready(make_ready(question.file, question.point(asked)))
    return finished.summary(), finished.variant.num_gpus


def _candidates(
    file: ScenarioFile, summary: Summary, base: Seen | None
) -> tuple[list[Change], list[Declined]]:
    """Return the changes to look at, and those that aren't; a server has to start with each."""
    ready = make_ready(file, Point())
    known = base.summary if base and base.summary else summary
    limited_by = base.answer.limited_by if base else None
    evidence = Evidence(ready.variant, ready.requests, known, limited_by or "")
    promising, declined = candidates_of(evidence)
    if base and base.answer.stopped == "range":
        why = "no load that was tried misses the SLO as it is"
        return [], [Declined(one.key, one.words, why) for one in promising] + declined
    changes = []
    for change in promising:
        try:
            resolve_all(changed(file, change.changes))
        except InputError as error:
            declined.append(_refused(change, error))
        else:
            changes.append(change)
    return changes, declined


def _refused(change: Change, error: InputError) -> Declined:
    return Declined(change.key, change.words, error.problems[0].message.splitlines()[0])


def _sent_per_s(summary: Summary) -> float | None:
    """Return how many requests a second clients sent in a run, their retries left out."""
    figures = summary["figures"]
    offered, total = figures["offered_requests_per_s"], figures["requests_total"]
    return offered * (1 - figures["retries_total"] / total) if offered and total else None
