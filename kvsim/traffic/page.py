"""A log's page: the answer first, then its charts."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.report.arrival_charts import arrival_table, dispersion_chart, rate_chart
from kvsim.report.figure import Chart, Section, Table
from kvsim.report.length_chart import length_chart
from kvsim.report.shell import render_page
from kvsim.traffic.joint_chart import joint_chart
from kvsim.traffic.reuse_chart import reuse_chart
from kvsim.traffic.session_charts import session_charts
from kvsim.traffic.summary import Traffic, sentence
from kvsim.traffic.tables import fact_table, length_table, reuse_table


@dataclass(frozen=True, slots=True)
class ForModel:
    """A model whose KV cache gives cache sizes in bytes."""

    name: str
    kv_bytes_per_token: int


def build_page(
    traffic: Traffic,
    name: str,
    command: str,
    model: ForModel | None = None,
    fit: Table | None = None,
) -> str:
    """Return the page as one HTML text; the same input gives the same text.

    Args:
        traffic: What the log says.
        name: Name of the log.
        command: What reproduces the page.
        model: The model for which cache sizes are also told in GiB.
        fit: How well an imitation does, if one was made.
    """
    sections = _sections(traffic, model, fit)
    return render_page(
        "traffic.html.j2",
        [chart for section in sections for chart in section.charts],
        name=name,
        sentence=sentence(traffic),
        command=command,
        facts=fact_table(traffic),
        drawn=sections,
    )


def _sections(traffic: Traffic, model: ForModel | None, fit: Table | None) -> list[Section]:
    bytes_per_token = model.kv_bytes_per_token if model else None
    curve = reuse_chart(traffic, model.name if model else "", bytes_per_token)
    sizes = reuse_table(traffic.reuse, bytes_per_token) if traffic.reuse else None
    unknown = "The log doesn't say what prompts have in common." if traffic.reuse is None else ""
    sections = [
        *_arrival_section(traffic),
        Section(
            "lengths",
            "Lengths",
            "How long prompts and answers are",
            _given(
                length_chart(traffic.log.prompt_tokens, traffic.log.output_tokens),
                joint_chart(traffic),
            ),
            table=length_table(traffic),
        ),
        Section("sessions", "Sessions", "Conversations", session_charts(traffic)),
        Section(
            "reuse", "Prefix reuse", "What a prefix cache can find", _given(curve), unknown, sizes
        ),
    ]
    if fit:
        how = "Figures of the log beside those of requests drawn from the fitted workload."
        sections.append(Section("fit", "Imitation", "How well the fit imitates", (), how, fit))
    return [section for section in sections if section.charts or section.sentence or section.table]


def _arrival_section(traffic: Traffic) -> list[Section]:
    arrivals = traffic.arrivals
    if arrivals is None:
        return []
    seen = (traffic.log.arrival_ns, traffic.end_ns, arrivals)
    charts = _given(rate_chart(*seen), dispersion_chart(*seen))
    table = arrival_table(arrivals)
    return [Section("arrivals", "Arrivals", "When requests arrive", charts, table=table)]


def _given(*charts: Chart | None) -> Sequence[Chart]:
    return [chart for chart in charts if chart]
