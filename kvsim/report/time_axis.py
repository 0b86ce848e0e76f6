"""The time axis that charts over time share: its unit, its span, the window until arrivals stop."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from kvsim.report.figure import GRAY, axis, rounded
from kvsim.report.inputs import Variant
from kvsim.report.series import Ints
from kvsim.units import NS_PER_S

# Name, seconds, used from so many s.
UNITS = (("days", 86_400, 345_600), ("h", 3600, 7200), ("min", 60, 600), ("s", 1, 0))
TABLE_ROWS = 12


def time_unit(span_ns: int) -> tuple[str, int]:
    """Return the unit that suits an axis over a span of time, and its length in ns."""
    name, seconds, _ = next(unit for unit in UNITS if span_ns >= unit[2] * NS_PER_S)
    return name, seconds * NS_PER_S


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """A span from 0 to the end of the run; arrivals stop at `window_ns`."""

    end_ns: int
    window_ns: int
    unit: str
    unit_ns: int

    @classmethod
    def of_run(cls, variants: Sequence[Variant]) -> "TimeAxis":
        """Return the axis that suits all variants."""
        windows_ns = [round(v.summary["figures"]["window_s"] * NS_PER_S) for v in variants]
        ends_ns = [round(v.summary["figures"]["makespan_s"] * NS_PER_S) for v in variants]
        end_ns = max(TABLE_ROWS, *windows_ns, *ends_ns)  # no row of a table is empty
        return cls(end_ns, max(1, *windows_ns), *time_unit(end_ns))

    def of(self, times_ns: Ints) -> list[float]:
        """Express times in the unit of the axis, rounded to what a screen can show."""
        return rounded(times_ns / self.unit_ns, 4)

    def layout(self) -> dict[str, Any]:
        """Return Plotly's description of the axis."""
        span = [0, self.end_ns / self.unit_ns]
        return axis(f"simulated time ({self.unit})", range=span, hoverformat=".2f")

    def edges(self, count: int) -> Ints:
        """Return `count` + 1 instants that divide the span evenly."""
        return np.linspace(0, self.end_ns, count + 1).round().astype(np.int64)

    def row_names(self) -> list[str]:
        """Return the words for the rows of a table that divides the span evenly."""
        edges = self.of(self.edges(TABLE_ROWS))
        return [f"{start:.4g}–{end:.4g} {self.unit}" for start, end in pairwise(edges)]

    def divisions(self) -> tuple[Ints, Ints]:
        """Return the edges of the rows of such a table, and of the time until arrivals stop."""
        return self.edges(TABLE_ROWS), np.array([0, self.window_ns])

    def window_mark(self) -> list[dict[str, Any]]:
        """Return a rule where arrivals stop, if anything happens afterwards."""
        if self.window_ns >= self.end_ns:
            return []
        at = self.window_ns / self.unit_ns
        place = {"x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1}
        return [{"type": "line", "line": {"color": GRAY, "width": 1.5, "dash": "dot"}, **place}]
