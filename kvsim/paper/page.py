"""The page: each figure of the paper, ours beside it, the ratio, and where and why they differ."""

from collections.abc import Sequence
from dataclasses import replace

from kvsim.paper.chapter import Chapter
from kvsim.report.figure import Chart, Section, Table
from kvsim.report.shell import render_page

METHOD = (
    "No number is tuned to a figure that it is compared with. The shape of the answers' lengths is "
    "read from one bar, the reservation of Orca (Max) in figure 2 (tools/fit_paper_lengths.py), "
    "and is assumed for Alpaca and for prompts, too; all else is predicted from it.",
    "Steps take what the kernels measured on A100 take, with the bandwidth of the A100-40GB where "
    "that is the GPU; decode attention of vLLM takes 1.23 times as long, the middle of the paper's "
    "own range. The host's time is that of Sarathi-Serve, a fork of vLLM V0, as Microsoft Vidur "
    "published it; the paper's own engines of 2023 may have been slower.",
)


def build_page(chapters: Sequence[Chapter], command: str) -> str:
    """Return the page as one HTML text; the same input gives the same text."""
    sections = [
        Section(one.key, one.short, one.title, _apart(one), one.sentence, one.table())
        for one in chapters
    ]
    charts = [chart for section in sections for chart in section.charts]
    return render_page(
        "paper.html.j2",
        charts,
        sentence=verdict(chapters),
        facts=_overview(chapters),
        method=METHOD,
        chapters=sections,
        command=command,
    )


def _apart(chapter: Chapter) -> list[Chart]:
    """Return the charts with keys that no chapter and no other chapter's chart has."""
    return [replace(chart, key=f"chart-{chapter.key}-{chart.key}") for chart in chapter.charts]


def verdict(chapters: Sequence[Chapter]) -> str:
    """Return how many figures are within their bounds, in one sentence."""
    bound = [found for one in chapters for found in one.findings if found.holds is not None]
    held = sum(bool(found.holds) for found in bound)
    return f"{held} of {len(bound)} figures of the paper are within their bounds"


def _overview(chapters: Sequence[Chapter]) -> Table:
    rows = []
    for one in chapters:
        bound = [found for found in one.findings if found.holds is not None]
        missed = "; ".join(found.what for found in bound if not found.holds)
        held = f"{sum(bool(found.holds) for found in bound)} of {len(bound)}" if bound else "–"
        rows.append([one.title, held, missed or "–"])
    return Table(["", "within bounds", "not within"], rows)
