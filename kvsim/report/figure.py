"""What a chart is, and the look that all charts share: one color for one entity on the page."""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.names import short_name

# The palette of Okabe and Ito (2008), told apart by all common kinds of color vision.
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, GRAY = "#0072B2", "#D55E00", "#CC79A7", "#8A8F98"
SLATE, SILVER, BROWN = "#4A4F57", "#B4BAC2", "#8C5A2B"  # where eight colors don't suffice

# Variants are lines, the base first. Color and dash change together, so that either suffices.
VARIANT_LOOKS = (
    (BLUE, "solid"),
    (VERMILLION, "dash"),
    (GREEN, "dot"),
    (PURPLE, "dashdot"),
    (ORANGE, "longdash"),
    (GRAY, "longdashdot"),
)

PANEL_PX = 210


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of finished text under a header; the first column names the row."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: a line if it has a dash, else an area."""

    words: str
    color: str
    dash: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure that says what it shows: the title is the finding, the definition what it measures.

    `figure` is Plotly's `{"data": [...], "layout": {...}}` in plain Python values; `alt` describes
    it to those who don't see it, and `table` carries its numbers.
    """

    key: str
    title: str
    definition: str
    alt: str
    figure: Mapping[str, Any]
    table: Table
    keys: Sequence[Key] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page that is made of charts; `short` is its name in the navigation."""

    key: str
    short: str
    title: str
    charts: Sequence[Chart] = ()
    sentence: str = ""
    table: Table | None = None
    memory_map: object = None  # what `memory_map.html.j2` shows


def rounded(values: NDArray[np.float64], digits: int) -> list[float]:
    """Return plain floats with few decimals, which keeps the page small."""
    return [float(value) for value in np.round(values, digits)]


def look(place: int) -> tuple[str, str]:
    """Return color and dash of a variant by its place, the base being 0."""
    return VARIANT_LOOKS[place % len(VARIANT_LOOKS)]


def line_style(place: int) -> dict[str, Any]:
    """Return how the line of a variant is drawn."""
    color, dash = look(place)
    return {"color": color, "dash": dash, "width": 2}


def band(
    x: Sequence[float], lows: Sequence[float], highs: Sequence[float], color: str
) -> dict[str, Any]:
    """Return the trace that shades what lies between two lines."""
    return area([*x, *reversed(x)], [*highs, *reversed(lows)], color)


def area(x: Sequence[float | None], y: Sequence[float | None], color: str) -> dict[str, Any]:
    """Return the trace that shades what a line around it encloses; None parts two such lines."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "fill": "toself",
        "fillcolor": color,
        "opacity": 0.18,
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def fill_pattern(shape: str, color: str) -> dict[str, Any]:
    """Return how an area of a color is hatched, for those who don't tell colors apart."""
    return {"shape": shape, "size": 7, "solidity": 0.12, "bgcolor": color, "fgcolor": "#1a1d21"}


def variant_keys(names: Sequence[str]) -> list[Key]:
    """Return the legend of a chart whose lines are variants."""
    return [Key(short_name(name), *look(place)) for place, name in enumerate(names)]


def plotly_text(name: str) -> str:
    """Show a name as written where Plotly would read HTML."""
    return html.escape(short_name(name), quote=False)


def named(name: str, hover: str) -> dict[str, Any]:
    """Return what a hover over a variant's line shows: a template of values, then the name."""
    return {"name": plotly_text(name), "hovertemplate": f"{hover}<extra>%{{fullData.name}}</extra>"}


def script_json(value: Any) -> str:
    """Write data for a page's script: nothing in a name can end its element or start another."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def sentence(words: str) -> str:
    """Begin with a capital letter, as a title does."""
    return words[:1].upper() + words[1:]


def layout(height: int, **more: Any) -> dict[str, Any]:
    """Return the shared layout of a figure; colors of text and grid come from the style sheet."""
    return {
        "height": height,
        "margin": {"l": 66, "r": 20, "t": 30, "b": 46},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hovermode": "closest",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GRAY, "activecolor": BLUE},
        "hoverlabel": {"bgcolor": "#ffffff", "font": {"color": "#1a1d21"}, "namelength": -1},
        "showlegend": False,
        **more,
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title that names the unit.

    Room for labels is measured only where they are words: measuring takes a fifth of the time in
    which a page is drawn.
    """
    return {
        "title": {"text": title, "font": {"size": 13}},
        "automargin": "ticktext" in more,
        "ticklabeloverflow": "allow",
        "zeroline": False,
        **more,
    }


def panels(
    titles: Sequence[str], vertical: Sequence[Mapping[str, Any]], x_axis: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the layout of panels above one another that share one horizontal axis.

    Traces of panel i, counted from the top, belong to `panel_axis(i)`.
    """
    count = len(titles)
    gap = 0.32 / count if count > 1 else 0.0
    height = (1 - gap * (count - 1)) / count
    axes: dict[str, Any] = {"xaxis": {**x_axis, "anchor": panel_axis(count - 1)}}
    headings = []
    for place, (title, y_axis) in enumerate(zip(titles, vertical, strict=True)):
        top = 1 - place * (height + gap)
        axes[f"yaxis{panel_axis(place)[1:]}"] = {**y_axis, "domain": [max(top - height, 0.0), top]}
        headings.append(_heading(title, top))
    return layout(PANEL_PX * count + 76, **axes, annotations=headings)


def panel_axis(place: int) -> str:
    """Return Plotly's name of a panel's vertical axis."""
    return "y" if place == 0 else f"y{place + 1}"


def _heading(title: str, top: float) -> dict[str, Any]:
    at = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top}
    return {"text": f"<b>{title}</b>", "showarrow": False, "yanchor": "bottom", **at}
