"""How sure the page's figures are: intervals beside values, and a table of what they rest on."""

from collections.abc import Sequence

from kvsim.metrics.catalog import METRICS, format_figure, format_range
from kvsim.metrics.summary import COMPARED, Summary, certainty
from kvsim.names import short_name
from kvsim.report.figure import Table
from kvsim.report.inputs import Variant

# Whose means are shown with how many independent observations they rest on.
LATENCIES = ("ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "normalized_mean_s", "queue_mean_s")


def interval(summary: Summary, name: str) -> str:
    """Return the interval of a figure, or nothing if it isn't known."""
    found = summary["uncertainty"].get(name)
    return format_range(name, found["low"], found["high"]) if found else ""


def sentences(variants: Sequence[Variant]) -> list[str]:
    """Say on how many independent observations the figures rest; equal sentences once."""
    said: dict[str, list[str]] = {}
    for variant in variants:
        said.setdefault(certainty(variant.summary), []).append(short_name(variant.name))
    return [
        sentence if len(names) == len(variants) else f"{', '.join(names)}: {sentence}"
        for sentence, names in said.items()
    ]


def observations(variants: Sequence[Variant]) -> Table:
    """Return the interval of each mean latency, and the observations that would tell it as well."""
    rows = []
    for name in LATENCIES:
        cells = [_observed(variant.summary, name) for variant in variants]
        if any(cell != "–" for cell in cells):
            rows.append([METRICS[name].label, *cells])
    head = "95 % interval, from so many independent observations"
    return Table([head, *(variant.name for variant in variants)], rows)


def _observed(summary: Summary, name: str) -> str:
    found = summary["uncertainty"].get(name)
    return f"{interval(summary, name)}, from {found['count']:,}" if found else "–"


def differences(variants: Sequence[Variant]) -> Table:
    """Return by how much the variants differ from the base; no rows without replications."""
    others = variants[1:]
    names = [name for name in COMPARED if any(name in v.summary["differences"] for v in others)]
    rows = [
        [METRICS[name].label, *(_difference(v.summary, name) for v in others)] for name in names
    ]
    base = short_name(variants[0].name)
    return Table([f"Difference to {base} (95 % interval)", *(v.name for v in others)], rows)


def _difference(summary: Summary, name: str) -> str:
    found = summary["differences"].get(name)
    if not found:
        return "–"
    mean = format_figure(name, found["mean"])
    between = format_range(name, found["low"], found["high"])
    return mean if between == mean else f"{mean} ({between})"
