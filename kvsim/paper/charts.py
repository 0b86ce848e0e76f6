"""Charts that several chapters draw: bars beside each other, and lines over one quantity."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.metrics.catalog import format_number
from kvsim.report.figure import (
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Chart,
    Key,
    Table,
    axis,
    layout,
)

HEIGHT_PX = 380
COLORS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, GRAY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")

Series = Mapping[str, Sequence[float]]


def bars(
    key: str,
    title: str,
    definition: str,
    unit: str,
    groups: Sequence[str],
    series: Series,
    stacked: bool = False,
) -> Chart:
    """Draw bars, one for each series in each group, beside or upon each other.

    Names of groups may have line breaks (`<br>`).
    """
    data = [
        {
            "type": "bar",
            "name": name,
            "x": list(groups),
            "y": list(values),
            "marker": {"color": COLORS[place % len(COLORS)]},
            "hovertemplate": f"%{{x}}: %{{y:.3g}} {unit}<extra>{name}</extra>",
        }
        for place, (name, values) in enumerate(series.items())
    ]
    mode = "stack" if stacked else "group"
    drawn = layout(HEIGHT_PX, xaxis=axis(""), yaxis=axis(unit, rangemode="tozero"), barmode=mode)
    keys = [Key(name, COLORS[place % len(COLORS)]) for place, name in enumerate(series)]
    rows = _rows([group.replace("<br>", ", ") for group in groups], series)
    table = Table(["", *series], rows)
    return Chart(
        key, title, definition, f"Bars. {title}.", {"data": data, "layout": drawn}, table, keys
    )


def lines(
    key: str,
    title: str,
    definition: str,
    axes: tuple[Mapping[str, Any], Mapping[str, Any]],
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    note: str = "",
) -> Chart:
    """Draw curves by their points, x and y each; `axes` as `report.figure.axis` makes them."""
    data: list[dict[str, Any]] = []
    for place, (name, (x, y)) in enumerate(curves.items()):
        color, dash = COLORS[place % len(COLORS)], DASHES[place % len(DASHES)]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": list(x),
                "y": list(y),
                "line": {"color": color, "dash": dash, "width": 2},
                "hovertemplate": f"%{{x:.4g}}: %{{y:.4g}}<extra>{name}</extra>",
            }
        )
    keys = [
        Key(name, COLORS[i % len(COLORS)], DASHES[i % len(DASHES)]) for i, name in enumerate(curves)
    ]
    rows = [
        [name, format_number(x), format_number(y)]
        for name, points in curves.items()
        for x, y in zip(*points, strict=True)
    ]
    header = ["", str(axes[0]["title"]["text"]), str(axes[1]["title"]["text"])]
    figure = {"data": data, "layout": layout(HEIGHT_PX, xaxis=dict(axes[0]), yaxis=dict(axes[1]))}
    alt = f"Lines. {title}."
    return Chart(key, title, definition, alt, figure, Table(header, rows), keys, note)


def _rows(groups: Sequence[str], series: Series) -> list[list[str]]:
    return [
        [group, *(format_number(values[i]) for values in series.values())]
        for i, group in enumerate(groups)
    ]
