"""The curves that a search has found: targets, latencies and goodput over what is varied."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.metrics.catalog import format_figure, format_number, latency_and_statistic
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
    band,
    layout,
    named,
)
from kvsim.statistics import mean_interval
from kvsim.studies.capacity.answer import CapacityAnswer, Trial
from kvsim.studies.capacity.bounds import GROWTH
from kvsim.studies.capacity.observe import RANKS

_HEIGHT_PX = 400
_LOOKS = (
    *((BLUE, "solid"), (VERMILLION, "dash"), (PURPLE, "dot"), (ORANGE, "dashdot")),
    *((SKY, "longdash"), (GRAY, "longdashdot")),
)
_LEAST_SHOWN = 1e-3  # of a bound, on an axis of logarithms

Curve = Sequence[tuple[float, float, float, float]]  # value, mean, low, high


def of_trials(answer: CapacityAnswer) -> Mapping[float, Sequence[Trial]]:
    """Return the simulations that curves are drawn of: by value, those of the longest runs there.

    Values that few short runs were for are left out between those that many or long ones were for.
    """
    found: dict[float, list[Trial]] = {}
    for trial in answer.trials:
        if not trial.refusal:
            found.setdefault(trial.value, []).append(trial)
    longest = {value: max(_length(one) for one in trials) for value, trials in found.items()}
    kept = {
        value: [one for one in found[value] if _length(one) == longest[value]]
        for value in sorted(found)
    }
    weights = {value: longest[value] * len(trials) for value, trials in kept.items()}
    sure = [value for value, weight in weights.items() if weight > max(weights.values()) / 10]
    return {
        value: trials
        for value, trials in kept.items()
        if value in sure or not min(sure) < value < max(sure)
    }


def _length(trial: Trial) -> int:
    return trial.requests + trial.warmup_requests


def targets_chart(answer: CapacityAnswer) -> Chart:
    """Draw each target's mean over what it may be: where the first reaches 1, the limit is."""
    names = [name for name in answer.allowed if name != GROWTH]
    curves = {
        name: _curve(answer, lambda one, name=name: _over(one.means[name], answer.allowed[name]))
        for name in names
    }
    title = "Nothing that was tried reaches a bound"
    if answer.limited_by is not None and answer.limited_by != GROWTH:
        title = f"{answer.limited_by} is the first to reach its bound"
    elif answer.limited_by == GROWTH:
        title = "The queue grows without end before a target is missed"
    definition = (
        "Of each target what it bounds, over the bound: for a percentile the share of requests "
        "beyond the limit over the share that may be. Bands: 95 % intervals over replications."
    )
    return _chart(answer, "targets", title, definition, "over the bound", curves, 1.0)


def _over(mean: float | None, allowed: float) -> float | None:
    return None if mean is None or not allowed else max(mean / allowed, _LEAST_SHOWN)


def latency_chart(answer: CapacityAnswer, latency: str) -> Chart:
    """Draw percentiles of a latency, with what the SLO says of it."""
    curves = {
        f"p{rank}": _curve(answer, lambda one, rank=rank: one.latencies_s[f"{latency}_p{rank}_s"])
        for rank in reversed(RANKS)
    }
    target = _limit_of(answer, latency)
    name = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "queue": "Queue time"}[latency]
    title = f"{name}: {_span(curves['p99'], latency)}"
    definition = "Percentiles of each run, averaged over replications. Bands: 95 % intervals."
    line = None if target is None else target[1]
    if target is not None:
        definition += f" Line: {target[0]}, {format_figure(target[0], target[1])}."
    return _chart(answer, latency, title, definition, "s", curves, line)


def _span(curve: Curve, latency: str) -> str:
    if not curve:
        return "none"
    low, high = (format_figure(f"{latency}_p99_s", point[1]) for point in (curve[0], curve[-1]))
    return f"p99 goes from {low} to {high}"


def _limit_of(answer: CapacityAnswer, latency: str) -> tuple[str, float] | None:
    """Return the highest percentile of a latency that the SLO names, and its limit."""
    mine = [
        (name, bound)
        for name, bound in answer.slo.items()
        if (latency_and_statistic(name) or ("",))[0] == latency
    ]
    return max(mine, default=None)


def goodput_chart(answer: CapacityAnswer) -> Chart:
    """Draw how many requests a second finish within all bounds."""
    curve = _curve(answer, lambda one: one.goodput_per_s)
    best = max(curve, key=lambda point: point[1], default=None)
    title = "No goodput is known"
    if best is not None:
        title = f"Goodput peaks at {format_number(best[1])} requests/s"
    definition = "Requests/s that finish within all bounds of the SLO. Band: 95 % interval."
    return _chart(answer, "goodput", title, definition, "requests/s", {"goodput": curve}, None)


def _curve(answer: CapacityAnswer, figure: Any) -> Curve:
    """Return mean and interval of a figure at each value; one run has no interval."""
    points = []
    for value, trials in of_trials(answer).items():
        found = [figure(one) for one in trials]
        known = [each for each in found if each is not None]
        if known:
            one = mean_interval(known)
            low, high = (one.mean if end is None else end for end in (one.low, one.high))
            points.append((value, one.mean, max(low, one.mean / 100), high))
    return points


def _chart(
    answer: CapacityAnswer,
    key: str,
    title: str,
    definition: str,
    unit: str,
    curves: Mapping[str, Curve],
    line: float | None,
) -> Chart:
    logarithmic = key != "goodput"
    data: list[dict[str, Any]] = []
    for (name, curve), look in zip(curves.items(), _LOOKS * 3, strict=False):
        data += _drawn(name, curve, look)
    x_title = f"{answer.path.rpartition('.')[2]}" + (f" ({answer.unit})" if answer.unit else "")
    span = _span_of(answer)
    shapes, notes = _regions(answer, span)
    if line is not None:
        at = {"xref": "paper", "x0": 0, "x1": 1, "y0": line, "y1": line}
        shapes.append({"type": "line", "line": {"color": VERMILLION, "width": 1.5}, **at})
    figure = {
        "data": data,
        "layout": layout(
            _HEIGHT_PX,
            xaxis=axis(x_title, range=list(span)),
            yaxis=axis(unit, type="log") if logarithmic else axis(unit, rangemode="tozero"),
            shapes=shapes,
            annotations=notes,
        ),
    }
    keys = [Key(name, *look) for name, look in zip(curves, _LOOKS * 3, strict=False)]
    return Chart(
        f"chart-{key}", title, definition, f"Lines. {title}.", figure, _table(x_title, curves), keys
    )


def _drawn(name: str, curve: Curve, look: tuple[str, str]) -> list[dict[str, Any]]:
    """Return the traces of a curve: its band, then its line."""
    color, dash = look
    x, mean, low, high = (
        (list(column) for column in zip(*curve, strict=True)) if curve else [[]] * 4
    )
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": x,
        "y": mean,
        "line": {"color": color, "dash": dash, "width": 2},
        **named(name, "%{x:.4g}: %{y:.3g}"),
    }
    return [band(x, low, high, color), line]


def _span_of(answer: CapacityAnswer) -> tuple[float, float]:
    values = [one.value for one in answer.tried] or [0.0, 1.0]
    room = 0.03 * (max(values) - min(values)) or 0.1
    return min(values) - room, max(values) + room


def _regions(
    answer: CapacityAnswer, span: tuple[float, float]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what is shaded, and the words in it: feasible values, and those of unstable queues."""
    regions = []
    if answer.feasible is not None:
        ends = (span[0], answer.feasible) if answer.rising else (answer.feasible, span[1])
        regions.append((*ends, GREEN, "feasible"))
    unstable = [one.value for one in answer.tried if one.status == "unstable"]
    if unstable:
        ends = (min(unstable), span[1]) if answer.rising else (span[0], max(unstable))
        regions.append((*ends, GRAY, "unstable"))
    shapes = [
        {
            "type": "rect",
            "layer": "below",
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "x0": left,
            "x1": right,
            "fillcolor": color,
            "opacity": 0.12,
            "line": {"width": 0},
        }
        for left, right, color, _ in regions
    ]
    at = {"yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
    notes = [{"x": (left + right) / 2, "text": words, **at} for left, right, _, words in regions]
    return shapes, notes


def _table(x_title: str, curves: Mapping[str, Curve]) -> Table:
    rows = [
        [f"{x:.4g}", name, *map(format_number, ends)]
        for name, curve in curves.items()
        for x, *ends in curve
    ]
    return Table([x_title, "", "mean", "low", "high"], rows)
