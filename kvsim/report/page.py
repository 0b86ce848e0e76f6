"""One HTML page that answers first and shows why: offline, self-contained, the same every time."""

from collections.abc import Sequence

from kvsim.report import sections, uncertainty
from kvsim.report.advice import advice_section
from kvsim.report.figure import Section, Table
from kvsim.report.inputs import ReportInput, Variant
from kvsim.report.over_time import occupancy, preemptions, queue_and_batch
from kvsim.report.shell import render_page
from kvsim.report.step_time import step_time
from kvsim.report.tails import EXPLANATION, tails
from kvsim.report.time_axis import TimeAxis
from kvsim.table_files import row_count


def build_report(run: ReportInput) -> str:
    """Return the page: one file of HTML that opens from disk and asks the network for nothing.

    The function is pure: the same input gives the same text.

    Raises:
        ValueError: The run has no variant.
    """
    if not run.variants:
        raise ValueError("a report needs at least one variant")
    drawn, advice = _sections(run), advice_section(run.advice)
    charts = [chart for section in (*advice, *drawn) for chart in section.charts]
    base = run.variants[0]
    return render_page(
        "page.html.j2", charts, run=run, base=base, advice=advice, drawn=drawn, **_tables(run)
    )


def _sections(run: ReportInput) -> list[Section]:
    if not any(row_count(variant.steps) for variant in run.variants):
        nothing = "No engine step ran, so there is nothing to draw over time."
        counted = sections.outcomes(run.variants)
        return [Section("requests", "Requests", "Requests", sentence=nothing, table=counted)]
    time = TimeAxis.of_run(run.variants)
    return [
        *_class_section(run.variants),
        Section("kv", "KV cache", "KV cache over time", [occupancy(run.variants, time)]),
        Section(
            "queue", "Queue", "Queue and batch over time", [queue_and_batch(run.variants, time)]
        ),
        *_latency_section(run),
        *_step_section(run.variants),
        _preemption_section(run.variants, time),
    ]


def _class_section(variants: Sequence[Variant]) -> list[Section]:
    table = sections.classes(variants)
    if table is None:
        return []
    about = "Latencies of each class's own requests; the SLO is the class's own, if it has one."
    return [Section("classes", "Classes", "Classes of traffic", (), about, table)]


def _latency_section(run: ReportInput) -> list[Section]:
    charts = tails(run.variants, run.warmup_s)
    if not charts:
        return []
    return [Section("latency", "Latency", "Latency tails", charts, EXPLANATION)]


def _step_section(variants: Sequence[Variant]) -> list[Section]:
    chart = step_time(variants)
    return [Section("steps", "Step time", "Where step time goes", [chart])] if chart else []


def _preemption_section(variants: Sequence[Variant], time: TimeAxis) -> Section:
    chart = preemptions(variants, time)
    return Section(
        "preemptions",
        "Preemptions",
        "Preemptions and outcomes",
        [chart] if chart else [],
        "" if chart else "No request was preempted.",
        sections.outcomes(variants),
    )


def _tables(run: ReportInput) -> dict[str, object]:
    variants = run.variants
    facts = [[name, value] for name, value in run.facts.items()]
    return {
        "tiles": sections.tiles(variants[0]),
        "targets": sections.target_rows(variants[0]),
        "finding": sections.comparison_finding(variants),
        "comparison": sections.comparison(variants),
        "differences": uncertainty.differences(variants),
        "certainty": uncertainty.sentences(variants),
        "observations": uncertainty.observations(variants),
        "all_figures": sections.all_figures(variants),
        "basis_shares": sections.basis_shares(variants),
        "basis_lines": sections.basis_lines(variants),
        "notes": sections.notes(variants),
        "memory": sections.memory(variants),
        "facts": Table(["Run", ""], facts),
        "inputs": sections.resolved_inputs(variants),
    }
