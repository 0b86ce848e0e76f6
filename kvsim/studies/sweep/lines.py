"""Lines: figures along one axis, with bands where there are replications."""

from collections.abc import Iterator, Sequence
from typing import Any

from kvsim.metrics.catalog import METRICS, format_figure
from kvsim.names import short_name
from kvsim.report.figure import (
    VARIANT_LOOKS,
    Chart,
    Key,
    Table,
    axis,
    band,
    layout,
    look,
    plotly_text,
    sentence,
)
from kvsim.statistics import Interval
from kvsim.studies.sweep.expand import VARIANT
from kvsim.studies.sweep.names import axis_label, metric_label, value_text
from kvsim.studies.sweep.view import View, scale_of, thinned

HEIGHT_PX = 380
_MOST_POINTS = 200  # of a line
Line = tuple[str, list[tuple[float, Interval]]]  # its name, and the figure at each value


def lines(view: View) -> list[Chart]:
    """Return a chart of each shown metric along the longest axis of numbers; none without one."""
    if not view.grid:
        return []
    path, other = [*view.grid, None][0], _second(view)
    charts = (
        _chart(view, metric, str(path), other, number)
        for number, metric in enumerate(view.answer.metrics)
    )
    return [chart for chart in charts if chart is not None]


def _second(view: View) -> str | None:
    """Return what tells the lines apart: variants, or the second axis."""
    if len(view.answer.results.sweep.variants) > 1:
        return VARIANT
    others = [path for path in view.names if path != next(iter(view.grid))]
    several = [path for path in others if len(view.values_of(path)) > 1]
    return max(several, key=lambda path: path in view.grid, default=None)


def _chart(view: View, metric: str, path: str, other: str | None, number: int) -> Chart | None:
    drawn = [line for line in _lines(view, metric, path, other) if line[1]]
    if not drawn:
        return None
    chosen = view.answer.results.settings[view.choice]
    value = chosen.variant if other == VARIANT else chosen.changes[other] if other else None
    main = next((line for line in drawn if line[0] == value_text(value)), drawn[0])
    title = _finding(view, metric, path, main, other)
    over = axis(axis_label(view.names, path), type=scale_of(view.grid[path]))
    data = [trace for place, line in enumerate(drawn) for trace in _traces(metric, place, line)]
    bounds = [b for _, points in drawn for _, f in points for b in (f.mean, f.low) if b is not None]
    up = axis(f"{METRICS[metric].label}, {METRICS[metric].unit}", type=scale_of(bounds))
    return Chart(
        key=f"chart-line-{number}",
        title=title,
        definition=_definition(view, metric, path, other),
        alt=f"Lines. {title}.",
        figure={
            "data": data,
            "layout": layout(HEIGHT_PX, xaxis=over, yaxis=up),
        },
        table=_table(view, metric, path, other, drawn),
        keys=_keys(view, other, drawn),
        note=_note(view, path, other, len(drawn)),
    )


def _note(view: View, path: str, other: str | None, drawn: int) -> str:
    """Say what is left out of a chart of so many lines."""
    values = [] if other is None else view.answer.results.sweep.variants
    values = view.values_of(other) if other and other != VARIANT else values
    words = [f"{drawn} of {len(values):,} lines are drawn."] if drawn < len(values) else []
    if len(view.grid[path]) > _MOST_POINTS:
        words.append(f"A line has {_MOST_POINTS} of {len(view.grid[path]):,} points.")
    return " ".join(words)


def _lines(view: View, metric: str, path: str, other: str | None) -> Iterator[Line]:
    for value in _values_of_lines(view, other):
        points = []
        grid = view.grid[path]
        for x in (grid[i] for i in thinned(len(grid), _MOST_POINTS)):
            place = view.at({path: x} | ({other: value} if other else {}))
            found = None if place is None else view.answer.results.interval(place, metric)
            if found is not None:
                points.append((x, found))
        yield value_text(value), points


def _values_of_lines(view: View, other: str | None) -> Sequence[Any]:
    """Return the values that get a line of their own, the choice's among them."""
    if other is None:
        return [None]
    if other == VARIANT:
        return view.answer.results.sweep.variants[: len(VARIANT_LOOKS)]
    values = view.grid.get(other) or view.values_of(other)
    chosen = view.answer.results.settings[view.choice].changes[other]
    wanted = {*thinned(len(values), len(VARIANT_LOOKS) - 1), values.index(chosen)}
    return [values[place] for place in sorted(wanted)]


def _finding(view: View, metric: str, path: str, line: Line, other: str | None) -> str:
    (first, start), (last, end) = line[1][0], line[1][-1]
    label, name = metric_label(metric), view.names[path]
    where = "" if other is None else f", {_named(view, other, line[0])}"
    if len(line[1]) == 1:
        words = f"{label} is {format_figure(metric, start.mean)} at {name} {value_text(first)}"
    else:
        values = f"{format_figure(metric, start.mean)} to {format_figure(metric, end.mean)}"
        words = f"{label} goes from {values} as {name} goes from {value_text(first)} to "
        words += value_text(last)
    return sentence(words + where)


def _named(view: View, other: str, value: str) -> str:
    return value if other == VARIANT else f"{view.names[other]} {value}"


def _definition(view: View, metric: str, path: str, other: str | None) -> str:
    replications = view.answer.results.sweep.replications
    parts = [METRICS[metric].description]
    if words := view.else_words([path, *([other] if other else [])]):
        parts.append(sentence(words))
    parts.append(
        f"Lines are means of {replications} replications, bands their 95 % intervals"
        if replications > 1
        else "One replication a point: nothing is known of its uncertainty"
    )
    return ". ".join(parts) + "."


def _traces(metric: str, place: int, line: Line) -> Iterator[dict[str, Any]]:
    """Yield the band of a line, if there is one, and the line."""
    color, dash = look(place)
    name, points = line
    x = [value for value, _ in points]
    bounds = [(found.low, found.high) for _, found in points]
    if all(low is not None for low, _ in bounds):
        lows, highs = ([_rounded(bound) for bound in each] for each in zip(*bounds, strict=True))
        yield band(x, lows, highs, color)
    yield {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plotly_text(name),
        "x": x,
        "y": [_rounded(found.mean) for _, found in points],
        "line": {"color": color, "dash": dash, "width": 2},
        "marker": {"color": color, "size": 6},
        "hovertemplate": f"%{{x}}: %{{y:.4g}} {METRICS[metric].unit}"
        "<extra>%{fullData.name}</extra>",
    }


def _keys(view: View, other: str | None, drawn: Sequence[Line]) -> list[Key]:
    if other is None:
        return []
    return [
        Key(short_name(_named(view, other, name)), *look(place))
        for place, (name, _) in enumerate(drawn)
    ]


def _table(view: View, metric: str, path: str, other: str | None, drawn: Sequence[Line]) -> Table:
    header = [view.names[path], *(_named(view, other, n) if other else "mean" for n, _ in drawn)]
    columns = [dict(points) for _, points in drawn]
    xs = sorted({x for points in columns for x in points})
    rows = [[value_text(x), *(_cell(metric, points.get(x)) for points in columns)] for x in xs]
    return Table(header, rows)


def _cell(metric: str, found: Interval | None) -> str:
    if found is None:
        return "–"
    half = found.half_width
    mean = format_figure(metric, found.mean)
    return mean if half is None else f"{mean} ± {format_figure(metric, half)}"


def _rounded(value: Any) -> float:
    return float(f"{float(value):.6g}")
