"""Charts of conversations."""

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.catalog import format_number, percent
from kvsim.report.drawing import HEIGHT_PX, line, log_axis, thinned
from kvsim.report.figure import Chart, Table, axis, layout, rounded
from kvsim.traffic.sessions import turns_and_gaps
from kvsim.traffic.summary import Traffic
from kvsim.units import NS_PER_S, format_duration

SHORTEST_S = 1e-3  # a logarithmic axis has no zero

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def session_charts(traffic: Traffic) -> list[Chart]:
    """Show turns of sessions and the time between them; nothing if no session is known."""
    found = turns_and_gaps(traffic.log)
    if found is None or traffic.sessions is None:
        return []
    turns, gaps_ns = found
    title = (
        f"{traffic.sessions.sessions:,} sessions of {format_number(traffic.sessions.turns_mean)} "
        f"turns on average; {percent(traffic.sessions.single_turn_share)} have one"
    )
    charts = [
        _tail_chart(
            "chart-turns",
            title,
            "Share of the sessions with at least so many turns.",
            "turns",
            turns,
        )
    ]
    if len(gaps_ns):
        gap_s = np.maximum(gaps_ns / NS_PER_S, SHORTEST_S)
        title = (
            f"Half of the turns come within {format_duration(float(np.median(gap_s)))} of the last"
        )
        what = "Share of the further turns that arrive at least so long after the turn before."
        charts.append(_tail_chart("chart-gaps", title, what, "seconds", gap_s))
    return charts


def _tail_chart(key: str, title: str, definition: str, unit: str, values: Ints | Floats) -> Chart:
    points = np.unique(np.percentile(values, np.linspace(0, 100, 201), method="nearest"))
    ordered = np.sort(values)
    shares = 100 * (1 - np.searchsorted(ordered, points) / len(values))
    x, y = [float(f"{point:.5g}") for point in points], rounded(shares, 3)
    rows = [[f"{point:,.5g}", f"{share:.3g} %"] for point, share in zip(x, y, strict=True)]
    drawn = line(x, y) | {"hovertemplate": f"%{{y:.3g}} % at least %{{x:,}} {unit}<extra></extra>"}
    drawn["line"] |= {"shape": "vh"}
    return Chart(
        key=key,
        title=title,
        definition=definition,
        alt=f"A falling curve. {title}.",
        figure={
            "data": [drawn | ({"mode": "lines+markers"} if len(x) == 1 else {})],
            "layout": layout(
                HEIGHT_PX,
                xaxis=log_axis(unit, x),
                yaxis=axis("% at or above", range=[0, 102]),
            ),
        },
        table=Table([unit.capitalize(), "At or above"], thinned(rows)),
    )
