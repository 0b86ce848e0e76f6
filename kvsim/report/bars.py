"""Stacked horizontal bars, a bar a variant: of what a whole is made, and how large it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Any

from kvsim.report.figure import Key, axis, fill_pattern, panel_axis, panels, plotly_text
from kvsim.report.inputs import Variant

BAR_PX = 46
AROUND_PX = 75  # a panel's heading, and its share of the axis below
LABELED_SHARE = 0.06  # of the longest bar: a shorter piece has no room for its name
HOVER_LETTERS = 52


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of each bar: its name and look, what it means, and its amount in each variant."""

    words: str
    color: str
    pattern: str
    meaning: str
    amounts: Sequence[float]


def stacked(pieces: Sequence[Piece], unit: str, panel: int = 0) -> list[dict[str, Any]]:
    """Return the pieces as bars of a panel; all amounts are in `unit`."""
    totals = [sum(amounts) for amounts in zip(*(piece.amounts for piece in pieces), strict=True)]
    longest = max(totals, default=0.0)
    return [_bars(piece, totals, longest, unit, panel) for piece in pieces]


def _bars(
    piece: Piece, totals: Sequence[float], longest: float, unit: str, panel: int
) -> dict[str, Any]:
    opaque = piece.color.startswith("#")  # else Plotly can't choose a text color for all themes
    named = [opaque and amount > LABELED_SHARE * longest for amount in piece.amounts]
    shares = [
        f"{100 * amount / total:.3g} %" if total else "–"
        for amount, total in zip(piece.amounts, totals, strict=True)
    ]
    meaning = "".join(f"<br>{escape(line)}" for line in wrap(piece.meaning, HOVER_LETTERS))
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(totals))),
        "x": [float(f"{amount:.5g}") for amount in piece.amounts],
        "yaxis": panel_axis(panel),
        "text": [piece.words if shown else "" for shown in named],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "customdata": shares,
        "marker": {
            "color": piece.color,
            "line": {"color": "#ffffff", "width": 1},
            "pattern": fill_pattern(piece.pattern, piece.color),
        },
        "hovertemplate": f"{piece.words}: %{{x:.3~g}} {unit}, %{{customdata}}{meaning}"
        "<extra></extra>",
    }


def bars_layout(
    panel_rows: Mapping[str, Sequence[str]], x_title: str, **x_axis: Any
) -> dict[str, Any]:
    """Return the layout of panels of bars above one another.

    Args:
        panel_rows: What the bars of each panel are called, by its heading; both may be markup.
        x_title: Title of the axis below.
        x_axis: More of it.
    """
    vertical = [
        axis(
            "",
            tickvals=list(range(len(rows))),
            ticktext=list(rows),
            autorange="reversed",
            showgrid=False,
        )
        for rows in panel_rows.values()
    ]
    figure = panels(list(panel_rows), vertical, axis(x_title, rangemode="tozero", **x_axis))
    height = sum(BAR_PX * len(rows) + AROUND_PX for rows in panel_rows.values())
    return figure | {
        "barmode": "stack",
        "height": height,
        "uniformtext": {"mode": "hide", "minsize": 10},
    }


def names_of(variants: Sequence[Variant]) -> list[str]:
    """Return what the bars of variants are called."""
    return [plotly_text(variant.name) for variant in variants]


def keys_of(pieces: Sequence[Piece]) -> list[Key]:
    """Return the legend: pieces that any variant has."""
    return [Key(piece.words, piece.color) for piece in pieces if any(piece.amounts)]
