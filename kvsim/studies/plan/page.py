"""A plan's page: the answer, cost against latency, the candidates, and what was not tried."""

import math
from typing import Any

from kvsim.metrics.catalog import format_figure, latency_and_statistic, percent
from kvsim.report.figure import (
    BLUE,
    GRAY,
    VERMILLION,
    Chart,
    Key,
    Section,
    Table,
    axis,
    layout,
    plotly_text,
)
from kvsim.report.shell import render_page
from kvsim.studies.plan.answer import (
    candidate_table,
    demand_table,
    figure_of,
    forms,
    sentences,
    skipped_groups,
)
from kvsim.studies.plan.fleet import Fleet
from kvsim.studies.plan.result import Plan
from kvsim.studies.plan.trial import Target, Trial
from kvsim.studies.plan.winner import winner_text
from kvsim.units import format_duration

_MARKED = (
    "* More than half of its steps' time rests on physical forms and not on kernels that were "
    "measured on this GPU."
)


def build_page(plan: Plan, command: str) -> str:
    """Return the page as one HTML text; the same plan gives the same text."""
    answer, *details = [sentence for sentence in sentences(plan) if sentence]
    sections = [*_cost_section(plan), _candidates(plan), *_demands(plan)]
    groups = [[reason, "; ".join(labels)] for reason, labels in skipped_groups(plan)]
    return render_page(
        "plan.html.j2",
        [chart for section in sections for chart in section.charts],
        name=plan.file.base.name,
        question=plan.file.question,
        met=plan.winner is not None,
        sentence=answer,
        details=details,
        drawn=sections,
        skipped=Table(["why", "candidates"], groups),
        winner="" if plan.winner is None else _scenario(plan),
        command=command,
    )


def _scenario(plan: Plan) -> str:
    return winner_text(plan, plan.file.base_dir)


def _candidates(plan: Plan) -> Section:
    table = candidate_table(plan)
    marked = any(row[-1].endswith("*") for row in table.rows)
    return Section(
        "candidates",
        "Candidates",
        "Fleets that were simulated",
        sentence="Of each candidate the fewest replicas that meet the SLO, or the most that were "
        "tried. Weights and KV: auto is as the scenario says. Forms: share of the steps' time that "
        "rests on physical forms. " + (_MARKED if marked else ""),
        table=table,
    )


def _cost_section(plan: Plan) -> list[Section]:
    target = _axis_target(plan)
    if target is None:
        return []
    chart = _cost_chart(plan, target.name, target.bound)
    return [Section("cost", "Cost", "What latency costs", [chart])]


def _axis_target(plan: Plan) -> Target | None:
    """Return the latency that the picture shows: the tightest of the winner's, or of the first."""
    for fleet in plan.fleets:
        for target in fleet.shown.targets if fleet.shown else ():
            if latency_and_statistic(figure_of(target.name)) and target.value:
                return target
    return None


def _points(plan: Plan, target: str) -> list[tuple[Fleet, Trial, float, float]]:
    """Return every fleet that was simulated: cost an hour, latency in seconds."""
    found = []
    for fleet in plan.fleets:
        for trial in fleet.trials:
            came_out = trial.target(target)
            if came_out and came_out.value:
                usd = plan.usd_per_hour(fleet, trial.replicas)
                found.append((fleet, trial, usd, came_out.value))
    return found


def _cost_chart(plan: Plan, target: str, bound_s: float) -> Chart:
    points = _points(plan, target)
    best = plan.winner.chosen if plan.winner else None
    met = [point for point in points if point[1].met and point[1] is not best]
    missed = [point for point in points if not point[1].met]
    winner = [point for point in points if point[1] is best]
    front = _front([point for point in points if point[1].met])
    data = [
        _dots(plan, missed, {"color": GRAY, "symbol": "circle-open", "size": 9}),
        {
            "x": [usd for _, _, usd, _ in front],
            "y": [value for *_, value in front],
            "mode": "lines",
            "line": {"color": BLUE, "width": 1, "dash": "dot"},
            "hoverinfo": "skip",
        },
        _dots(plan, met, {"color": BLUE, "symbol": "circle", "size": 10}),
        _dots(plan, winner, {"color": VERMILLION, "symbol": "star", "size": 17}),
    ]
    figure = {
        "data": [trace for trace in data if trace["x"]],
        "layout": layout(
            430,
            xaxis=axis("USD per hour", rangemode="tozero"),
            yaxis=_time_axis(target, [*(y for *_, y in points), bound_s]),
            shapes=[_bound_line(bound_s)],
        ),
    }
    keys = [Key("the plan's fleet", VERMILLION), Key("meets the SLO", BLUE), Key("misses it", GRAY)]
    keys.append(Key("bound", GRAY, "dash"))
    return Chart(
        "cost-latency",
        _cost_title(plan, target, front),
        f"Every fleet that was simulated: what it costs an hour, spare replicas included, and its "
        f"{target}, the mean over draws. The dotted line joins those that no other fleet beats in "
        "both. Misses that lie below the bound miss another target, or too narrowly to be sure.",
        f"Scatter of {len(points)} fleets: cost per hour against {target}, the latter logarithmic.",
        figure,
        _point_table(plan, points, target),
        keys,
    )


def _time_axis(title: str, values_s: list[float]) -> dict[str, Any]:
    """Return a logarithmic axis of times with ticks at 1, 2 and 5 times powers of ten."""
    low, high = math.floor(math.log10(min(values_s))), math.ceil(math.log10(max(values_s)))
    ticks = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    texts = [format_duration(tick) for tick in ticks]
    return axis(title, type="log", showgrid=True, tickvals=ticks, ticktext=texts)


def _cost_title(plan: Plan, target: str, front: list[tuple[Fleet, Trial, float, float]]) -> str:
    own = plan.winner.chosen.target(target) if plan.winner and plan.winner.chosen else None
    if plan.winner is None or own is None or not front:
        return f"No fleet meets the SLO; {target} is what they miss by"
    usd = plan.usd_per_hour(plan.winner, plan.winner.smallest or 0)
    said = f"{target} is {format_figure(figure_of(target), own.value)} for ${usd:,.2f}/h"
    *_, fastest_usd, fastest = front[-1]
    if own.value is None or fastest >= own.value:
        return f"{said}; no other fleet that was tried is faster"
    return f"{said}; ${fastest_usd:,.2f}/h would buy {format_figure(figure_of(target), fastest)}"


def _front(
    points: list[tuple[Fleet, Trial, float, float]],
) -> list[tuple[Fleet, Trial, float, float]]:
    """Return the points that no other one beats in cost and latency, by rising cost."""
    front: list[tuple[Fleet, Trial, float, float]] = []
    for point in sorted(points, key=lambda point: (point[2], point[3])):
        if not front or point[3] < front[-1][3]:
            front.append(point)
    return front


def _bound_line(bound_s: float) -> dict[str, Any]:
    line = {"color": GRAY, "width": 1, "dash": "dash"}
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": bound_s,
        "y1": bound_s,
        "line": line,
    }


def _dots(
    plan: Plan, points: list[tuple[Fleet, Trial, float, float]], marker: dict[str, Any]
) -> dict[str, Any]:
    return {
        "x": [usd for _, _, usd, _ in points],
        "y": [value for *_, value in points],
        "mode": "markers",
        "marker": marker,
        "text": [plotly_text(_name(plan, fleet, trial)) for fleet, trial, *_ in points],
        "hovertemplate": "%{text}<br>$%{x:,.2f}/h, %{y:.3g} s<extra></extra>",
    }


def _name(plan: Plan, fleet: Fleet, trial: Trial) -> str:
    spare = f" + {plan.options.spare}" if plan.options.spare else ""
    return f"{trial.replicas}{spare} × {fleet.least.candidate.label}"


def _point_table(plan: Plan, points: list[tuple[Fleet, Trial, float, float]], target: str) -> Table:
    rows = [
        [
            _name(plan, fleet, trial),
            f"{usd:,.2f}",
            format_figure(figure_of(target), value),
            "met" if trial.met else "missed",
            "–" if trial.busy is None else percent(trial.busy),
            forms(trial),
        ]
        for fleet, trial, usd, value in sorted(points, key=lambda point: point[2])
    ]
    return Table(["fleet", "$/h", target, "SLO", "busy", "forms"], rows)


def _demands(plan: Plan) -> list[Section]:
    known = [(factor, fleet) for factor, fleet in plan.demands if fleet.smallest is not None]
    if len(known) < 2:
        return []
    counts = [(fleet.smallest or 0) + plan.options.spare for _, fleet in known]
    gpus = [count * fleet.least.gpus for count, (_, fleet) in zip(counts, known, strict=True)]
    factors = [factor for factor, _ in known]
    figure = {
        "data": [
            {
                "x": factors,
                "y": gpus,
                "mode": "lines+markers",
                "line": {"color": BLUE, "width": 2, "shape": "vh"},
                "marker": {"color": BLUE, "size": 8},
                "hovertemplate": "%{x:g} times: %{y} GPUs<extra></extra>",
            }
        ],
        "layout": layout(
            300,
            xaxis=axis("demand, times that of the plan", tickvals=factors),
            yaxis=axis("GPUs", rangemode="tozero", **({"dtick": 1} if max(gpus) < 10 else {})),
        ),
    }
    chart = Chart(
        "demand-gpus",
        f"{gpus[-1]} GPUs at {factors[-1]:g} times the demand, {gpus[0]} at {factors[0]:g} times",
        "GPUs of the plan's candidate that other demands take, spare replicas included. Between "
        "the demands that were searched, what the next one takes is enough.",
        f"Steps: GPUs at {len(factors)} demands; their numbers are in the table.",
        figure,
        demand_table(plan),
    )
    return [Section("demand", "Demand", "If the demand is another", [chart])]
