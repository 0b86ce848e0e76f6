"""The highest load of a scenario that meets its SLO, with an interval."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvsim.errors import InputError, Problem
from kvsim.scenario.change import changed, number_at
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.schema import BASE
from kvsim.statistics import CONFIDENCE
from kvsim.studies.capacity.answer import CapacityAnswer
from kvsim.studies.capacity.bounds import bounds_of
from kvsim.studies.capacity.knob import is_steady, knob_at, load_of
from kvsim.studies.capacity.limit import Search, Terms, pilot_requests
from kvsim.studies.capacity.observe import Observed
from kvsim.studies.capacity.simulation import Ask, Question, Simulate, simulate_once
from kvsim.studies.capacity.words import answer_of
from kvsim.study.point import Point
from kvsim.study.randomness import is_random
from kvsim.study.tasks import Crew, Failure, Work, run_tasks

TellAt = Callable[[int, int, float], None]  # simulations done, planned so far; the last one's value
_ENGINES = {"replicas", "engine.data_parallel_size"}  # how many the router chooses from


@dataclass(frozen=True, slots=True)
class Options:
    """What is searched, and how hard.

    Attributes:
        variant: Variant of the scenario file.
        changes: Dotted path of a value → the value in all simulations.
        vary: Dotted path of what is varied; None: the load.
        start, end: Range of the values that may be tried; None: none for a load.
        smallest: Search the smallest value that meets the SLO, not the largest.
        goodput: Share of requests that must meet all bounds, instead of the targets that bind
            single requests.
        precision: Width of the interval, as a share of the value, at which the search ends.
        max_replications: Most replications at one value.
        budget_s: Most time of the clock on the wall; None: no limit.
        confidence: Of the interval.
        first: Where the search begins; None: at the scenario's own value.
        step: Factor from load to load, upwards, until one misses the SLO.
        longer: Runs behind the answer are so many times as long as those before; None: as long as
            the precision asks for.
    """

    variant: str = BASE
    changes: Mapping[str, Any] = field(default_factory=dict)
    vary: str | None = None
    start: float | None = None
    end: float | None = None
    smallest: bool = False
    goodput: float | None = None
    precision: float = 0.05
    max_replications: int = 64
    budget_s: float | None = None
    confidence: float = CONFIDENCE
    first: float | None = None
    step: float = 2.0
    longer: int | None = None


def find_capacity(
    file: ScenarioFile, options: Options, crew: Crew, tell: TellAt | None = None
) -> CapacityAnswer:
    """Search the highest load, or another value, that meets the SLO.

    Args:
        file: The scenario.
        options: What is searched, and how hard.
        crew: Who simulates.
        tell: Is told how many simulations of how many are done, so far as they are planned.

    Raises:
        InputError: There is no SLO, or no load to vary, or the scenario can't be simulated.
        BrokenLawError: kvsim failed.
    """
    _refuse_nonsense(options)
    deadline = None if options.budget_s is None else time.monotonic() + options.budget_s
    question = ask(file, options)
    random = replications_differ(question)
    terms = Terms(
        options.precision,
        options.max_replications,
        options.confidence if random else None,
        deadline,
        pilot_of(question),
        options.step,
        options.longer,
    )
    search = Search(question.knob, question.bounds, terms, _by_crew(crew, question, tell))
    return answer_of(question, search, search.run())


def _refuse_nonsense(options: Options) -> None:
    """Refuse numbers that mean nothing; comparisons with NaN fail, too."""
    allowed = {
        "precision": (0.001 <= options.precision <= 1, "from 0.001 to 1"),
        "max_replications": (options.max_replications >= 1, "1 or more"),
        "confidence": (0 < options.confidence < 1, "between 0 and 1"),
        "goodput": (options.goodput is None or 0 <= options.goodput <= 1, "from 0 to 1"),
        "budget_s": (options.budget_s is None or options.budget_s >= 0, "0 or more"),
    }
    problems = [
        Problem(f"should be {which}, not {getattr(options, name)!r}", path=name)
        for name, (is_right, which) in allowed.items()
        if not is_right
    ]
    if problems:
        raise InputError(*problems)


def ask(file: ScenarioFile, options: Options) -> Question:
    """Return what all simulations have in common.

    Raises:
        InputError: There is no SLO, no such value, or none that can be varied.
    """
    alone = changed(file, options.changes, options.variant)
    scenario = alone.base
    if options.vary is None:
        knob = load_of(scenario, options.start, options.end)
    else:
        written = number_at(scenario.model_dump(mode="json"), options.vary)
        knob = knob_at(options.vary, written, options.start, options.end, options.smallest)
        changed(file, {**options.changes, **knob.changes(knob.first)}, options.variant)
    if options.first is not None:
        knob = replace(knob, first=min(max(options.first, knob.least), knob.most))
    steady = is_steady(scenario) and not (options.vary or "").endswith(
        ("num_requests", "duration_s")
    )
    bounds = bounds_of(scenario, options.goodput, steady)
    return Question(file, knob, bounds, steady, options.variant, options.changes)


def replications_differ(question: Question) -> bool:
    """Tell whether replications differ at any of the values."""
    changes = dict(question.changes)
    if question.knob.path in _ENGINES:  # routers draw where there are several, as most values have
        changes[question.knob.path] = 2
    return is_random(question.file, Point(changes, question.variant))


def pilot_of(question: Question) -> int | None:
    """Return how many requests the first runs have; None: as many as the scenario says."""
    if not question.steady:
        return None
    changes = {**question.changes, **question.knob.changes(question.knob.first)}
    scenario = changed(question.file, changes, question.variant).base
    sources = scenario.workload.sources()
    users = sum(getattr(source.arrivals, "users", 0) for source in sources)
    return pilot_requests(question.bounds, users)


def _by_crew(crew: Crew, question: Question, tell: TellAt | None) -> Simulate:
    """Return what makes simulations by a crew, in the order asked for."""
    work = Work(simulate_once, question)
    done = 0

    def simulate(asks: Sequence[Ask]) -> Sequence[Observed]:
        nonlocal done
        found: dict[int, Observed] = {}
        planned = done + len(asks)
        for place, result in run_tasks(crew, work, enumerate(asks)):
            if isinstance(result, Failure):
                raise result.error(f"at {question.knob.show(asks[place].value)}")
            found[place] = result
            done += 1
            if tell is not None:
                tell(done, planned, asks[place].value)
        return [found[place] for place in range(len(asks))]

    return simulate
