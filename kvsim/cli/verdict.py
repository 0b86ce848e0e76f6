"""The answer in the terminal: verdict first, then variants side by side, then where things are."""

from collections.abc import Sequence
from pathlib import Path

from kvsim.cli.text import aligned, wrapped
from kvsim.metrics.catalog import format_figure, format_number, format_range
from kvsim.metrics.classes import all_targets, class_table, met_word
from kvsim.metrics.summary import certainty, compare
from kvsim.report import advice
from kvsim.rundir.read import REPORT, Run
from kvsim.scenario.schema import BASE
from kvsim.units import format_duration

_MOST_CHANGES = 5  # that are shown


def as_text(run: Run, target: Path, with_report: bool) -> str:
    """Return what `kvsim run` prints, at most 80 columns wide where names allow it."""
    base = run.summaries[BASE]
    blocks = [
        wrapped(base["verdict"]["sentence"]),
        wrapped("Limit: " + base["limits"]["sentence"]),
        _advice(run.advice),
        _targets(run),
        wrapped(certainty(base)),
        _side_by_side(run),
        _of_variants(run),
        _classes(run),
        *(wrapped(f"Note: {note}") for note in run.notes_on(BASE)),
        _places(run, target, with_report),
    ]
    return "\n\n".join(block for block in blocks if block)


def _advice(rows: Sequence[advice.Row]) -> str:
    """Show what to change next, the largest effects in a table; nothing if nobody asked."""
    if not rows:
        return ""
    said = [wrapped(f"{advice.TITLE}: {advice.finding(rows)}")]
    base, seen = advice.base_of(rows), advice.looked_at(rows)
    if seen:
        unit = base["unit"]
        head = ["", "load", "interval", unit, "GPUs", "USD/Mtok"]
        cells = [_advice_cells(row) for row in (base, *seen[:_MOST_CHANGES])]
        said.append(aligned([head, *cells]))
    more = len(seen) - _MOST_CHANGES
    counts = [
        (more, "with less effect"),
        (len(advice.not_looked_at(rows)), "not looked at, the time was up"),
        (len(advice.declined(rows)), "not tried"),
    ]
    others = ", ".join(f"{count} {words}" for count, words in counts if count > 0)
    return "\n\n".join([*said, *([wrapped(f"Other changes: {others}.")] if others else [])])


def _advice_cells(row: advice.Row) -> list[str]:
    """Return the cells of a change, without units."""
    ratio, gpus = row["ratio"], row["gpus"]
    usd = row["usd_per_million_output_tokens"]
    return [
        row["change"],
        "–" if ratio is None else f"{ratio:.3g} x",
        advice.between(row) if row["key"] != "base" else "",
        "none" if row["capacity"] is None else format_number(row["capacity"]),
        "–" if gpus is None else f"{gpus:,.0f}",
        "–" if usd is None else f"{usd:,.2f}",
    ]


def _targets(run: Run) -> str:
    targets = all_targets(run.summaries[BASE])
    rows: list[tuple[str, ...]] = [("target", "found", "95 % interval", "at most", "margin", "")]
    for of_class, target in targets:
        figure, margin = target["figure"], target["margin"]
        rows.append(
            (
                f"{of_class}: {target['name']}" if of_class else target["name"],
                format_figure(figure, target["value"]),
                format_range(figure, target["low"], target["high"]),
                format_figure(figure, target["bound"]),
                "" if margin is None else _margin(margin),
                met_word(target),
            )
        )
    return aligned(rows) if targets else ""


def _margin(margin: float) -> str:
    """Show a margin; a value of several times its bound as that."""
    return f"{margin:+.0%}" if margin > -1 else f"{1 - margin:.3g} x"


def _side_by_side(run: Run) -> str:
    names = list(run.summaries)
    rows: list[tuple[str, ...]] = [("", *names)]
    if all_targets(run.summaries[BASE]):
        rows.append(("SLO", *(met_word(run.summaries[name]["verdict"]) for name in names)))
    for row in compare(run.summaries):
        figures = (format_figure(row["name"], row["values"][name]) for name in names)
        rows.append((row["label"], *figures))
    return aligned(_with_intervals(rows, run))


def _with_intervals(rows: list[tuple[str, ...]], run: Run) -> list[tuple[str, ...]]:
    """Add a column that says how sure the last one is, if there is room for it.

    That is the interval of a lone variant, or that of a second one's difference to the base.
    """
    *others, last = run.summaries.values()
    source = "differences" if others else "uncertainty"
    if len(others) > 1 or not last[source]:
        return rows
    added = {"": "difference (95 %)" if others else "95 % interval"}
    for row in compare(run.summaries):
        found = last[source].get(row["name"])
        if found:
            added[row["label"]] = format_range(row["name"], found["low"], found["high"])
    return [(*row, added.get(row[0], "")) for row in rows]


def _of_variants(run: Run) -> str:
    """Tell how each variant does by its own tightest target; the table has no room for it."""
    if not all_targets(run.summaries[BASE]):
        return ""
    sentences = {name: summary["verdict"]["sentence"] for name, summary in run.summaries.items()}
    told = (wrapped(f"{name}: {text}") for name, text in sentences.items() if name != BASE)
    return "\n".join(told)


def _classes(run: Run) -> str:
    """Show the classes of traffic in each variant."""
    blocks = []
    for name, summary in run.summaries.items():
        if summary["classes"]:
            header, rows = class_table(summary["classes"])
            title = [] if len(run.summaries) == 1 else [f"Classes of traffic, {name}:"]
            blocks.append("\n".join([*title, aligned([tuple(header), *map(tuple, rows)])]))
    return "\n\n".join(blocks)


def _places(run: Run, target: Path, with_report: bool) -> str:
    figures = run.summaries[BASE]["figures"]
    over = format_duration(figures["window_s"])
    about = f"{figures['requests_total']:,} requests over {over}; tables in {target}/"
    return f"{about}\nReport: {target / REPORT}" if with_report else about
