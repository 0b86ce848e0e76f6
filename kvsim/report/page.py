"""One HTML page that answers first and shows why: offline, self-contained, the same every time."""

from collections.abc import Sequence

from kvsim.report import configuration, sections, uncertainty
from kvsim.report.advice import advice_section, finding
from kvsim.report.balance import balance
from kvsim.report.figure import Chart, Section, Table
from kvsim.report.fingerprint import fingerprint
from kvsim.report.headline import facts
from kvsim.report.inputs import ReportInput, Variant
from kvsim.report.iterations import iterations
from kvsim.report.memory_map import memory_map
from kvsim.report.over_time import occupancy, preemptions
from kvsim.report.queue_and_batch import queue_and_batch
from kvsim.report.shell import render_page
from kvsim.report.step_time import step_time
from kvsim.report.tails import EXPLANATION, tails
from kvsim.report.time_axis import TimeAxis
from kvsim.report.where_time_goes import where_memory_goes, where_time_goes
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
    scripts = ["memory_map.js"] if any(section.memory_map for section in drawn) else []
    shown = {"run": run, "base": run.variants[0], "advice": advice, "drawn": drawn}
    shown["advised"] = finding(run.advice) if run.advice else ""
    return render_page("page.html.j2", charts, scripts, **shown, **_tables(run))


def _sections(run: ReportInput) -> list[Section]:
    if not any(row_count(variant.steps) for variant in run.variants):
        nothing = "No engine step ran, so there is nothing to draw over time."
        counted = sections.outcomes(run.variants)
        return [
            Section("requests", "Requests", "Requests", sentence=nothing, table=counted),
            *_drawn("memory", "Memory", "Where memory goes", where_memory_goes(run.variants)),
        ]
    time = TimeAxis.of_run(run.variants)
    return [
        *_class_section(run.variants),
        *_drawn(
            "time",
            "Time",
            "Where time goes",
            where_time_goes(run.variants),
            step_time(run.variants),
        ),
        *_drawn("memory", "Memory", "Where memory goes", where_memory_goes(run.variants)),
        *_latency_section(run),
        Section("kv", "KV cache", "KV cache over time", [occupancy(run.variants, time)]),
        *memory_map(run.variants),
        Section(
            "queue", "Queue", "Queue and batch over time", [queue_and_batch(run.variants, time)]
        ),
        *_drawn("iterations", "Iterations", "Engine steps", iterations(run.variants)),
        *_drawn("balance", "Balance", "Load of the replicas", balance(run.variants, time)),
        _preemption_section(run.variants, time),
        *_given(fingerprint(run.variants[0])),
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


def _drawn(key: str, short: str, title: str, *charts: Chart | None) -> list[Section]:
    """Return a section of the charts that there are, if any."""
    found = [chart for chart in charts if chart]
    return [Section(key, short, title, found)] if found else []


def _given(section: Section | None) -> list[Section]:
    return [section] if section else []


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
    return {
        "tiles": sections.tiles(variants[0]),
        "targets": sections.target_rows(variants[0]),
        "facts_beside": facts(variants[0]),
        "others": sections.others(variants),
        "finding": sections.comparison_finding(variants),
        "comparison": sections.comparison(variants),
        "differences": uncertainty.differences(variants),
        "certainty": uncertainty.sentences(variants),
        "observations": uncertainty.observations(variants),
        "all_figures": sections.all_figures(variants),
        "basis_shares": sections.basis_shares(variants),
        "basis_lines": sections.basis_lines(variants),
        "notes": sections.notes(variants),
        "facts": Table(["Run", ""], [[name, value] for name, value in run.facts.items()]),
        "configuration": configuration.differing({v.name: v.inputs for v in variants}),
        "inputs": configuration.resolved(variants[0]),
    }
