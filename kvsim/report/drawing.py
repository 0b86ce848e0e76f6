"""What charts of requests share: lines, logarithmic axes, tables cut to a readable length."""

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.catalog import format_number
from kvsim.report.figure import BLUE, axis

HEIGHT_PX = 320
TABLE_ROWS = 12
MOST_LABELS = 6
NONE = "–"
MOST_TOLD = 3


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


def log_axis(
    title: str, values: Sequence[float] | NDArray[Any], most_labels: int = MOST_LABELS
) -> dict[str, Any]:
    """Return a logarithmic axis, with as few labels as fit a small screen."""
    drawn = [float(value) for value in values if value > 0] or [1.0]
    labeled = log_ticks(min(drawn), max(drawn), most_labels)
    names = [short_number(value) for value in labeled]
    return axis(f"{title} (logarithmic)", type="log", tickvals=labeled, ticktext=names)


def log_ticks(low: float, high: float, most: int = MOST_LABELS) -> list[float]:
    """Return powers of ten in a range, their 2 and 5 too if they are few enough, at most `most`."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    fine = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    inside = [value for value in fine if low <= value <= high]
    if len(inside) <= most:
        return inside
    tens = [value for value in fine[::3] if low <= value <= high]
    return tens[:: ceil(len(tens) / most)]


def short_number(value: float) -> str:
    """Write the label of a tick: `0.5`, `200`, `10 k`, `5 M`."""
    scales = ((1e9, " G"), (1e6, " M"), (1e3, " k"))
    size, suffix = next((scale for scale in scales if value >= scale[0]), (1.0, ""))
    return f"{value / size:g}{suffix}"


def number(value: float | None, unit: str = "") -> str:
    """Show a number with its unit, a dash for none."""
    return NONE if value is None else f"{format_number(value)}{unit}"


def told(parts: Sequence[str], between: str = "; ") -> str:
    """Join what is said of variants, the base first; of many the others are left to the table."""
    if len(parts) <= MOST_TOLD + 1:
        return between.join(parts)
    others = f"{len(parts) - MOST_TOLD} others in the table"
    return between.join([*parts[:MOST_TOLD], others])
