"""A comparison's page: the answer, what differs, request by request, and in which settings."""

from collections.abc import Sequence
from dataclasses import replace

from kvsim.compare.answer import cautions, headline, noise, remarks
from kvsim.compare.charts import difference_chart, pair_charts
from kvsim.compare.figures import Against, sides_of
from kvsim.compare.sides import Side
from kvsim.compare.tables import (
    apart,
    class_table,
    configuration,
    difference_table,
    run_table,
    share_table,
    slo_table,
    worst_table,
)
from kvsim.names import short_name
from kvsim.report.figure import Section, Table, sentence
from kvsim.report.inputs import Variant
from kvsim.report.run import report_input
from kvsim.report.shell import render_page
from kvsim.report.tails import EXPLANATION, tails
from kvsim.units import NS_PER_S

METHOD = (
    "Runs that faced the same requests are compared request by request, and replications with the "
    "same seed one by one. Intervals are of 95 %. A mean's difference is taken again without each "
    "of 20 batches of requests in a row (a rate's without each of 20 equal parts of the time, or "
    "of the replications), a percentile's on batches drawn by chance: how much it then changes "
    "tells how far to trust it. Requests that follow each other resemble each other; in the same "
    "batch they don't count as independent. A percentile with fewer than 10 requests beyond it has "
    "no interval. Of independent runs the intervals of both are put together. A difference is "
    "sure if its interval excludes zero; of many figures that don't differ, one in twenty looks "
    "sure by chance."
)


def build_page(found: Sequence[Against], command: str) -> str:
    """Return the page as one HTML text; the same runs give the same text.

    Args:
        found: Each other run beside the same base, in order.
        command: What makes the page again.
    """
    sides = sides_of(found)
    sections = [
        *(_difference_section(one, place) for place, one in enumerate(found, start=1)),
        *_slo_section(sides),
        *_latency_sections(sides, found),
        *(_class_section(one, place) for place, one in enumerate(found, start=1)),
        *(_worst_section(one, place) for place, one in enumerate(found, start=1)),
        _configuration_section(sides),
    ]
    drawn = [section for section in sections if section is not None]
    return render_page(
        "compare.html.j2",
        [chart for section in drawn for chart in section.charts],
        name=", ".join(short_name(side.name) for side in sides),
        sentences=[headline(one) for one in found],
        remarks=[
            *cautions(found),
            *dict.fromkeys(text for one in found for text in remarks(one)),
        ],
        runs=run_table(sides),
        drawn=drawn,
        method=METHOD,
        command=command,
    )


def _names(one: Against) -> tuple[str, str]:
    return one.base.name, one.other.name


def _difference_section(one: Against, place: int) -> Section:
    chart = difference_chart(one, place)
    other = short_name(one.other.name)
    table = difference_table(apart(one), _names(one)) if chart is None else None
    return Section(
        f"differences-{place}",
        "Differences" if place == 1 else other,
        f"What differs in {other}",
        [chart] if chart else [],
        noise(one.changes),
        table if table and table.rows else None,
    )


def _slo_section(sides: Sequence[Side]) -> list[Section]:
    table = slo_table(sides, [side.name for side in sides])
    if table is None:
        return []
    about = "Value, what is left of the target, and whether it is met; a ? where that is uncertain."
    return [Section("slo", "SLO", "Who meets what", (), about, table)]


def _latency_sections(sides: Sequence[Side], found: Sequence[Against]) -> list[Section]:
    warmup_s = max(side.warmup_ns for side in sides) / NS_PER_S
    charts = tails([_variant(side) for side in sides], warmup_s)
    drawn = [Section("latency", "Latency", "Latency tails", charts, EXPLANATION)] if charts else []
    points = pair_charts(found)
    if points:
        shown = [(one.other.name, table) for one in found if (table := share_table(one))]
        rows = [[name, *row] for name, table in shown for row in table.rows]
        table = Table(["run", "latency", *shown[0][1].header[1:]], rows)
        drawn.append(Section("pairs", "Requests", "Request by request", points, "", table))
    return drawn


def _variant(side: Side) -> Variant:
    """Return what the report draws of a run, under the name that it has here."""
    variants = report_input(side.run).variants
    found = next(variant for variant in variants if variant.name == side.variant)
    return replace(found, name=side.name)


def _class_section(one: Against, place: int) -> Section | None:
    table = class_table(one, _names(one))
    title = sentence(f"classes of traffic in {short_name(one.other.name)}")
    return Section(f"classes-{place}", "Classes", title, table=table) if table else None


def _worst_section(one: Against, place: int) -> Section | None:
    table = worst_table(one, _names(one))
    title = f"Requests that got slower most in {short_name(one.other.name)}"
    return Section(f"worst-{place}", "Regressions", title, table=table) if table else None


def _configuration_section(sides: Sequence[Side]) -> Section:
    table = configuration(sides)
    equal = "" if table.rows else "Nothing: these are runs of the same configuration."
    title = "What differs in the configuration"
    return Section(
        "configuration", "Configuration", title, (), equal, table if table.rows else None
    )
