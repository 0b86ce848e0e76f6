"""The page of a validation: predicted over measured, errors by metric and group, the peers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
    Section,
    Table,
    axis,
    layout,
    plotly_text,
)
from kvsim.report.shell import render_page
from kvsim.validate.case import METRICS, OVERALL, Case
from kvsim.validate.peers import Errors
from kvsim.validate.run import Row
from kvsim.validate.summary import Summary, traits_of
from kvsim.validate.tables import (
    experiment_table,
    group_table,
    metric_table,
    peer_table,
    unpredicted_table,
)

HEIGHT_PX = 440
_WORDS = {
    "e2e_mean": ("End-to-end latency", "Mean end-to-end latency of each run."),
    "ttft_mean": ("Time to first token", "Mean time to the first token of each run."),
    "tpot_mean": ("Time per output token", "Mean time per further token of each run."),
    "e2e_p99": ("End-to-end latency, p99", "99th percentile of the end-to-end latency."),
    "kv_cache_tokens": ("KV cache size", "Tokens that the KV cache holds, as logged at start-up."),
}
_COLORS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GRAY)


def build_page(
    rows: Sequence[Row],
    cases: Sequence[Case],
    summary: Summary,
    peers: Mapping[str, Errors],
    command: str,
) -> str:
    """Return the page as one HTML text; the same input gives the same text."""
    gpus = {case.id: traits_of(case)["gpu"] for case in cases}
    drawn = [row for row in rows if row.stage == OVERALL and row.ape is not None]
    charts = [
        parity_chart([row for row in drawn if row.metric == metric], gpus)
        for metric in _WORDS
        if any(row.metric == metric for row in drawn)
    ]
    sections = [
        Section("parity", "Parity", "Predicted over measured", charts),
        _of_table("peers", "Peers", "Beside other simulators", peer_table(summary)),
        _of_table("gpus", "GPUs", "Errors by GPU", group_table(summary, "gpu")),
        _of_table("models", "Models", "Errors by model", group_table(summary, "model")),
        _of_table("profiles", "Engines", "Errors by engine", group_table(summary, "profile")),
        _of_table("rows", "Experiments", "Each experiment", experiment_table(rows, peers)),
        _of_table("missing", "Not predicted", "Not predicted", unpredicted_table(summary)),
    ]
    return render_page(
        "validate.html.j2",
        charts,
        sentence=_sentence(summary),
        command=command,
        facts=metric_table(summary),
        drawn=[section for section in sections if section.charts or section.table],
    )


def _of_table(key: str, short: str, title: str, table: Table) -> Section:
    return Section(key, short, title, table=table if table.rows else None)


def _sentence(summary: Summary) -> str:
    named = {"e2e_mean": "end-to-end", "ttft_mean": "to the first token", "tpot_mean": "per token"}
    said = [
        f"{summary.metrics[metric].median:.1f} % {words} ({summary.metrics[metric].n})"
        for metric, words in named.items()
        if metric in summary.metrics
    ]
    if not said:
        return "No latency could be compared"
    return f"Half of the mean latencies are within {', '.join(said)} of what was measured"


def parity_chart(rows: Sequence[Row], gpus: Mapping[str, str]) -> Chart:
    """Show one metric's predictions over its measurements, a color for each GPU.

    Args:
        rows: Of one metric, each with a prediction, at least one.
        gpus: By experiment.
    """
    metric = rows[0].metric
    words, definition = _WORDS[metric]
    unit = METRICS[metric]
    errors = np.array([row.ape for row in rows], dtype=np.float64)
    within = 100 * float((errors <= 10).mean())
    title = f"{words}: median error {np.median(errors):.1f} %, {within:.0f} % of runs within 10 %"
    names = list(dict.fromkeys(gpus[row.id] for row in rows))
    colors = {name: _COLORS[min(place, len(_COLORS) - 1)] for place, name in enumerate(names)}
    points = [_points([r for r in rows if gpus[r.id] == n], n, colors[n]) for n in names]
    values = [value for row in rows for value in (row.actual, row.predicted) if value]
    ends = [0.9 * min(values), 1.1 * max(values)]
    table = [
        [row.id, f"{row.actual:.5g}", f"{row.predicted:.5g}", f"{row.error_percent:+.1f} %"]
        for row in rows
    ]
    return Chart(
        key=f"chart-{metric}",
        title=title,
        definition=f"{definition} On the line, prediction and measurement agree; dashed: 10 % off.",
        alt=f"Points about a diagonal over two logarithmic axes. {title}.",
        figure={
            "data": [*_diagonals(ends), *points],
            "layout": layout(
                HEIGHT_PX,
                xaxis=axis(f"measured ({unit})", type="log"),
                yaxis=axis(f"predicted ({unit})", type="log"),
            ),
        },
        table=Table(["Experiment", "Measured", "Predicted", "Error"], table),
        keys=[Key(name, colors[name]) for name in names],
    )


def _points(rows: Sequence[Row], name: str, color: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plotly_text(name),
        "x": [row.actual for row in rows],
        "y": [row.predicted for row in rows],
        "text": [f"{plotly_text(row.id)}: {row.error_percent:+.1f} %" for row in rows],
        "hovertemplate": "%{text}<br>measured %{x:.5g}, predicted %{y:.5g}<extra></extra>",
        "marker": {"color": color, "size": 7, "opacity": 0.75},
    }


def _diagonals(ends: Sequence[float]) -> list[dict[str, Any]]:
    """Return the line of agreement, and those of 10 % more and less."""
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": list(ends),
            "y": [factor * end for end in ends],
            "line": {"color": GRAY, "width": 1, "dash": "solid" if factor == 1 else "dash"},
            "hoverinfo": "skip",
        }
        for factor in (0.9, 1.0, 1.1)
    ]
