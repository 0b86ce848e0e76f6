"""Chart of how long prompts and answers are."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvsim.metrics.catalog import format_number
from kvsim.report.drawing import HEIGHT_PX, line, log_axis
from kvsim.report.figure import BLUE, VERMILLION, Chart, Key, Table, axis, layout, rounded, sentence
from kvsim.report.series import Floats, Ints

MAX_STEPS = 300
TABLE_PERCENTILES = (1, 10, 25, 50, 75, 90, 99, 100)
LOOKS = {"prompts": (BLUE, "solid"), "answers": (VERMILLION, "dash")}


def length_chart(prompt_tokens: Ints, output_tokens: Ints, note: str = "") -> Chart | None:
    """Show the distributions of prompt and answer lengths on one logarithmic axis; None without.

    Args:
        prompt_tokens: Lengths of prompts, in any order.
        output_tokens: Lengths of answers; they need not be as many.
        note: What the reader must know of them.
    """
    lengths = {
        name: np.sort(tokens)
        for name, tokens in (("prompts", prompt_tokens), ("answers", output_tokens))
        if len(tokens)
    }
    if not lengths:
        return None
    said = (
        f"the median {name.removesuffix('s')} has {_tokens_words(float(np.median(tokens)))}"
        for name, tokens in lengths.items()
    )
    title = sentence(", ".join(said))
    ends = [int(tokens[place]) for tokens in lengths.values() for place in (0, -1)]
    return Chart(
        key="chart-lengths",
        title=title,
        definition="Share of the prompts, and of the answers, that have at most so many tokens.",
        alt=f"Two rising stepped lines over a logarithmic axis. {title}.",
        figure={
            "data": [_distribution(tokens, name) for name, tokens in lengths.items()],
            "layout": layout(
                HEIGHT_PX,
                xaxis=log_axis("tokens", ends),
                yaxis=axis("% that have at most so many", range=[0, 101]),
            ),
        },
        table=_table(lengths),
        keys=[Key(name, *LOOKS[name]) for name in lengths],
        note=note,
    )


def _tokens_words(tokens: float) -> str:
    return f"{format_number(tokens)} token{'' if tokens == 1 else 's'}"


def distribution(ordered: Ints, most: int = MAX_STEPS) -> tuple[Ints, Floats]:
    """Return lengths, and which share is at most as long; of many those evenly spread in rank.

    Args:
        ordered: Lengths in ascending order, at least one.
        most: How many to return at most.
    """
    last = np.flatnonzero(np.diff(ordered, append=ordered[-1] + 1))
    if len(last) > most:
        ranks = np.linspace(0, len(ordered) - 1, most).round().astype(np.int64)
        last = np.unique(last[np.searchsorted(last, ranks)])
    return ordered[last], (last + 1) / len(ordered)


def _distribution(ordered: Ints, name: str) -> dict[str, Any]:
    values, shares = distribution(ordered)
    color, dash = LOOKS[name]
    drawn = line([int(values[0]), *values.tolist()], [0.0, *rounded(100 * shares, 4)], color)
    drawn["line"] |= {"shape": "hv", "dash": dash}
    hover = f"%{{y:.3g}} % of {name} have at most %{{x:,}} tokens<extra></extra>"
    return drawn | {"hovertemplate": hover}


def _table(lengths: dict[str, Ints]) -> Table:
    rows: list[Sequence[str]] = []
    for name, tokens in lengths.items():
        values = np.percentile(tokens, TABLE_PERCENTILES).tolist()
        shown = map(format_number, (float(tokens.mean()), *values))
        rows.append([name, f"{len(tokens):,}", *shown])
    names = [f"p{percent}" for percent in TABLE_PERCENTILES[:-1]]
    return Table(["Tokens", "count", "mean", *names, "max"], rows)
