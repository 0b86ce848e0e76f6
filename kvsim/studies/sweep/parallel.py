"""Parallel coordinates: a line for each point across its axes and figures, and filters for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.catalog import METRICS, format_figure
from kvsim.report.figure import BLUE, GRAY, ORANGE, Chart, Key, Table, axis, layout, plotly_text
from kvsim.studies.sweep.answer import ranked
from kvsim.studies.sweep.names import value_text
from kvsim.studies.sweep.tables import brief, point_rows
from kvsim.studies.sweep.view import View, are_numbers, scale_of, thinned

KEY = "chart-parallel"
MOST_LINES = 400
_HEIGHT_PX = 420


@dataclass(frozen=True, slots=True)
class Dimension:
    """One upright axis.

    Attributes:
        name: Short name.
        heights: Where each line crosses, from 0 to 1; NaN where a point has no value.
        values: What a filter compares: numbers, or places among `choices`.
        choices: Words for the values; none if they are numbers.
        lowest: What stands at the foot.
        highest: What stands at the head.
    """

    name: str
    heights: NDArray[np.float64]
    values: NDArray[np.float64]
    choices: Sequence[str]
    lowest: str
    highest: str

    @property
    def bounds(self) -> tuple[str, str]:
        """Least and largest value, as a filter takes them."""
        return f"{np.nanmin(self.values):.3g}", f"{np.nanmax(self.values):.3g}"


def parallel_chart(view: View) -> tuple[Chart, list[Dimension]] | None:
    """Return the chart and what can be filtered; None if there is nothing to tell apart."""
    order = ranked(view.answer)
    shown = [i for i in order if not view.answer.results.failed[i]]
    picked = [shown[i] for i in thinned(len(shown), MOST_LINES)]
    picked = list(dict.fromkeys([*picked, *view.answer.front]))
    dimensions = [one for one in _dimensions(view, picked) if one is not None]
    if len(picked) < 2 or len(dimensions) < 2:
        return None
    names = [plotly_text(one.name) for one in dimensions]
    drawn = layout(
        _HEIGHT_PX,
        xaxis=axis(
            "", tickvals=list(range(len(names))), ticktext=names, range=[-0.5, len(names) - 0.5]
        ),
        yaxis=axis("", visible=False, range=[-0.12, 1.12]),
        annotations=[*_ends(dimensions)],
    )
    header, rows = point_rows(view.answer, picked)
    chart = Chart(
        key=KEY,
        title=_finding(view),
        definition="A line is a point: from left to right what was varied, then what came of it. "
        "What spreads widely is drawn in equal ratios. Filters below leave some of them.",
        alt="Parallel coordinates: lines over the axes and figures of the sweep.",
        figure={"data": _traces(view, picked, dimensions), "layout": drawn},
        table=Table(header, rows),
        keys=_keys(view),
        note=_note(len(picked), len(shown)),
    )
    return chart, dimensions


def _note(drawn: int, of: int) -> str:
    return f"{drawn:,} of {of:,} points are drawn, evenly picked by rank." if drawn < of else ""


def _finding(view: View) -> str:
    """Say to which values of the axes the SLO confines the points."""
    answer = view.answer
    if not answer.results.is_judged or answer.best is None:
        return "No point meets the SLO" if answer.results.is_judged else "All points that ran"
    parts = []
    for path, name in view.names.items():
        values = view.values_of(path)
        if not are_numbers(values):
            continue
        settings = enumerate(answer.results.settings)
        good = [point.changes[path] for i, point in settings if answer.eligible[i]]
        if set(good) != set(values):
            ends = " to ".join(dict.fromkeys(map(value_text, (min(good), max(good)))))
            parts.append(f"{name} {ends}")
    if not parts:
        return "Points that meet the SLO are found at each value of each axis"
    return f"Points that meet the SLO have {', '.join(parts)}"


def _dimensions(view: View, picked: Sequence[int]) -> list[Dimension | None]:
    results = view.answer.results
    found = []
    if len(results.sweep.variants) > 1:
        found.append(_of_values("variant", [results.settings[i].variant for i in picked]))
    for path, name in view.names.items():
        found.append(_of_values(name, [results.settings[i].changes[path] for i in picked]))
    for metric in view.answer.metrics:
        found.append(_of_metric(metric, results.means(metric)[list(picked)]))
    return found


def _of_values(name: str, values: Sequence[Any]) -> Dimension | None:
    distinct = list(dict.fromkeys(value_text(value) for value in values))
    if len(distinct) < 2:
        return None
    if are_numbers(values):
        numbers = np.array(values, dtype=np.float64)
        ends = (value_text(min(values)), value_text(max(values)))
        return Dimension(name, _heights(numbers), numbers, (), *ends)
    places = np.array([float(distinct.index(value_text(value))) for value in values])
    return Dimension(name, _heights(places), places, distinct, distinct[0], distinct[-1])


def _of_metric(metric: str, values: NDArray[np.float64]) -> Dimension | None:
    known = values[~np.isnan(values)]
    if not len(known) or known.min() == known.max():
        return None
    ends = (format_figure(metric, float(end)) for end in (known.min(), known.max()))
    unit = ", s" if METRICS[metric].unit == "s" else ""
    return Dimension(f"{brief(metric)}{unit}", _heights(values), values, (), *ends)


def _heights(values: NDArray[np.float64]) -> NDArray[np.float64]:
    lowest, highest = float(np.nanmin(values)), float(np.nanmax(values))
    if scale_of((lowest, highest)) == "log":
        values, lowest, highest = np.log(values), np.log(lowest), np.log(highest)
    heights: NDArray[np.float64] = (values - lowest) / (highest - lowest)
    return heights


def _traces(
    view: View, picked: Sequence[int], dimensions: Sequence[Dimension]
) -> list[dict[str, Any]]:
    """Return one trace for lines that miss the SLO, one for those that meet it, one for the best.

    Lines of a trace are parted by gaps. `meta` has the values, line by line, for the filters.
    """
    groups = [
        (GRAY, 0.35, [n for n, i in enumerate(picked) if not view.answer.eligible[i]]),
        (BLUE, 0.35, [n for n, i in enumerate(picked) if view.answer.eligible[i]]),
        (ORANGE, 1.0, [n for n, i in enumerate(picked) if i == view.answer.best]),
    ]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [x for _ in lines for x in (*range(len(dimensions)), None)],
            "y": [y for n in lines for y in (*_row(dimensions, n), None)],
            "line": {"color": color, "width": 3 if opacity == 1 else 1.2},
            "opacity": opacity,
            "hoverinfo": "skip",
            "meta": [[_plain(one.values[n]) for one in dimensions] for n in lines],
        }
        for color, opacity, lines in groups
    ]


def _row(dimensions: Sequence[Dimension], line: int) -> list[float | None]:
    return [_plain(one.heights[line]) for one in dimensions]


def _plain(value: Any) -> float | None:
    return None if np.isnan(value) else float(f"{float(value):.5g}")


def _ends(dimensions: Sequence[Dimension]) -> list[dict[str, Any]]:
    ends = []
    for x, one in enumerate(dimensions):
        for words, y, anchor in ((one.lowest, -0.01, "top"), (one.highest, 1.01, "bottom")):
            at = {"x": x, "y": y, "yanchor": anchor, "showarrow": False}
            ends.append({"text": plotly_text(words), "font": {"size": 11}, **at})
    return ends


def _keys(view: View) -> list[Key]:
    judged = view.answer.results.is_judged
    keys = [Key("meets the SLO" if judged else "ran", BLUE, "solid")]
    keys += [Key("misses it", GRAY, "solid")] if judged else []
    return [*keys, Key("the choice", ORANGE, "solid")] if view.answer.best is not None else keys
