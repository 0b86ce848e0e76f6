"""`--advise`: find what to change next, and say it in the terminal."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from kvsim.cli.text import aligned, wrapped

if TYPE_CHECKING:
    from kvsim.report.advice import Row
    from kvsim.rundir.write import Ran
    from kvsim.scenario.load import ScenarioFile
    from kvsim.study.tasks import Crew

BUDGET_S = 60.0
_MOST_CHANGES = 5  # that are shown
_HEADER = ("GPUs", "USD/Mtok")


def refuse_without_capacity(file: "ScenarioFile") -> None:
    """Refuse a scenario that no advice can be found for, before anything runs.

    Raises:
        InputError: There is no SLO, or no load that can be varied.
    """
    from kvsim.studies.advice.search import refuse_unanswerable

    refuse_unanswerable(file)


def with_advice(
    file: "ScenarioFile", ran: "Ran", workers: AbstractContextManager["Crew"], budget_s: float
) -> "Ran":
    """Find what to change next, with a bar on stderr if it is a terminal; write it to the run."""
    from kvsim.cli.progress import counted
    from kvsim.rundir.write import with_advised
    from kvsim.scenario.schema import BASE
    from kvsim.studies.advice.answer import rows_of
    from kvsim.studies.advice.search import find_advice

    with counted("capacities") as counted_so, workers as crew:

        def tell(done: int, of: int, words: str) -> None:
            if counted_so:
                counted_so(done, of, f"capacities, now {words}")

        found = find_advice(file, ran.run.summaries[BASE], crew, budget_s, tell)
    return with_advised(ran, rows_of(found))


def as_text(rows: Sequence["Row"]) -> str:
    """Show what to change next, the largest effects in a table; nothing if nobody asked."""
    if not rows:
        return ""
    from kvsim.report import advice

    said = [wrapped(f"{advice.TITLE}: {advice.finding(rows)}")]
    base, seen = advice.base_of(rows), advice.looked_at(rows)
    if seen:
        header = ["", "load", "interval", base["unit"], *_HEADER]
        said.append(aligned([header, *map(_cells, (base, *seen[:_MOST_CHANGES]))]))
    counts = [
        (len(seen) - _MOST_CHANGES, "with less effect"),
        (len(advice.not_looked_at(rows)), "not looked at, the time was up"),
        (len(advice.declined(rows)), "not tried"),
    ]
    others = ", ".join(f"{count} {words}" for count, words in counts if count > 0)
    return "\n\n".join([*said, *([wrapped(f"Other changes: {others}.")] if others else [])])


def _cells(row: "Row") -> list[str]:
    """Return the cells of a change, without units."""
    from kvsim.metrics.catalog import format_number
    from kvsim.report.advice import between

    ratio, gpus = row["ratio"], row["gpus"]
    usd = row["usd_per_million_output_tokens"]
    return [
        row["change"],
        "–" if ratio is None else f"{ratio:.3g} x",
        between(row) if row["key"] != "base" else "",
        "none" if row["capacity"] is None else format_number(row["capacity"]),
        "–" if gpus is None else f"{gpus:,.0f}",
        "–" if usd is None else f"{usd:,.2f}",
    ]
