"""Cost against latency with the front of what no point beats in both; sampled points as dots."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.catalog import METRICS, format_figure
from kvsim.report.figure import (
    BLUE,
    GRAY,
    ORANGE,
    SKY,
    Chart,
    Key,
    Table,
    axis,
    layout,
    plotly_text,
    sentence,
)
from kvsim.studies.sweep.answer import COST, ranked
from kvsim.studies.sweep.names import axis_label, metric_label, point_text
from kvsim.studies.sweep.tables import point_rows
from kvsim.studies.sweep.view import View, scale_of, thinned

HEIGHT_PX = 420
MOST_DOTS = 2_000
_MOST_ROWS = 300


def front_chart(view: View) -> Chart | None:
    """Show cost and latency of all points; None if no point has both."""
    answer = view.answer
    costs, latencies = (answer.results.means(n) for n in (answer.cost, answer.latencies[0]))
    known = ~np.isnan(costs) & ~np.isnan(latencies)
    if not known.any():
        return None
    shown = _shown(view, np.flatnonzero(known).tolist())
    title = _finding(view)
    over = _spread_axis(answer.latencies[0], latencies[known])
    data = list(_dots(view, shown, answer.latencies[0], answer.cost, with_front=True))
    header, rows = point_rows(answer, answer.front)
    counts = " that meets the SLO" if answer.results.is_judged else ""
    reduced = f"{len(shown):,} of {int(known.sum()):,} points are drawn, the front among them."
    return Chart(
        key="chart-front",
        title=title,
        definition=f"{METRICS[answer.cost].description}, against "
        f"{metric_label(answer.latencies[0])}. No other point{counts} beats one of the front in "
        "both.",
        alt=f"Dots. {title}.",
        figure={
            "data": data,
            "layout": layout(HEIGHT_PX, xaxis=over, yaxis=_spread_axis(answer.cost, costs[known])),
        },
        table=Table(header, rows),
        keys=_keys(view, with_front=True),
        note=reduced if len(shown) < int(known.sum()) else "",
    )


def dot_charts(view: View) -> list[Chart]:
    """Show the latency over each axis whose values were drawn, where lines would mean nothing."""
    metric = view.answer.latencies[0]
    known = np.flatnonzero(~np.isnan(view.answer.results.means(metric))).tolist()
    if not known:
        return []
    return [_over(view, path, metric, known, place) for place, path in enumerate(view.sampled)]


def _over(view: View, path: str, metric: str, known: list[int], place: int) -> Chart:
    results = view.answer.results
    xs = np.array([results.settings[i].changes[path] for i in known], dtype=np.float64)
    ys = results.means(metric)[known]
    correlation = _rank_correlation(xs, ys)
    title = sentence(f"{metric_label(metric)} {_words(correlation)} with {view.names[path]}")
    shown = _shown(view, known)
    header, rows = point_rows(view.answer, shown[:_MOST_ROWS])
    return Chart(
        key=f"chart-dots-{place}",
        title=title,
        definition=f"{METRICS[metric].description}. Spearman's rank correlation is "
        f"{correlation:.2f}.",
        alt=f"Dots. {title}.",
        figure={
            "data": list(_dots(view, shown, path, metric)),
            "layout": layout(
                HEIGHT_PX - 80,
                xaxis=axis(axis_label(view.names, path), type=scale_of(xs.tolist())),
                yaxis=_spread_axis(metric, ys),
            ),
        },
        table=Table(header, rows),
        keys=_keys(view),
        note=f"Numbers of {_MOST_ROWS} points; the table file has all."
        if len(known) > _MOST_ROWS
        else "",
    )


def _rank_correlation(xs: NDArray[np.float64], ys: NDArray[np.float64]) -> float:
    """Return Spearman's coefficient, 0 where one of both never changes."""
    if not (np.ptp(xs) and np.ptp(ys)):
        return 0.0
    ranks = np.array([np.argsort(np.argsort(each)) for each in (xs, ys)], dtype=np.float64)
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _words(correlation: float) -> str:
    if abs(correlation) < 0.1:
        return "hardly goes"
    strength = "weakly" if abs(correlation) < 0.3 else "clearly"
    return f"{strength} {'rises' if correlation > 0 else 'falls'}"


def _finding(view: View) -> str:
    answer = view.answer
    if answer.best is None:
        return "No point meets the SLO: there is no front of cost and latency"
    if len(answer.front) == 1:
        return "One point is best in both cost and latency"
    latency, cost = answer.latencies[0], answer.results.means(answer.cost)
    means = answer.results.means(latency)
    first, last = answer.front[0], answer.front[-1]
    ends = (format_figure(latency, float(means[i])) for i in (first, last))
    costs = (format_figure(answer.cost, float(cost[i])) for i in (first, last))
    verb = "falls" if answer.cost == COST else "rises"
    return sentence(
        f"{metric_label(answer.cost)} {verb} from {next(costs)} to {next(costs)} as "
        f"{metric_label(latency)} may grow from {next(ends)} to {next(ends)}"
    )


def _shown(view: View, places: Sequence[int]) -> list[int]:
    """Return those that are drawn: all, or many evenly picked by rank with the front."""
    if len(places) <= MOST_DOTS:
        return list(places)
    wanted = set(places)
    order = [place for place in ranked(view.answer) if place in wanted]
    picked = {order[i] for i in thinned(len(order), MOST_DOTS - len(view.answer.front))}
    return sorted(picked | set(view.answer.front))


def _dots(
    view: View, shown: Sequence[int], across: str, up: str, with_front: bool = False
) -> Iterator[dict[str, Any]]:
    answer = view.answer
    groups = (
        (GRAY, "circle-open", [i for i in shown if not answer.eligible[i]]),
        (SKY, "circle", [i for i in shown if answer.eligible[i]]),
    )
    for color, symbol, places in groups:
        yield _trace(view, places, across, up) | {
            "mode": "markers",
            "marker": {"color": color, "symbol": symbol, "size": 7},
        }
    if with_front:
        yield _trace(view, answer.front, across, up) | {
            "mode": "lines+markers",
            "line": {"color": BLUE, "width": 2, "shape": "hv"},
            "marker": {"color": BLUE, "size": 8},
        }
    if answer.best is not None and answer.best in shown:
        yield _trace(view, [answer.best], across, up) | {
            "mode": "markers",
            "marker": {"color": ORANGE, "symbol": "star", "size": 18},
        }


def _trace(view: View, places: Sequence[int], across: str, up: str) -> dict[str, Any]:
    results = view.answer.results
    return {
        "type": "scatter",
        "x": [_value(view, i, across) for i in places],
        "y": [_value(view, i, up) for i in places],
        "text": [_plotly_text_of(point_text(results.sweep, results.settings[i])) for i in places],
        "hovertemplate": "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
    }


def _plotly_text_of(words: str) -> str:
    """Show a point's words where Plotly would read HTML, part by part."""
    return ", ".join(plotly_text(part) for part in words.split(", "))


def _value(view: View, place: int, name: str) -> float:
    results = view.answer.results
    if name in METRICS:
        return float(f"{results.mean(place, name):.6g}")
    return float(results.settings[place].changes[name])


def _keys(view: View, with_front: bool = False) -> list[Key]:
    judged = view.answer.results.is_judged
    keys = [Key("meets the SLO" if judged else "ran", SKY)]
    keys += [Key("misses it", GRAY)] if judged else []
    keys += [Key("the front", BLUE, "solid")] if with_front else []
    return [*keys, Key("★ the choice", ORANGE)] if view.answer.best is not None else keys


def _spread_axis(metric: str, values: Any) -> dict[str, Any]:
    unit = METRICS[metric].unit
    return axis(f"{METRICS[metric].label}, {unit}", type=scale_of(values.tolist()))
