"""The answer in the terminal: verdict first, then variants side by side, then where things are."""

from pathlib import Path

from kvsim.cli import advice
from kvsim.cli.text import WIDTH, aligned, wrapped
from kvsim.metrics.catalog import format_figure, format_number, format_range
from kvsim.metrics.classes import all_targets, class_table, met_word
from kvsim.metrics.prices import cost_in_words
from kvsim.metrics.summary import certainty, compare
from kvsim.names import short_name
from kvsim.rundir.read import REPORT, Run
from kvsim.scenario.schema import BASE
from kvsim.units import format_duration

LONGEST_NAME = 40


def as_text(run: Run, target: Path, with_report: bool) -> str:
    """Return what `kvsim run` prints, in the order of the report; at most 80 columns wide."""
    base = run.summaries[BASE]
    blocks = [
        wrapped(base["verdict"]["sentence"]),
        *(wrapped(f"Mind: {caveat}") for caveat in base["caveats"]),
        wrapped("Limit: " + base["limits"]["sentence"]),
        advice.as_text(run.advice),
        _targets(run),
        wrapped("Cost: " + _cost(run)),
        wrapped(certainty(base)),
        _side_by_side(run),
        _of_variants(run),
        _classes(run),
        *(wrapped(f"Note: {note}") for note in run.notes_on(BASE)),
        _places(run, target, with_report),
    ]
    return "\n\n".join(block for block in blocks if block)


def _cost(run: Run) -> str:
    """Say what the base costs, as the report does."""
    words = cost_in_words(run.summaries[BASE], run.manifest["variants"][BASE])
    return words[:1].lower() + words[1:]


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


def _short(name: str) -> str:
    return short_name(name, LONGEST_NAME)


def _margin(margin: float) -> str:
    """Show a margin; a value of several times its bound as that."""
    return f"{margin:+.0%}" if margin > -1 else f"{format_number(1 - margin)} x"


def _side_by_side(run: Run) -> str:
    names = list(run.summaries)
    rows: list[tuple[str, ...]] = [("", *map(_short, names))]
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
    told = (wrapped(f"{_short(name)}: {text}") for name, text in sentences.items() if name != BASE)
    return "\n".join(told)


def _classes(run: Run) -> str:
    """Show the classes of traffic in each variant."""
    blocks = []
    for name, summary in run.summaries.items():
        if summary["classes"]:
            header, rows = class_table(summary["classes"])
            table = aligned([header, *([_count(cell) for cell in row] for row in rows)])
            title = wrapped(f"Classes of traffic, {_short(name)}:")
            blocks.append(table if len(run.summaries) == 1 else f"{title}\n{table}")
    return "\n\n".join(blocks)


def _count(cell: str) -> str:
    """Show a number of requests without its unit, which the heading names."""
    return cell.removesuffix(" requests")


def _places(run: Run, target: Path, with_report: bool) -> str:
    figures = run.summaries[BASE]["figures"]
    over = format_duration(figures["window_s"])
    count = figures["requests_total"]
    about = f"{count:,} request{'' if count == 1 else 's'} over {over};"
    tables = f"tables in {target}/"  # a path is not cut: it is there to be copied
    told = [f"{about} {tables}"] if len(about) + len(tables) < WIDTH else [about, tables]
    return "\n".join([*told, *([f"Report: {target / REPORT}"] if with_report else [])])
