"""The page of a sensitivity: a tornado, or the indices of all factors together."""

from collections.abc import Sequence
from typing import Any

from kvsim.metrics.catalog import metric_of
from kvsim.report.figure import (
    BLUE,
    GRAY,
    ORANGE,
    Chart,
    Key,
    Section,
    axis,
    layout,
    plotly_text,
)
from kvsim.report.shell import render_page
from kvsim.scenario.load import ScenarioFile
from kvsim.studies.sensitivity.answer import (
    indices_sentences,
    indices_table,
    tornado_sentences,
    tornado_table,
)
from kvsim.studies.sensitivity.indices import Indices
from kvsim.studies.sensitivity.tornado import End, Tornado

_ROW_PX = 46
_COLORS = (BLUE, ORANGE)


def build_page(file: ScenarioFile, found: Tornado | Indices, metric: str, command: str) -> str:
    """Return the page as one HTML text; the same result gives the same text."""
    if isinstance(found, Tornado):
        said, chart = tornado_sentences(found, metric), _tornado_chart(found, metric)
    else:
        said, chart = indices_sentences(found, metric), _indices_chart(found, metric)
    section = Section("factors", "Factors", f"What moves {metric}", [chart])
    return render_page(
        "sensitivity.html.j2",
        [chart],
        name=file.base.name,
        question=file.question,
        sentence=said[0],
        details=said[1:],
        drawn=[section],
        command=command,
    )


def _tornado_chart(found: Tornado, metric: str) -> Chart:
    bars = [bar for bar in reversed(found.bars) if bar.reach >= 0]
    names = [plotly_text(bar.factor.label) for bar in bars]
    data = [
        _changes(names, [bar.low for bar in bars], [b.factor.show(b.low.value) for b in bars], 0),
        _changes(names, [bar.high for bar in bars], [b.factor.show(b.high.value) for b in bars], 1),
    ]
    unit = metric_of(metric).unit
    figure = {
        "data": data,
        "layout": layout(
            _ROW_PX * max(len(bars), 2) + 90,
            barmode="overlay",
            bargap=0.35,
            xaxis=axis(
                f"change of {metric}, {unit}", showgrid=True, zeroline=True, zerolinecolor=GRAY
            ),
            yaxis=axis(""),
        ),
    }
    return Chart(
        "tornado",
        tornado_sentences(found, metric)[0].removesuffix("."),
        "How far the figure moves if one factor goes to an end of its range and all others stay. "
        "Lines are 95 % intervals over paired draws: where one spans zero, the effect may be none.",
        f"Bars of {len(bars)} factors, the strongest on top.",
        figure,
        tornado_table(found, metric),
        [Key("at its low end", _COLORS[0]), Key("at its high end", _COLORS[1])],
    )


def _changes(
    names: Sequence[str], ends: Sequence[End], shown: Sequence[str], place: int
) -> dict[str, Any]:
    """Return the bars of one end of each factor, with the intervals of the changes."""
    halves = [end.change.half_width if end.change else None for end in ends]
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(names),
        "x": [end.change.mean if end.change else None for end in ends],
        "text": list(shown),
        "textposition": "none",
        "marker": {"color": _COLORS[place], "opacity": 0.85},
        "error_x": _whiskers([half or 0.0 for half in halves]),
        "hovertemplate": "%{y} %{text}: %{x:+.4g}<extra></extra>",
    }


def _whiskers(halves: Sequence[float]) -> dict[str, Any]:
    """Return intervals to either side of bars."""
    return {"type": "data", "array": list(halves), "color": GRAY, "thickness": 1.5, "width": 5}


def _indices_chart(found: Indices, metric: str) -> Chart:
    rows = list(reversed(found.indices))
    names = [plotly_text(index.factor.label) for index in rows]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": [index.values[name] for index in rows],
            "marker": {"color": _COLORS[place]},
            "error_x": _whiskers([index.confidence.get(name, 0.0) for index in rows]),
            "hovertemplate": f"%{{y}}: {name} %{{x:.3g}}<extra></extra>",
        }
        for place, name in enumerate(found.said)
    ]
    unit = f", {metric_of(metric).unit}" if found.method == "morris" else ""
    height = _ROW_PX * max(len(rows), 2) + 90
    figure = {
        "data": data,
        "layout": layout(
            height, barmode="group", xaxis=axis(f"index{unit}", showgrid=True), yaxis=axis("")
        ),
    }
    keys = [
        Key(f"{name}: {meaning}", _COLORS[place])
        for place, (name, meaning) in enumerate(found.said.items())
    ]
    return Chart(
        "indices",
        indices_sentences(found, metric)[0].removesuffix("."),
        f"Indices of {found.method.capitalize()} over the box of all ranges; lines are 95 % "
        "intervals by bootstrap.",
        f"Bars of {len(rows)} factors, the strongest on top.",
        figure,
        indices_table(found),
        keys,
    )
