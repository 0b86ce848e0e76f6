"""What to change next: a sentence, a chart of ratios, a table; all from `kvsim.tables.ADVICE`."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.metrics.catalog import format_figure, format_number
from kvsim.report.figure import (
    BLUE,
    GRAY,
    ORANGE,
    Chart,
    Section,
    Table,
    axis,
    layout,
    plotly_text,
    sentence,
)

Row = Mapping[str, Any]

TITLE = "What to change next"
_ROW_PX = 34
_HEADER = ["Change", "Load that fits", "Interval", "Capacity", "GPUs", "Cost per hour"]
_HEADER += ["Per million output tokens", "What limits it next, and what the numbers rest on"]
_NUMBERS = ["Change", "Set", "Times the load", "Interval", "Capacity", "Interval", "Simulations"]


def base_of(rows: Sequence[Row]) -> Row:
    """Return the row of the scenario as it is."""
    return next(row for row in rows if row["key"] == "base")


def looked_at(rows: Sequence[Row]) -> list[Row]:
    """Return the changes that were simulated, the largest effect first."""
    return [
        row for row in rows if row["key"] != "base" and row["outcome"] not in {"late", "declined"}
    ]


def not_looked_at(rows: Sequence[Row]) -> list[Row]:
    """Return the changes that the time did not suffice for."""
    return [row for row in rows if row["key"] != "base" and row["outcome"] == "late"]


def declined(rows: Sequence[Row]) -> list[Row]:
    """Return the changes that were not tried, each with its reason."""
    return [row for row in rows if row["outcome"] == "declined"]


# In words


def finding(rows: Sequence[Row]) -> str:
    """Return what to change next, in a sentence."""
    base, seen = base_of(rows), looked_at(rows)
    if not seen:
        return _nothing_seen(base, not_looked_at(rows))
    if base["outcome"] in {"never", "unknown"}:
        return _without_base(base, seen)
    return _gains(base, seen)


def _nothing_seen(base: Row, late: Sequence[Row]) -> str:
    if base["outcome"] == "late":
        return f"Nothing was compared: {base['why']}."
    if late:
        fits = f"As it is, {capacity(base)} fit; nothing" if base["capacity"] else "Nothing"
        return f"{fits} was compared: {late[0]['why']}; --advise-budget-s gives more."
    if base["outcome"] == "at_least":
        return "There is nothing to change: no load that was tried misses the SLO."
    return "There is nothing to compare: no change can be tried."


def _gains(base: Row, seen: Sequence[Row]) -> str:
    gains = [row for row in seen if (row["ratio"] or 0) > 1 and is_clear(row)]
    if not gains:
        return "No change that was tried surely lets more load fit."
    best = gains[0]
    gain = f"{times(best)} the load fits, {capacity(best)} instead of {_amount(base)}"
    said = sentence(f"{best['change']}: {gain}")
    as_large = [row for row in gains if not needs_more(row, base)]
    if not needs_more(best, base):
        return f"{said}."
    if not as_large:
        return f"{said}; nothing surely helps without more GPUs."
    other = as_large[0]
    return f"{said}; without more GPUs, {other['change']}: {times(other)}."


def _without_base(base: Row, seen: Sequence[Row]) -> str:
    known = [row for row in seen if row["capacity"]]
    start = "No load that was tried meets the SLO as it is"
    if base["outcome"] != "never":
        start = "How much load fits as it is could not be told"
    if not known:
        return f"{start}, nor with any change that was tried."
    best = max(known, key=lambda row: row["capacity"])
    return f"{start}; {best['change']}: {capacity(best)}."


def is_clear(row: Row) -> bool:
    """Tell whether the interval of a ratio lies on one side of 1, as far as it is known."""
    low, high = row["ratio_low"], row["ratio_high"]
    return (low is not None and low > 1) or (high is not None and high < 1)


def needs_more(row: Row, base: Row) -> bool:
    """Tell whether a change takes more GPUs than the scenario as it is."""
    return (row["gpus"] or 0) > (base["gpus"] or 0)


def times(row: Row) -> str:
    """Show a ratio: `1.9 times`."""
    if row["ratio"] is None:
        return "–"
    least = "at least " if row["outcome"] == "at_least" else ""
    return f"{least}{_two_digits(row['ratio'])} times"


def between(row: Row, name: str = "ratio") -> str:
    """Show the interval of a ratio, or of the capacity."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if low is None and high is None:
        return "–"
    if high is None:
        return f"{format_number(low)} or more"
    if low is None:
        return f"at most {format_number(high)}"
    return f"{format_number(low)} to {format_number(high)}"


def capacity(row: Row) -> str:
    """Show a capacity with its unit."""
    if row["capacity"] is None:
        return "none"
    return f"{_amount(row)} {row['unit']}"


def _amount(row: Row) -> str:
    value = row["capacity"]
    return format_number(int(value) if row["unit"] == "users" else value)


def money(row: Row, figure: str) -> str:
    """Show what a change costs, by a figure of the summary."""
    return format_figure(figure, row[figure])


def what_to_know(row: Row) -> str:
    """Return what limits a change next, what its prices rest on, what no simulation tells."""
    limits = ": ".join(part for part in (row["limited_by"], row["limit"]) if part)
    basis = f"Step times: {row['basis']}" if row["basis"] else ""
    sentences = [f"{one.removesuffix('.')}." for one in (limits, basis, row["why"]) if one]
    return " ".join([*sentences, row["caveat"]]).strip().replace(" %", "\u00a0%")


def left_out(rows: Sequence[Row]) -> str:
    """Name the changes without numbers, in sentences; nothing if there are none."""
    late, others = not_looked_at(rows), declined(rows)
    said = []
    if late:
        names = ", ".join(row["change"] for row in late)
        said.append(f"Not looked at, since {late[0]['why']}: {names}.")
    if others:
        reasons = "; ".join(f"{row['change']} ({row['why']})" for row in others)
        said.append(f"Not tried: {reasons}.")
    return " ".join(said)


def confidence_words(rows: Sequence[Row]) -> str:
    """Say what the intervals are."""
    known = [row["confidence"] for row in rows if row["confidence"] is not None]
    if known:
        return f"{100 * known[0]:g} % intervals"
    return "intervals as narrow as the search"


def _two_digits(value: float) -> str:
    return f"{value:.2g}" if value < 10 else format_number(value)


# The part of the page


def advice_section(rows: Sequence[Row]) -> list[Section]:
    """Return the part of the page; none if nobody asked for advice."""
    if not rows:
        return []
    charts = _charts(rows)
    about = (
        "Each change alone, found by a search for the highest load that meets the SLO; all "
        f"searches face the same draws. Numbers have {confidence_words(rows)}; costs and limits "
        "are those at capacity."
    )
    said = about if charts else f"{finding(rows)} {left_out(rows)}".strip()
    return [Section("advice", "Advice", TITLE, charts, said, table(rows))]


def table(rows: Sequence[Row]) -> Table | None:
    """Return all that was simulated, the scenario as it is first; None if nothing was."""
    base = base_of(rows)
    if base["outcome"] == "late":
        return None
    return Table(_HEADER, [_cells(row) for row in [base, *looked_at(rows)]])


def _cells(row: Row) -> list[str]:
    is_base = row["key"] == "base"
    return [
        row["change"],
        times(row) if not is_base else "1 times" if row["ratio"] else "–",
        between(row) if not is_base else "",
        capacity(row),
        "–" if row["gpus"] is None else f"{row['gpus']:,.0f}",
        money(row, "usd_per_hour"),
        money(row, "usd_per_million_output_tokens"),
        what_to_know(row),
    ]


def _charts(rows: Sequence[Row]) -> list[Chart]:
    base, known = base_of(rows), [row for row in looked_at(rows) if row["ratio"] is not None]
    if not known:
        return []
    groups = [[row for row in known if needs_more(row, base) is more] for more in (False, True)]
    names = [plotly_text(row["change"]) for row in reversed(known)]
    traces = [_dots(group, bool(place)) for place, group in enumerate(groups) if group]
    figure = {
        "data": traces,
        "layout": layout(
            _ROW_PX * max(len(known), 2) + 90,
            xaxis=axis("times the load", showgrid=True, rangemode="tozero"),
            yaxis=axis("", categoryorder="array", categoryarray=names, automargin=True),
            shapes=[_as_it_is()],
        ),
    }
    chart = Chart(
        "advice-ratios",
        finding(rows).removesuffix("."),
        "Highest load that meets the SLO, over that of the scenario as it is (dashed line); lines "
        f"are {confidence_words(rows)}. Circles take no more GPUs than now, diamonds do.",
        f"Ratios of {len(known)} changes, the largest on top.",
        figure,
        Table(_NUMBERS, [_numbers(row) for row in (base, *known)]),
        note=left_out(rows),
    )
    return [chart]


def _dots(rows: Sequence[Row], more_gpus: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [row["ratio"] for row in rows],
        "y": [plotly_text(row["change"]) for row in rows],
        "text": [f"{times(row)} ({between(row)}); {capacity(row)}" for row in rows],
        "marker": {
            "color": ORANGE if more_gpus else BLUE,
            "symbol": "diamond" if more_gpus else "circle",
            "size": 11,
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_reach(row, "ratio_high") for row in rows],
            "arrayminus": [_reach(row, "ratio_low") for row in rows],
            "thickness": 2,
            "width": 6,
        },
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }


def _reach(row: Row, end: str) -> float:
    """Return how far an end of the interval is from the ratio; an unknown one is not drawn."""
    return 0.0 if row[end] is None else abs(row[end] - row["ratio"])


def _as_it_is() -> dict[str, Any]:
    line = {"color": GRAY, "width": 1.5, "dash": "dash"}
    return {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _numbers(row: Row) -> list[str]:
    return [
        row["change"],
        row["settings"] or "–",
        "–" if row["ratio"] is None else f"{row['ratio']:.3g}",
        between(row) if row["key"] != "base" else "",
        capacity(row),
        between(row, "capacity"),
        f"{row['simulations']:,.0f}",
    ]
