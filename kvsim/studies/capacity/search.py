"""The highest load of a scenario that meets its SLO, with an interval."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.schema import BASE
from kvsim.statistics import CONFIDENCE
from kvsim.study.tasks import Crew
from kvsim.studies.capacity.answer import CapacityAnswer


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


def find_capacity(file: ScenarioFile, options: Options, crew: Crew) -> CapacityAnswer:
    """Search the highest load, or another value, that meets the SLO.

    Raises:
        InputError: There is no SLO, or no load to vary, or the scenario can't be simulated.
    """
    raise NotImplementedError
