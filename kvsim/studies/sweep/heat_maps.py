"""Heat maps: a figure over two axes, with its number in each cell."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.catalog import METRICS, format_figure, format_number
from kvsim.report.figure import SILVER, SKY, SLATE, Chart, Key, Table, axis, layout, sentence
from kvsim.studies.sweep.expand import VARIANT
from kvsim.studies.sweep.names import axis_label, metric_label, value_text
from kvsim.studies.sweep.view import View, thinned

MOST_CELLS = (25, 40)  # across and up
MOST_MAPS = 8
_CELL_PX = 26
_PALE = "#DDF0FA"  # a tint of SKY: numbers can be read on both


@dataclass(frozen=True)
class HeatMap:
    """A metric over two axes.

    Attributes:
        view: On the sweep.
        metric: Whose means stand in the cells.
        variant: Of the scenario.
        across: Path of the horizontal axis.
        up: Path of the upright one.
    """

    view: View
    metric: str
    variant: str
    across: str
    up: str

    @property
    def x(self) -> list[float]:
        """Values across, evenly picked if there are many."""
        values = self.view.grid[self.across]
        return [values[i] for i in thinned(len(values), MOST_CELLS[0])]

    @property
    def y(self) -> list[float]:
        """Values up, evenly picked if there are many."""
        values = self.view.grid[self.up]
        return [values[i] for i in thinned(len(values), MOST_CELLS[1])]

    @cached_property
    def means(self) -> NDArray[np.float64]:
        """Mean of the metric for each setting."""
        return self.view.answer.results.means(self.metric)

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """Whether a setting counts, since it meets the SLO, and has a value."""
        return self.view.answer.eligible & ~np.isnan(self.means)

    @cached_property
    def places(self) -> list[list[int | None]]:
        """The setting of each cell, row by row; None where the sweep has none."""
        return [
            [self.view.at({VARIANT: self.variant, self.across: a, self.up: b}) for a in self.x]
            for b in self.y
        ]

    def cells(self, show: Callable[[int], Any], nothing: Any = None) -> list[list[Any]]:
        """Return what `show` makes of the setting in each cell, row by row."""
        return [[nothing if place is None else show(place) for place in row] for row in self.places]

    def shown(self) -> list[int]:
        """Return the settings in the cells."""
        return [place for row in self.places for place in row if place is not None]

    def good(self) -> list[float]:
        """Return the values of the cells that count."""
        return [float(self.means[place]) for place in self.shown() if self.known[place]]


def heat_maps(view: View) -> list[Chart]:
    """Return a map of each shown metric for each variant; none without two axes of numbers."""
    if len(view.grid) < 2:
        return []
    up, across = list(view.grid)[:2]  # the longer one stands up: cells are wide
    variants = view.answer.results.sweep.variants
    maps = [HeatMap(view, m, v, across, up) for m in view.answer.metrics for v in variants]
    return [_chart(one, place) for place, one in enumerate(maps[:MOST_MAPS])]


def _chart(one: HeatMap, place: int) -> Chart:
    view = one.view
    factor, unit = _unit(one)
    several = len(view.answer.results.sweep.variants) > 1
    title = sentence(_finding(one) + (f", {one.variant}" if several else ""))
    words = [f"In {unit}. {METRICS[one.metric].description}"]
    if others := view.else_words((one.across, one.up, VARIANT)):
        words.append(sentence(others))
    drawn = layout(
        max(_CELL_PX * len(one.y), 120) + 90,
        xaxis=axis(axis_label(view.names, one.across), type="category"),
        yaxis=axis(axis_label(view.names, one.up), type="category"),
    )
    reduced = len(one.x) < len(view.grid[one.across]) or len(one.y) < len(view.grid[one.up])
    return Chart(
        key=f"chart-map-{place}",
        title=title,
        definition=". ".join(words) + ".",
        alt=f"A heat map. {title}.",
        figure={"data": _layers(one, factor), "layout": drawn},
        table=_table(one, factor),
        keys=_keys(one),
        note="Evenly picked rows and columns; the table file has all." if reduced else "",
    )


def _unit(one: HeatMap) -> tuple[float, str]:
    """Return by what values are multiplied to be read with ease, and their unit then."""
    unit = METRICS[one.metric].unit
    return (1e3, "ms") if unit == "s" and max(one.good(), default=1.0) < 1 else (1.0, unit)


def _finding(one: HeatMap) -> str:
    """Say which values the cells take that count."""
    good, label = one.good(), metric_label(one.metric)
    judged = one.view.answer.results.is_judged
    if not good:
        return f"{label}: no point here meets the SLO" if judged else f"{label}: nothing to show"
    lowest, highest = (format_figure(one.metric, value) for value in (min(good), max(good)))
    values = lowest if lowest == highest else f"{lowest} to {highest}"
    return f"{label} is {values}{' where the SLO is met' if judged else ''}"


def _layers(one: HeatMap, factor: float) -> list[dict[str, Any]]:
    """Return the colored cells, and the gray ones: points that miss the SLO, or failed."""
    means, known, failed = one.means, one.known, one.view.answer.results.failed
    x, y = ([value_text(value) for value in each] for each in (one.x, one.y))
    shown = {
        "type": "heatmap",
        "x": x,
        "y": y,
        "xgap": 1,
        "ygap": 1,
        "showscale": False,
        "texttemplate": "%{text}",  # and there is no scale, since the numbers are in the cells
        "hovertemplate": "%{x}, %{y}: %{text}<extra></extra>",
    }
    colored = {
        "z": one.cells(lambda i: float(f"{means[i] * factor:.6g}") if known[i] else None),
        "text": one.cells(lambda i: _text(one, i, factor) if known[i] else "", ""),
        "colorscale": [[0, _PALE], [1, SKY]],
    }
    gray = {
        "z": one.cells(lambda i: None if known[i] else int(failed[i])),
        "text": one.cells(lambda i: "" if known[i] else _text(one, i, factor), ""),
        "colorscale": [[0, SILVER], [1, SLATE]],
        "zmin": 0,
        "zmax": 1,
    }
    return [shown | layer for layer in (colored, gray) if _has_any(layer["z"])]


def _has_any(rows: Any) -> bool:
    return any(value is not None for row in rows for value in row)


def _text(one: HeatMap, place: int, factor: float) -> str:
    value = float(one.means[place]) * factor
    if np.isnan(value):
        return "×"
    star = "★ " if place == one.view.answer.best else ""
    return star + format_number(float(f"{value:.3g}"))


def _keys(one: HeatMap) -> list[Key]:
    answer = one.view.answer
    places = one.shown()
    judged, failed = answer.results.is_judged, answer.results.failed
    keys = [Key("meets the SLO; darker is more" if judged else "darker is more", SKY)]
    if any(not answer.eligible[i] and not failed[i] for i in places):
        keys.append(Key("misses it", SILVER))
    if any(failed[i] for i in places):
        keys.append(Key("× could not be simulated", SLATE))
    return keys


def _table(one: HeatMap, factor: float) -> Table:
    names = one.view.names
    corner = f"{names[one.up]} ╲ {names[one.across]}"
    cells = one.cells(lambda i: _text(one, i, factor), "–")
    rows = [[value_text(b), *row] for b, row in zip(one.y, cells, strict=True)]
    return Table([corner, *map(value_text, one.x)], rows)
