"""Charts of a comparison: how much each figure differs, and request by request."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvsim.compare.change import Change
from kvsim.compare.figures import Against
from kvsim.compare.pairs import shares
from kvsim.compare.parts import Floats
from kvsim.compare.tables import SHARE_HEADER, apart, better, difference_table, share_cells
from kvsim.metrics.catalog import metric_of, percent
from kvsim.names import short_name
from kvsim.report.drawing import log_axis
from kvsim.report.figure import GRAY, Chart, Key, Table, axis, layout, look, named, rounded
from kvsim.report.sections import times
from kvsim.report.series import MAX_POINTS

MOST_FIGURES = 24  # that a chart shows; all are in its table
ROW_PX = 24
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
PAIRED_LATENCIES = {"ttft": "TTFT", "e2e": "E2E"}
SHORTEST_S = 1e-6  # a logarithmic axis has no zero


def difference_chart(one: Against, place: int) -> Chart | None:
    """Show by which ratio the figures differ, each with its interval; None if none has a ratio.

    Args:
        one: The run beside the base.
        place: Its place among all runs, the base being 0.
    """
    changes = [change for change in apart(one) if change.ratio is not None and change.ratio > 0]
    if not changes:
        return None
    shown = changes[:MOST_FIGURES]
    base, other = short_name(one.base.name), short_name(one.other.name)
    sure = [change for change in shown if change.bounds is not None]
    unknown = [change for change in shown if change.bounds is None]
    color = look(place)[0]
    data = [
        _dots(sure, {"color": color, "symbol": MARKS[place % len(MARKS)], "size": 9})
        | _whiskers(sure, color),
        _dots(unknown, {"color": color, "symbol": f"{MARKS[place % len(MARKS)]}-open", "size": 9}),
    ]
    title = _difference_title(shown, base)
    left_out = len(apart(one)) - len(shown)
    return Chart(
        key=f"chart-differences-{place}",
        title=title,
        definition=f"Each figure of {other} over that of {base}, with its 95 % interval; the "
        "largest sure difference comes first. A hollow mark has no interval.",
        alt=f"Dots with intervals on a logarithmic axis of ratios. {title}.",
        figure={
            "data": [trace for trace in data if trace["x"]],
            "layout": layout(
                ROW_PX * len(shown) + 90,
                xaxis=_ratio_axis(shown),
                yaxis=_name_axis([metric_of(change.name).label for change in shown]),
                shapes=[_one()],
            ),
        },
        table=difference_table(apart(one), (one.base.name, one.other.name)),
        note=f"{left_out} more in the table." if left_out else "",
    )


def _difference_title(changes: Sequence[Change], base: str) -> str:
    first = changes[0]
    assert first.ratio is not None, "only figures with a ratio are drawn"
    label, way = metric_of(first.name).label, better(first)
    what = "differs most" if first.standing == "sure" else "may differ most"
    return f"{label} {what}: {times(first.ratio)} that of {base}{f',{way}' if way else ''}"


def _dots(changes: Sequence[Change], marker: dict[str, Any]) -> dict[str, Any]:
    ratios = [_significant(change.ratio or 0.0) for change in changes]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": ratios,
        "y": [metric_of(change.name).label for change in changes],
        "marker": marker,
        "text": [metric_of(change.name).description for change in changes],
        "hovertemplate": "%{y}: %{x:.3g} times<br>%{text}<extra></extra>",
    }


def _whiskers(changes: Sequence[Change], color: str) -> dict[str, Any]:
    """Return the intervals of ratios; one of which none is known has none."""
    reach = [(change.ratio or 0.0, change.ratio_bounds) for change in changes]
    above = [_significant(bounds[1] - ratio) if bounds else 0.0 for ratio, bounds in reach]
    below = [_significant(ratio - bounds[0]) if bounds else 0.0 for ratio, bounds in reach]
    known = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    return {"error_x": known | {"color": color}}


def _significant(value: float) -> float:
    return float(f"{max(value, 0.0):.5g}")


def _ratio_axis(changes: Sequence[Change]) -> dict[str, Any]:
    ratios = [change.ratio or 1.0 for change in changes]
    low, high = min(1.0, *ratios), max(1.0, *ratios)
    widest = max(math.log10(high / low), 0.05)
    low, high = math.log10(low) - 0.15 * widest, math.log10(high) + 0.15 * widest
    ticks = _ratio_ticks(low, high)
    return axis(
        "ratio (logarithmic)",
        type="log",
        range=[low, high],
        tickvals=ticks,
        ticktext=[f"{tick:g}" for tick in ticks],
        tickangle=0,
    )


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Return round ratios between two powers of ten, and one."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2):
        first, last = math.ceil(10**low / step), math.floor(10**high / step)
        if last - first < 8:
            return [round(number * step, 2) for number in range(first, last + 1)]
    powers = range(math.floor(low), math.ceil(high) + 1)
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    ticks = [float(f"{step}e{power}") for power in powers for step in steps]
    kept = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return kept[:: -(-len(kept) // 8)] if len(kept) > 8 else kept


def _name_axis(labels: Sequence[str]) -> dict[str, Any]:
    return {"autorange": "reversed", "type": "category", "automargin": True} | {
        "categoryorder": "array",
        "categoryarray": list(labels),
    }


def _one() -> dict[str, Any]:
    line = {"color": GRAY, "width": 1.5, "dash": "dot"}
    return {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": line}


# Request by request


def pair_charts(found: Sequence[Against]) -> list[Chart]:
    """Show each request's latency in the base and in the other runs that faced it, too."""
    charts = (_pair_chart(latency, found) for latency in PAIRED_LATENCIES)
    return [chart for chart in charts if chart is not None]


def _pair_chart(latency: str, found: Sequence[Against]) -> Chart | None:
    samples = {
        place: (one, *_thinned(*one.pairs.of(latency), MAX_POINTS // len(found)))
        for place, one in enumerate(found, start=1)
        if one.pairs is not None and len(one.pairs.of(latency)[0])
    }
    if not samples:
        return None
    data = [
        _points(one, place, base_s, other_s) for place, (one, base_s, other_s) in samples.items()
    ]
    label, base = PAIRED_LATENCIES[latency], short_name(found[0].base.name)
    drawn = max(len(base_s) for _, base_s, _ in samples.values())
    told = max(len(one.pairs.of(latency)[0]) for one, *_ in samples.values() if one.pairs)
    title = "; ".join(_pair_title(one, latency, label) for one, *_ in samples.values())
    span = _span(samples.values())
    thinned = f"{drawn:,} of {told:,} requests are drawn, evenly by how much they changed."
    return Chart(
        key=f"chart-pairs-{latency}",
        title=title,
        definition=f"A point is a request: its {label} in {base} and in the other run. Above the "
        "line it got slower.",
        alt=f"Points around a diagonal, on logarithmic axes. {title}.",
        figure={
            "data": data,
            "layout": layout(
                400,
                xaxis=_pair_axis(f"{label} in {base}, s", span),
                yaxis=_pair_axis(f"{label} in the other run, s", span),
                shapes=[_diagonal(span)],
            ),
        },
        table=_pair_table(latency, [one for one, *_ in samples.values()]),
        keys=_keys([one.other.name for one, *_ in samples.values()], list(samples)),
        note=thinned if drawn < told else "",
    )


def _keys(names: Sequence[str], places: Sequence[int]) -> list[Key]:
    """Return a legend of points: areas, since no line joins them."""
    return [
        Key(short_name(name), look(place)[0]) for name, place in zip(names, places, strict=True)
    ]


def _thinned(base_s: Floats, other_s: Floats, most: int) -> tuple[Floats, Floats]:
    """Keep few requests, evenly by the rank of their change: both extremes are among them."""
    if len(base_s) <= most:
        return base_s, other_s
    order = np.argsort(other_s - base_s, kind="stable")
    kept = order[np.linspace(0, len(order) - 1, most).round().astype(np.int64)]
    return base_s[kept], other_s[kept]


def _points(one: Against, place: int, base_s: Floats, other_s: Floats) -> dict[str, Any]:
    marker = {"color": look(place)[0], "symbol": MARKS[place % len(MARKS)], "size": 5}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [float(f"{value:.4g}") for value in np.maximum(base_s, SHORTEST_S)],
        "y": [float(f"{value:.4g}") for value in np.maximum(other_s, SHORTEST_S)],
        "marker": marker | {"opacity": 0.5},
    } | named(one.other.name, "%{x:.3~s}s → %{y:.3~s}s")


def _pair_title(one: Against, latency: str, label: str) -> str:
    found = shares(one.pairs, latency) if one.pairs else None
    assert found is not None, "a chart has points"
    other = short_name(one.other.name)
    if found.faster >= found.slower:
        return f"{label} is shorter for {percent(found.faster)} of the requests in {other}"
    return f"{label} is longer for {percent(found.slower)} of the requests in {other}"


def _span(samples: Any) -> list[float]:
    values = np.concatenate([np.concatenate([base_s, other_s]) for _, base_s, other_s in samples])
    values = np.maximum(values, SHORTEST_S)
    low, high = math.log10(values.min()), math.log10(values.max())
    return rounded(np.array([low - 0.1, high + 0.1]), 3)


def _pair_axis(title: str, span: Sequence[float]) -> dict[str, Any]:
    return log_axis(title, [10**end for end in span]) | {"range": span}


def _diagonal(span: Sequence[float]) -> dict[str, Any]:
    ends = {"x0": 10 ** span[0], "x1": 10 ** span[1], "y0": 10 ** span[0], "y1": 10 ** span[1]}
    return {"type": "line", **ends, "line": {"color": GRAY, "width": 1.5, "dash": "dot"}}


def _pair_table(latency: str, found: Sequence[Against]) -> Table:
    rows = [[one.other.name, *cells] for one in found if (cells := share_cells(one.pairs, latency))]
    return Table(["run", *SHARE_HEADER], rows)
