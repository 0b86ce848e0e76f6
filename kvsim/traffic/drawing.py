"""What the charts of a log share: lines, and tables cut to a readable length."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvsim.report.figure import BLUE, axis

HEIGHT_PX = 320
TABLE_ROWS = 12


def line(
    x: Sequence[float], y: Sequence[float], color: str = BLUE, width: float = 2
) -> dict[str, Any]:
    """Return a line of a chart."""
    style = {"color": color, "width": width}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": style}


def band(
    x: Sequence[float], low: Sequence[float], high: Sequence[float], color: str
) -> list[dict[str, Any]]:
    """Return the area between two lines."""
    fill = {"fill": "tonexty", "fillcolor": color}
    return [
        line(x, low, width=0) | {"hoverinfo": "skip"},
        line(x, high, width=0) | {"hoverinfo": "skip", **fill},
    ]


def thinned(rows: list[list[str]], most: int = TABLE_ROWS) -> list[list[str]]:
    """Return at most so many rows, evenly chosen, the first and the last among them."""
    kept = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int))
    return [rows[place] for place in kept]


def log_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return a logarithmic axis, labeled at 1, 2 and 5."""
    return axis(f"{title} (logarithmic)", **{"type": "log", "dtick": "D2", **more})
