"""Charts of latency tails: which share of the requests is slower than a time, beside targets."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvsim.metrics.catalog import format_figure, latency_and_statistic, metric_of, percent
from kvsim.metrics.latency import request_latency
from kvsim.names import short_name
from kvsim.report.figure import (
    GRAY,
    Chart,
    Table,
    axis,
    layout,
    line_style,
    named,
    rounded,
    variant_keys,
)
from kvsim.report.inputs import Variant
from kvsim.report.series import Floats, tail
from kvsim.units import NS_PER_S, format_duration

EXPLANATION = (
    "A point of a curve says which share of the requests took at least so long: lower and further "
    "left is better. Stars are targets, where dotted lines cross; a curve meets one that it passes "
    "below or left of."
)
LATENCIES = ("ttft", "tpot", "e2e")
TABLE_STATISTICS = ("p50", "p90", "p95", "p99", "max")
SHARES_LABELED = (1.0, 0.5, 0.1, 0.01, 0.001, 0.0001)
FEW_DECADES = 1.7  # so many leave room for labels between the powers of ten
SHORTEST_S = 1e-6  # a logarithmic axis has no zero


def tails(variants: Sequence[Variant], warmup_s: float) -> list[Chart]:
    """Show how many requests are slow, for each latency that any request has."""
    charts = []
    for latency in LATENCIES:
        values = [_measured(variant, latency, warmup_s) for variant in variants]
        if any(len(sample) for sample in values):
            charts.append(_tail_chart(latency, variants, values))
    return charts


def _measured(variant: Variant, latency: str, warmup_s: float) -> Floats:
    values = request_latency(variant.requests, latency)
    counts = variant.requests["arrival_ns"] >= round(warmup_s * NS_PER_S)
    return values[counts & ~np.isnan(values)]


def _tail_chart(latency: str, variants: Sequence[Variant], values: Sequence[Floats]) -> Chart:
    goals = [
        target
        for target in variants[0].summary["verdict"]["targets"]
        if (latency_and_statistic(target["name"]) or ("",))[0] == latency
    ]
    data = [
        _tail_line(sample, place)
        | named(variants[place].name, "%{y:.3g} % take at least %{x:.3~s}s")
        for place, sample in enumerate(values)
        if len(sample)
    ]
    least = min(1 / len(sample) for sample in values if len(sample))
    times = np.concatenate([*values, [goal["bound"] for goal in goals if goal["bound"] > 0]])
    span_s = (float(max(times.min(), SHORTEST_S)), float(max(times.max(), SHORTEST_S)))
    title = _tail_finding(latency, variants, values, goals)
    marks = [_goal_mark(goal) for goal in goals]
    metric = metric_of(f"{latency}_p50_s")
    figure = layout(
        330, **_tail_axes(metric.label.split()[0], least, span_s), shapes=_goal_lines(goals)
    )
    return Chart(
        key=f"chart-tail-{latency}",
        title=title,
        definition=f"{metric.description.split(';')[0]}.",
        alt=f"Falling curves on logarithmic axes. {title}.",
        figure={"data": data + marks, "layout": figure},
        table=_tail_table(latency, variants, values, goals),
        keys=variant_keys([variant.name for variant in variants]),
    )


def _tail_finding(
    latency: str,
    variants: Sequence[Variant],
    values: Sequence[Floats],
    goals: Sequence[Mapping[str, Any]],
) -> str:
    """Say each variant's value of the first target, or of the 99th percentile.

    Beside the target stands which share of the requests takes longer.
    """
    name = goals[0]["name"] if goals else f"{latency}_p99_s"
    label = metric_of(name).label
    if not goals:
        shown = (format_figure(name, v.summary["figures"][name]) for v in variants)
        pairs = zip(variants, shown, strict=True)
        return f"{label}: " + ", ".join(f"{short_name(v.name)} {value}" for v, value in pairs)
    said = [_said_of(*each, goals[0]) for each in zip(variants, values, strict=True)]
    return f"{label}, target {format_duration(goals[0]['bound'])}: " + "; ".join(said)


def _beyond(sample: Floats, bound_s: float) -> str:
    """Return which share of the requests takes longer, a dash if there are none."""
    return percent(float((sample > bound_s).mean())) if len(sample) else "–"


def _said_of(variant: Variant, sample: Floats, goal: Mapping[str, Any]) -> str:
    """Say how a variant stands to the base's goal, which its own SLO may lack or set otherwise."""
    name = goal["name"]
    targets = {target["name"]: target for target in variant.summary["verdict"]["targets"]}
    if name not in targets:
        value = variant.summary["figures"].get(name)
        has = f"has {format_figure(name, value)} and " if value is not None else "has "
        return f"{short_name(variant.name)} {has}no such target"
    target = targets[name]
    own = (
        ""
        if target["bound"] == goal["bound"]
        else f" its own of {format_duration(target['bound'])}"
    )
    verb = {True: f"meets{own or ' it'} with", False: f"misses{own or ' it'} with", None: "has"}
    value = format_figure(name, target["value"])
    slow = bool((sample > target["bound"]).any())
    longer = f"{_beyond(sample, target['bound'])} take longer" if slow else "none takes longer"
    said = f"{short_name(variant.name)} {verb[target['met']]} {value}"
    return f"{said}, {longer}" if len(sample) else said


def _tail_line(sample: Floats, place: int) -> dict[str, Any]:
    values, shares = tail(np.maximum(sample, SHORTEST_S))
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(values) == 1 else "lines",
        "x": [float(f"{value:.5g}") for value in values],
        "y": rounded(100 * shares, 5),
        "line": line_style(place) | {"shape": "vh"},
    }


def _tail_axes(label: str, least: float, span_s: tuple[float, float]) -> dict[str, Any]:
    ticks = [share for share in SHARES_LABELED if share >= least / 2]
    low, high = np.log10(span_s)
    seconds = _duration_ticks(low, high)
    return {
        "xaxis": axis(
            f"{label} (logarithmic)",
            type="log",
            range=[float(low) - 0.08, float(high) + 0.08],
            tickvals=seconds,
            ticktext=[format_duration(value) for value in seconds],
            tickangle=0,
        ),
        "yaxis": axis(
            "share of requests (logarithmic)",
            type="log",
            range=[float(np.log10(100 * least)) - 0.1, 2.1],
            tickvals=[100 * share for share in ticks],
            ticktext=[f"{100 * share:g} %" for share in ticks],
        ),
    }


def _duration_ticks(low: float, high: float) -> list[float]:
    """Return round times between two powers of ten: 1, 2, 5, 10, ... if few, else 1, 10, ..."""
    steps = (1, 2, 5) if high - low < FEW_DECADES else (1,)
    powers = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    candidates = [float(f"{step}e{power}") for power in powers for step in steps]
    return [value for value in candidates if low - 0.1 <= np.log10(value) <= high + 0.1]


def _allowed_percent(goal: Mapping[str, Any]) -> float | None:
    """Return which share of the requests a target allows to be slower, in percent."""
    statistic = (latency_and_statistic(goal["name"]) or ("", ""))[1]
    return None if statistic in {"mean", "max", "p100"} else 100 - float(statistic[1:])


def _goal_mark(goal: Mapping[str, Any]) -> dict[str, Any]:
    allowed = _allowed_percent(goal)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [goal["bound"]] if allowed else [],
        "y": [allowed] if allowed else [],
        "marker": {"symbol": "star", "size": 13, "color": GRAY},
        "hovertemplate": "target: at most %{y:.3g} % above %{x:.3~s}s<extra></extra>",
    }


def _goal_lines(goals: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines that cross at each target: its time, and the share that may be slower."""
    rule = {"type": "line", "line": {"color": GRAY, "width": 1.5, "dash": "dot"}}
    lines: list[dict[str, Any]] = []
    for goal in goals:
        bound_s, allowed = goal["bound"], _allowed_percent(goal)
        if bound_s > 0:
            lines.append(rule | {"x0": bound_s, "x1": bound_s, "yref": "paper", "y0": 0, "y1": 1})
        if bound_s > 0 and allowed:
            lines.append(rule | {"y0": allowed, "y1": allowed, "xref": "paper", "x0": 0, "x1": 1})
    return lines


def _tail_table(
    latency: str,
    variants: Sequence[Variant],
    values: Sequence[Floats],
    goals: Sequence[Mapping[str, Any]],
) -> Table:
    names = [f"{latency}_{statistic}_s" for statistic in TABLE_STATISTICS]
    bounds_s = list(dict.fromkeys(goal["bound"] for goal in goals))
    rows = []
    for variant, sample in zip(variants, values, strict=True):
        shown = [format_figure(name, variant.summary["figures"][name]) for name in names]
        rows.append([variant.name, *shown, *(_beyond(sample, bound_s) for bound_s in bounds_s)])
    longer = [f"longer than {format_duration(bound_s)}" for bound_s in bounds_s]
    return Table(["Variant", *TABLE_STATISTICS, *longer], rows)
