"""Where charts look: axes that are numbers, and settings that share all else with the choice."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kvsim.studies.sweep.answer import Answer, ranked
from kvsim.studies.sweep.axes import axis_paths
from kvsim.studies.sweep.expand import VARIANT
from kvsim.studies.sweep.names import point_text, short_names
from kvsim.studies.sweep.schema import Range

_LOG_FROM = 16  # ratio of the largest to the smallest value


@dataclass(frozen=True)
class View:
    """A sweep's settings, to be found by their values.

    Attributes:
        answer: What is shown.
    """

    answer: Answer

    @cached_property
    def choice(self) -> int:
        """The setting through which charts cut: the best, or the first by rank."""
        return ranked(self.answer)[0] if self.answer.best is None else self.answer.best

    @cached_property
    def names(self) -> dict[str, str]:
        """Short names of the axes, by path."""
        return short_names(self.answer.results.sweep)

    @cached_property
    def grid(self) -> dict[str, list[float]]:
        """Values in rising order of each axis whose values are two or more numbers, by path."""
        sweep = self.answer.results.sweep
        found = {}
        for path in axis_paths(sweep):
            axis = sweep.axes.get(path)
            values = self.values_of(path)
            if not (isinstance(axis, Range) and axis.is_sampled) and are_numbers(values):
                found[path] = sorted(values)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    @cached_property
    def sampled(self) -> list[str]:
        """Paths of the axes whose values were drawn."""
        axes = self.answer.results.sweep.axes
        return [p for p, axis in axes.items() if isinstance(axis, Range) and axis.is_sampled]

    def values_of(self, path: str) -> list[Any]:
        """Return the distinct values of an axis, in the order in which they come."""
        return self._values[path]

    def at(self, values: Mapping[str, Any]) -> int | None:
        """Return the setting that differs from the choice in some values only.

        Args:
            values: Path, or `variant`, → value.
        """
        chosen = self.answer.results.settings[self.choice]
        wanted = {VARIANT: chosen.variant, **chosen.changes, **values}
        return self._places.get(self._key(wanted))

    def else_words(self, without: Sequence[str]) -> str:
        """Say at which values of the other axes a chart is drawn: `at x 3`, or nothing."""
        results = self.answer.results
        others = [path for path in self.names if path not in without]
        if not others and (len(results.sweep.variants) == 1 or VARIANT in without):
            return ""
        return f"at {point_text(results.sweep, results.settings[self.choice], without)}"

    @cached_property
    def _values(self) -> dict[str, list[Any]]:
        settings = self.answer.results.settings
        return {
            path: list({json.dumps(p.changes[path]): p.changes[path] for p in settings}.values())
            for path in self.names
        }

    @cached_property
    def _places(self) -> dict[str, int]:
        settings = self.answer.results.settings
        return {
            self._key({VARIANT: point.variant, **point.changes}): place
            for place, point in enumerate(settings)
        }

    def _key(self, values: Mapping[str, Any]) -> str:
        return json.dumps([values[VARIANT], *(values[path] for path in self.names)])


def are_numbers(values: Sequence[Any]) -> bool:
    """Tell whether these are at least two values, all of them numbers."""
    return len(values) > 1 and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )


def scale_of(values: Sequence[float]) -> str:
    """Return how an axis is drawn: `log`, in equal ratios, where values spread widely."""
    lowest, highest = min(values), max(values)
    return "log" if lowest > 0 and highest / lowest >= _LOG_FROM else "linear"


def thinned(count: int, most: int) -> list[int]:
    """Return evenly picked places of a list, first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(place) for place in np.linspace(0, count - 1, most).tolist()})
