"""One HTML page that answers first and shows why: offline, self-contained, the same every time."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from kvsim import __version__
from kvsim.report import sections
from kvsim.report.figure import Chart, Table
from kvsim.report.inputs import ReportInput, Variant
from kvsim.report.over_time import occupancy, preemptions, queue_and_batch
from kvsim.report.step_time import step_time
from kvsim.report.tails import EXPLANATION, tails
from kvsim.report.time_axis import TimeAxis

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page that is made of charts; `short` is its name in the navigation."""

    key: str
    short: str
    title: str
    charts: Sequence[Chart] = ()
    sentence: str = ""
    table: Table | None = None


def build_report(run: ReportInput) -> str:
    """Return the page: one file of HTML that opens from disk and asks the network for nothing.

    The function is pure: the same input gives the same text.

    Raises:
        ValueError: The run has no variant.
    """
    if not run.variants:
        raise ValueError("a report needs at least one variant")
    drawn = _sections(run)
    charts = [chart for section in drawn for chart in section.charts]
    plotly, script = _plotly_script() if charts else "", _asset("page.js")
    return _template().render(
        run=run,
        base=run.variants[0],
        version=__version__,
        style=_asset("style.css"),
        script=script,
        plotly=plotly,
        policy=_security_policy(plotly, script),
        figures=_figures_json(charts),
        drawn=drawn,
        **_tables(run),
    )


def _sections(run: ReportInput) -> list[Section]:
    if not any(len(variant.steps["start_ns"]) for variant in run.variants):
        nothing = "No engine step ran, so there is nothing to draw over time."
        counted = sections.outcomes(run.variants)
        return [Section("requests", "Requests", "Requests", sentence=nothing, table=counted)]
    time = TimeAxis.of_run(run.variants)
    return [
        Section("kv", "KV cache", "KV cache over time", [occupancy(run.variants, time)]),
        Section(
            "queue", "Queue", "Queue and batch over time", [queue_and_batch(run.variants, time)]
        ),
        *_latency_section(run),
        *_step_section(run.variants),
        _preemption_section(run.variants, time),
    ]


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
        "all_figures": sections.all_figures(variants),
        "basis_shares": sections.basis_shares(variants),
        "basis_lines": sections.basis_lines(variants),
        "notes": sections.notes(variants),
        "memory": sections.memory(variants),
        "facts": Table(["Run", ""], facts),
        "inputs": sections.resolved_inputs(variants),
    }


def _figures_json(charts: Sequence[Chart]) -> str:
    """Write the figures so that nothing in a name can end the script element or start another."""
    figures = [{"key": chart.key, **chart.figure} for chart in charts]
    text = json.dumps(figures, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _security_policy(*scripts: str) -> str:
    """Allow these scripts and no other, and no load from anywhere.

    Plotly adds style rules and style attributes of its own, hence inline styles; it draws an
    exported image through a blob.
    """
    allowed = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _template() -> "Template":
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(_asset("page.html.j2"))


def _asset(name: str) -> str:
    return (files("kvsim.report") / name).read_text(encoding="utf-8")
