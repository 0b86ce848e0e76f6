"""A sweep's page: the answer first, then cost against latency, maps, lines, all points."""

from collections import Counter
from collections.abc import Sequence

from kvsim.report.figure import Section, Table
from kvsim.report.shell import render_page
from kvsim.studies.sweep.answer import Answer
from kvsim.studies.sweep.front import dot_charts, front_chart
from kvsim.studies.sweep.heat_maps import MOST_MAPS, heat_maps
from kvsim.studies.sweep.lines import lines
from kvsim.studies.sweep.names import value_text
from kvsim.studies.sweep.outcome import DONE
from kvsim.studies.sweep.parallel import Dimension, parallel_chart
from kvsim.studies.sweep.tables import error_line, headlines, point_rows, shown_first
from kvsim.studies.sweep.view import View

_MOST_ROWS = 300
_MOST_ERRORS = 10


def build_page(answer: Answer, question: str, command: str) -> str:
    """Return the page as one HTML text; the same results give the same text.

    Args:
        answer: Of the sweep.
        question: Which question it answers.
        command: What reproduces the page.
    """
    view = View(answer)
    sections, dimensions = _sections(view)
    return render_page(
        "sweep.html.j2",
        [chart for section in sections for chart in section.charts],
        name=answer.results.sweep.name,
        question=question,
        answer=answer,
        headlines=list(headlines(answer)),
        facts=_facts(view),
        drawn=sections,
        filters=dimensions,
        command=command,
    )


def _sections(view: View) -> tuple[list[Section], Sequence[Dimension]]:
    parallel = parallel_chart(view)
    front = front_chart(view)
    one = "Each map has a figure over the two longest axes of numbers; ★ is the choice."
    maps = len(view.answer.metrics) * len(view.answer.results.sweep.variants)
    one += f" {MOST_MAPS} of {maps} maps are drawn." if maps > MOST_MAPS else ""
    found = [
        Section("front", "Cost and latency", "Cost against latency", [front] if front else []),
        Section("maps", "Maps", "Over two axes", heat_maps(view), one),
        Section("lines", "Lines", "Along one axis", lines(view)),
        Section("dots", "Samples", "Over sampled axes", dot_charts(view)),
        Section("parallel", "All axes", "All axes side by side", [parallel[0]] if parallel else []),
        _points(view.answer),
        *_failures(view.answer),
    ]
    shown = [section for section in found if section.charts or section.table]
    return shown, parallel[1] if parallel else ()


def _points(answer: Answer) -> Section:
    order = shown_first(answer)
    header, rows = point_rows(answer, order[:_MOST_ROWS])
    others = "those that meet the SLO" if answer.results.is_judged else "the others"
    words = f"The choice, the front, then {others}, the cheapest first."
    if len(order) > _MOST_ROWS:
        words += f" {_MOST_ROWS} of {len(order):,} points; the table file has all."
    return Section("points", "Points", "Points", (), words, Table(header, rows))


def _failures(answer: Answer) -> list[Section]:
    results = answer.results
    failed = Counter(
        (status, error_line(status, error))
        for status, error in zip(results.status, results.errors, strict=True)
        if status != DONE
    )
    if not failed:
        return []
    rows = [[words, kind, f"{n:,}"] for (kind, words), n in failed.most_common(_MOST_ERRORS)]
    words = "These points are kept without figures; `--retry` runs them again."
    if len(failed) > _MOST_ERRORS:
        words += f" {_MOST_ERRORS} of {len(failed):,} different errors."
    header = ["Error", "Kind", "Points"]
    return [Section("failures", "Failures", "What failed", (), words, Table(header, rows))]


def _facts(view: View) -> Table:
    """Return what was swept: each axis and its values."""
    results = view.answer.results
    rows = [["Scenario", results.sweep.scenario]]
    rows += [[f"{path} (set)", value_text(value)] for path, value in results.sweep.set.items()]
    rows += [[path, _values(view.values_of(path))] for path in view.names]
    if len(results.sweep.variants) > 1:
        rows.append(["variants", ", ".join(results.sweep.variants)])
    rows.append(["replications", str(results.sweep.replications)])
    return Table(["What was varied", "Values"], rows)


def _values(values: Sequence[object]) -> str:
    texts = [value_text(value) for value in values]
    if len(texts) <= 12:
        return ", ".join(texts)
    return f"{len(texts):,} values: {', '.join(texts[:4])}, …, {', '.join(texts[-2:])}"
