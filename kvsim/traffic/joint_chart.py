"""Chart of how the lengths of prompts and answers go together."""

import numpy as np
from numpy.typing import NDArray

from kvsim.report.drawing import HEIGHT_PX, log_axis, number
from kvsim.report.figure import BLUE, Chart, Key, Table, layout, rounded
from kvsim.traffic.summary import Traffic

DENSITY_BINS = 40

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def joint_chart(traffic: Traffic) -> Chart:
    """Show how prompt and answer lengths go together."""
    log = traffic.log
    across = _length_edges(log.prompt_tokens, DENSITY_BINS)
    up = _length_edges(log.output_tokens, DENSITY_BINS)
    density = np.histogram2d(log.prompt_tokens, log.output_tokens, bins=(across, up))[0].T
    title = _correlation_words(traffic.rank_correlation)
    filled = np.where(density > 0, np.round(100 * density / len(log), 4), np.nan)
    cells: list[list[float | None]] = [
        [None if np.isnan(share) else float(share) for share in row] for row in filled
    ]
    heat = {
        "type": "heatmap",
        "x": rounded(across, 1),
        "y": rounded(up, 1),
        "z": cells,
        "colorscale": [[0, "rgba(0,114,178,0.12)"], [1, BLUE]],
        "colorbar": {"title": {"text": "% of requests"}, "thickness": 12},
        "hovertemplate": "%{z:.3g} % near %{x:,} prompt and %{y:,} answer tokens<extra></extra>",
    }
    return Chart(
        key="chart-joint",
        title=title,
        definition="Share of the requests by both lengths. Spearman's rank correlation is "
        f"{number(traffic.rank_correlation)}: 1 where longer prompts always have longer answers, "
        "0 where one says nothing about the other.",
        alt=f"A density on logarithmic axes. {title}.",
        figure={
            "data": [heat],
            "layout": layout(
                HEIGHT_PX,
                xaxis=log_axis("prompt tokens", across, 3),
                yaxis=log_axis("answer tokens", up),
            ),
        },
        table=_joint_table(log.prompt_tokens, log.output_tokens),
        keys=[Key("requests with such lengths", BLUE)],
    )


def _correlation_words(correlation: float | None) -> str:
    if correlation is None:
        return "Prompts or answers all have one length"
    strength = next(
        words
        for most, words in ((0.1, "hardly"), (0.3, "weakly"), (0.6, "clearly"), (1.1, "strongly"))
        if abs(correlation) < most
    )
    if strength == "hardly":
        return "How long a prompt is says hardly anything about its answer"
    longer = "longer" if correlation > 0 else "shorter"
    return f"Longer prompts {strength} tend to have {longer} answers"


def _joint_table(prompt: Ints, output: Ints) -> Table:
    """Return the median answer by quarters of the prompts' lengths."""
    bounds = np.percentile(prompt, (0, 25, 50, 75, 100))
    quarter = np.clip(np.searchsorted(bounds[1:-1], prompt, side="left"), 0, 3)
    rows = []
    for place in np.unique(quarter):
        inside = quarter == place
        span = f"{prompt[inside].min():,}–{prompt[inside].max():,}"
        rows.append([span, f"{inside.sum():,}", number(float(np.median(output[inside])))])
    return Table(["Prompt tokens", "Requests", "Median answer"], rows)


def _length_edges(tokens: Ints, bins: int) -> Floats:
    """Return whole numbers that divide a logarithmic axis, the last above all lengths."""
    return np.unique(np.rint(np.geomspace(tokens.min(), tokens.max() + 1, bins + 1)))
