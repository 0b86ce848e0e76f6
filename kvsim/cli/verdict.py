"""The answer in the terminal: verdict first, then variants side by side, then where things are."""

import textwrap
from pathlib import Path

from kvsim.metrics.catalog import format_figure
from kvsim.metrics.summary import compare
from kvsim.metrics.throughput import AT_ONCE_NS
from kvsim.rundir import REPORT, Run
from kvsim.scenario.schema import BASE
from kvsim.units import NS_PER_S, format_duration

WIDTH = 80
MET = {True: "met", False: "MISSED", None: "not judged"}


def as_text(run: Run, target: Path, with_report: bool) -> str:
    """Return what `kvsim run` prints, at most 80 columns wide where names allow it."""
    base = run.summaries[BASE]
    blocks = [
        _wrapped(base["verdict"]["sentence"]),
        _wrapped("Limit: " + base["limits"]["sentence"]),
        _targets(run),
        _side_by_side(run),
        *(_wrapped("Note: " + note) for note in run.variants[BASE].notes),
        _places(run, target, with_report),
    ]
    return "\n\n".join(block for block in blocks if block)


def _targets(run: Run) -> str:
    targets = run.summaries[BASE]["verdict"]["targets"]
    rows: list[tuple[str, ...]] = [("target", "found", "at most", "margin", "")]
    for target in targets:
        figure, margin = target["figure"], target["margin"]
        rows.append(
            (
                target["name"],
                format_figure(figure, target["value"]),
                format_figure(figure, target["bound"]),
                "" if margin is None else _margin(margin),
                MET[target["met"]],
            )
        )
    return _aligned(rows) if targets else ""


def _margin(margin: float) -> str:
    """Show a margin; a value of several times its bound as that."""
    return f"{margin:+.0%}" if margin > -1 else f"{1 - margin:.3g} x"


def _side_by_side(run: Run) -> str:
    names = list(run.summaries)
    rows: list[tuple[str, ...]] = [("", *names)]
    if run.summaries[BASE]["verdict"]["targets"]:
        met = (run.summaries[name]["verdict"]["met"] for name in names)
        rows.append(("SLO", *(MET[answer] for answer in met)))
    for row in compare(run.summaries):
        figures = (format_figure(row["name"], row["values"][name]) for name in names)
        rows.append((row["label"], *figures))
    return _aligned(rows)


def _places(run: Run, target: Path, with_report: bool) -> str:
    horizon_ns = run.requests.horizon_ns
    when = (
        f"over {format_duration(horizon_ns / NS_PER_S)}" if horizon_ns > AT_ONCE_NS else "at once"
    )
    about = f"{len(run.requests):,} requests {when}; tables in {target}/"
    return f"{about}\nReport: {target / REPORT}" if with_report else about


def _aligned(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
