"""What a worker makes of one point."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.scenario.load import ScenarioFile
from kvsim.study.point import Point, run_point

DONE = "done"  # status of a point with an outcome; that of others is the kind of their failure


@dataclass(frozen=True, slots=True)
class Outcome:
    """A point that was simulated.

    Attributes:
        met: Whether it meets its SLO; None if it has none, or can't be judged.
        verdict: The same in a sentence.
        figures: Each of `kvsim.metrics.catalog.METRICS` that has a value.
    """

    met: bool | None
    verdict: str
    figures: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return {"met": self.met, "verdict": self.verdict, "figures": dict(self.figures)}


def simulated(file: ScenarioFile, point: Point) -> Outcome:
    """Simulate a point and keep its summary.

    Raises:
        InputError: The point can't be simulated.
    """
    summary = run_point(file, point).summary()
    verdict = summary["verdict"]
    figures = {name: value for name, value in summary["figures"].items() if value is not None}
    return Outcome(verdict["met"], verdict["sentence"], figures)
