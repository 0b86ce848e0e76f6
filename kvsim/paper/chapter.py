"""What a chapter of the page holds: printed figures beside ours, charts, and why they differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.metrics.catalog import format_number
from kvsim.report.figure import Chart, Table

HOLDS = {True: "yes", False: "no", None: "–"}

Printed = float | tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure: what the paper (or a claim) says of it, and what kvsim finds.

    Attributes:
        what: Which figure.
        unit: Its unit; empty: a count or a ratio.
        printed: A number, or the ends of a range; None: it says nothing.
        ours: What kvsim finds; None: nothing.
        bounds: Between which values ours has to be; None: it isn't bound.
        why: Where and why both differ, or what a figure rests on.
    """

    what: str
    unit: str
    printed: Printed
    ours: float | None
    bounds: tuple[float, float] | None = None
    why: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether ours is within its bounds; None if it has none."""
        if self.bounds is None:
            return None
        return self.ours is not None and self.bounds[0] <= self.ours <= self.bounds[1]

    @property
    def ratio(self) -> float | None:
        """Ours over the printed number, None for a range."""
        if self.ours is None or not self.printed or isinstance(self.printed, tuple):
            return None
        return self.ours / self.printed

    def row(self) -> list[str]:
        """Return the figure as a row of text, under `HEADER`."""
        ratio = "–" if self.ratio is None else f"{self.ratio:.2f}"
        bounds = "–" if self.bounds is None else _shown(self.bounds, self.unit)
        ours, said = _shown(self.ours, self.unit), _shown(self.printed, self.unit)
        return [self.what, said, ours, ratio, bounds, HOLDS[self.holds], self.why]

    def as_dict(self) -> dict[str, Any]:
        """Return the figure for JSON."""
        return {
            "what": self.what,
            "unit": self.unit,
            "printed": self.printed,
            "ours": self.ours,
            "ratio": self.ratio,
            "bounds": self.bounds,
            "holds": self.holds,
            "why": self.why,
        }


HEADER = (
    "",
    "printed or claimed",
    "kvsim",
    "ratio",
    "has to be",
    "holds",
    "where and why they differ",
)


@dataclass(frozen=True, slots=True)
class Chapter:
    """A part of the page: one figure of the paper, or one question of ours."""

    key: str
    short: str
    title: str
    sentence: str
    findings: Sequence[Finding]
    charts: Sequence[Chart] = ()

    def table(self) -> Table:
        """Return the findings as a table."""
        return Table(HEADER, [finding.row() for finding in self.findings])

    def as_dict(self) -> dict[str, Any]:
        """Return the chapter for JSON: findings, and the numbers of the charts."""
        return {
            "title": self.title,
            "sentence": self.sentence,
            "findings": [finding.as_dict() for finding in self.findings],
            "charts": {
                chart.key: {"title": chart.title, "header": chart.table.header}
                | {"rows": chart.table.rows}
                for chart in self.charts
            },
        }


def within(value: float, share: float) -> tuple[float, float]:
    """Return the bounds of what is within a share of a value."""
    return value * (1 - share), value * (1 + share)


def about(value: float, distance: float) -> tuple[float, float]:
    """Return the bounds of what is within a distance of a value, none of them negative."""
    return max(0.0, value - distance), value + distance


def _shown(value: Printed, unit: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, tuple):
        low, high = value
        text = f"{format_number(low)} to {format_number(high)}"
    else:
        text = format_number(value)
    return f"{text} {unit}" if unit else text
