"""The page of a search: the answer, the curves that were found, and every value that was tried."""

from kvsim.metrics.catalog import latency_and_statistic
from kvsim.report.figure import Section, Table
from kvsim.report.shell import render_page
from kvsim.studies.capacity.answer import CapacityAnswer
from kvsim.studies.capacity.curves import goodput_chart, latency_chart, targets_chart
from kvsim.studies.capacity.observe import DRAWN
from kvsim.studies.capacity.words import tried_table


def build_page(answer: CapacityAnswer, name: str, command: str) -> str:
    """Return the page as one HTML text; the same input gives the same text.

    Args:
        answer: What was found.
        name: Name of the scenario.
        command: What reproduces the page.
    """
    named = {(latency_and_statistic(target) or ("",))[0] for target in answer.slo}
    latencies = [latency_chart(answer, each) for each in DRAWN if each in named]
    sections = [
        Section("limits", "What limits", "What limits", [targets_chart(answer)]),
        Section("latency", "Latency", "Latency", latencies),
        Section("goodput", "Goodput", "Goodput", [goodput_chart(answer)]),
        Section("trials", "Simulations", "Every simulation", table=_trials(answer)),
    ]
    sections = [one for one in sections if one.charts or one.table]
    return render_page(
        "capacity.html.j2",
        [chart for section in sections for chart in section.charts],
        name=name,
        sentence=answer.sentence,
        tried=tried_table(answer),
        notes=answer.notes,
        command=command,
        drawn=sections,
    )


def _trials(answer: CapacityAnswer) -> Table:
    names = list(answer.allowed)
    header = ["value", "replication", "requests", "warm-up", *names]
    rows = [
        [
            f"{one.value:.4g}",
            str(one.replication),
            str(one.requests),
            str(one.warmup_requests),
            *("–" if one.means.get(name) is None else f"{one.means[name]:.4g}" for name in names),
        ]
        for one in answer.trials
    ]
    return Table(header, rows)
