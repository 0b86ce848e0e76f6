"""Heat maps: a figure over two axes, with its number in each cell."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvsim.metrics.catalog import METRICS, format_figure, format_number
from kvsim.report.figure import BLUE, SILVER, SKY, SLATE, Chart, Key, Table, axis, layout, sentence
from kvsim.studies.sweep.expand import VARIANT
from kvsim.studies.sweep.names import axis_label, metric_label, value_text
from kvsim.studies.sweep.view import View, thinned

MOST_CELLS = (25, 40)  # across and up
_MOST_MAPS = 8
_CELL_PX = 24


def heat_maps(view: View) -> list[Chart]:
    """Return a map of each shown metric for each variant; none without two axes of numbers."""
    if len(view.grid) < 2:
        return []
    up, across = list(view.grid)[:2]  # the longer one stands up: cells are wide
    variants = view.answer.results.sweep.variants
    maps = [
        _map(view, metric, variant, (across, up), number)
        for number, (metric, variant) in enumerate(
            (metric, variant) for metric in view.answer.metrics for variant in variants
        )
    ]
    return maps[:_MOST_MAPS]


def _map(view: View, metric: str, variant: str, paths: tuple[str, str], number: int) -> Chart:
    across, up = paths
    x = [view.grid[across][i] for i in thinned(len(view.grid[across]), MOST_CELLS[0])]
    y = [view.grid[up][i] for i in thinned(len(view.grid[up]), MOST_CELLS[1])]
    cells = [[view.at({VARIANT: variant, across: a, up: b}) for a in x] for b in y]
    several = len(view.answer.results.sweep.variants) > 1
    title = sentence(f"{_finding(view, metric, cells)}{f', {variant}' if several else ''}")
    drawn = layout(
        max(_CELL_PX * len(y), 120) + 90,
        xaxis=axis(axis_label(view.names, across), type="category"),
        yaxis=axis(axis_label(view.names, up), type="category"),
    )
    left_out = len(x) < len(view.grid[across]) or len(y) < len(view.grid[up])
    return Chart(
        key=f"chart-map-{number}",
        title=title,
        definition=" ".join((METRICS[metric].description + ".", view.else_words((*paths, VARIANT))))
        .strip()
        .rstrip(".")
        + ".",
        alt=f"A heat map. {title}.",
        figure={"data": list(_layers(view, metric, cells, (x, y))), "layout": drawn},
        table=_table(view, metric, cells, (x, y), paths),
        keys=_keys(view, cells),
        note="Evenly picked rows and columns; the table file has all." if left_out else "",
    )


Cells = Sequence[Sequence[int | None]]


def _finding(view: View, metric: str, cells: Cells) -> str:
    """Say which values the eligible cells take."""
    means, eligible = view.answer.results.means(metric), view.answer.eligible
    places = [i for row in cells for i in row if i is not None]
    good = [float(means[i]) for i in places if eligible[i] and not np.isnan(means[i])]
    label = metric_label(metric)
    where = " where the SLO is met" if view.answer.results.is_judged else ""
    if not good:
        return f"{label}: no point here meets the SLO" if where else f"{label}: nothing to show"
    lowest, highest = (format_figure(metric, value) for value in (min(good), max(good)))
    if lowest == highest:
        return f"{label} is {lowest}{where}"
    return f"{label} is {lowest} to {highest}{where}"


def _layers(
    view: View, metric: str, cells: Cells, values: tuple[list[float], list[float]]
) -> Iterator[dict[str, Any]]:
    """Yield the colored cells, then the gray ones: points that miss the SLO, or failed."""
    means, eligible = view.answer.results.means(metric), view.answer.eligible
    failed = view.answer.results.failed()
    x, y = ([value_text(value) for value in each] for each in values)
    shown = {"type": "heatmap", "x": x, "y": y, "xgap": 1, "ygap": 1, "texttemplate": "%{text}"}

    def known(place: int | None) -> bool:
        return place is not None and bool(eligible[place]) and not np.isnan(means[place])

    yield shown | {
        "z": [[_rounded(means[i]) if known(i) else None for i in row] for row in cells],
        "text": [[_cell_text(view, metric, i) if known(i) else "" for i in row] for row in cells],
        "colorscale": [[0, SKY], [1, BLUE]],
        "colorbar": {"title": {"text": METRICS[metric].unit}, "thickness": 12},
        "hovertemplate": "%{x}, %{y}: %{text}<extra></extra>",
    }
    gray = [[None if i is None or known(i) else int(failed[i]) for i in row] for row in cells]
    if any(each is not None for row in gray for each in row):
        yield shown | {
            "z": gray,
            "zmin": 0,
            "zmax": 1,
            "text": [
                ["" if i is None or known(i) else _cell_text(view, metric, i) for i in row]
                for row in cells
            ],
            "colorscale": [[0, SILVER], [1, SLATE]],
            "showscale": False,
            "hovertemplate": "%{x}, %{y}: %{text}, not met<extra></extra>",
        }


def _cell_text(view: View, metric: str, place: int | None) -> str:
    if place is None:
        return ""
    value = float(view.answer.results.means(metric)[place])
    star = "★ " if place == view.answer.best else ""
    return "×" if np.isnan(value) else star + format_number(float(f"{value:.3g}"))


def _keys(view: View, cells: Cells) -> list[Key]:
    places = [i for row in cells for i in row if i is not None]
    eligible, failed = view.answer.eligible, view.answer.results.failed()
    judged = view.answer.results.is_judged
    keys = [Key("meets the SLO; darker is more" if judged else "darker is more", BLUE)]
    if any(not eligible[i] and not failed[i] for i in places):
        keys.append(Key("misses it", SILVER))
    if any(failed[i] for i in places):
        keys.append(Key("× could not be simulated", SLATE))
    return keys


def _table(
    view: View,
    metric: str,
    cells: Cells,
    values: tuple[list[float], list[float]],
    paths: tuple[str, str],
) -> Table:
    x, y = values
    corner = f"{view.names[paths[1]]} ╲ {view.names[paths[0]]}"
    rows = [
        [value_text(b), *(_cell_text(view, metric, i) or "–" for i in row)]
        for b, row in zip(y, cells, strict=True)
    ]
    return Table([corner, *map(value_text, x)], rows)


def _rounded(value: Any) -> float:
    return float(f"{float(value):.6g}")
