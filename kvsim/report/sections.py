"""The page's tables and sentences, from summaries and inputs; figures are never computed here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvsim.metrics.catalog import METRICS, format_figure, format_range, metric_of, percent
from kvsim.metrics.classes import all_targets, class_table
from kvsim.metrics.summary import Summary, compare, estimate
from kvsim.names import short_name
from kvsim.report.figure import Table, sentence
from kvsim.report.headline import margin_bar
from kvsim.report.inputs import Variant
from kvsim.report.uncertainty import interval

TILES = (
    "requests_per_s",
    "output_tokens_per_s",
    "ttft_p99_s",
    "tpot_p99_s",
    "kv_utilization_mean",
    "usd_per_million_output_tokens",
)
# The comparison's headings, each before the first row that it stands over.
GROUPS = {
    "kv_utilization_mean": "KV cache",
    "running_seqs_mean": "Concurrency",
    "requests_per_s": "Throughput",
    "waiting_seqs_mean": "Queueing",
    "ttft_p50_s": "Latency",
    "preemptions_total": "Preemptions and failures",
}
OUTCOME_FIGURES = (
    "requests_total",
    "requests_finished",
    "requests_rejected",
    "requests_timed_out",
    "requests_unfinished",
    "retries_total",
    "preemptions_total",
    "recomputed_tokens",
)
HEADLINES = (("requests per second", "requests_per_s"), ("p99 TTFT", "ttft_p99_s"))
HARDLY_DIFFERENT = 0.02


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of a variant beside the base: the ratio in words, and whether it is better."""

    value: str
    ratio: str = ""
    better: bool | None = None
    interval: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the comparison; `group` is a heading above it, if one starts here."""

    label: str
    explanation: str
    cells: Sequence[Cell]
    group: str = ""


def explanation(name: str) -> str:
    """Return what a figure means and how it is computed, for a hover."""
    metric = metric_of(name)
    return f"{metric.description}. {metric.formula}"


def tiles(variant: Variant) -> list[tuple[str, str, str, str]]:
    """Return label, value, interval and explanation of the base's main figures.

    Unknown ones are left out.
    """
    values = {name: estimate(variant.summary, name) for name in TILES}
    return [
        (
            METRICS[name].label,
            format_figure(name, value),
            interval(variant.summary, name),
            explanation(name),
        )
        for name, value in values.items()
        if value is not None
    ]


def target_rows(variant: Variant) -> list[dict[str, Any]]:
    """Return the rows of the SLO table: class, label, value, interval, bound, margin, bar, met."""
    rows = []
    for of_class, target in all_targets(variant.summary):
        name = target["figure"]
        margin = target["margin"]
        value = format_figure(name, target["value"])
        within = format_range(name, target["low"], target["high"])
        rows.append(
            {
                "of_class": of_class,
                "label": metric_of(name).label,
                "explanation": explanation(name),
                "value": value,
                "interval": within if within != value else "",
                "bound": format_figure(name, target["bound"]),
                "margin": "–" if margin is None else _margin_words(margin),
                "bar": margin_bar(target),
                "met": target["met"],
                "certain": target["certain"],
            }
        )
    return rows


def _margin_words(margin: float) -> str:
    if margin >= 0:
        return f"{percent(margin)} below"
    return f"{percent(-margin)} above" if margin > -1 else f"{times(1 - margin)} the target"


def others(variants: Sequence[Variant]) -> str:
    """Say of each variant but the base how it stands to its SLO; nothing if there is no other."""
    said = [f"{short_name(v.name)} {_stand(v.summary)}" for v in variants[1:]]
    return "; ".join(said) + "." if said else ""


def _stand(summary: Summary) -> str:
    if not all_targets(summary):
        return "has no SLO"
    verdict = summary["verdict"]
    words = {True: "meets its SLO", False: "misses its SLO", None: "can't be judged"}
    unsure = " (not sure)" if verdict["certain"] is False else ""
    return words[verdict["met"]] + unsure


def comparison(variants: Sequence[Variant]) -> list[Row]:
    """Return the variants side by side, the base first, in the order of the catalog."""
    rows = []
    for row in compare({variant.name: variant.summary for variant in variants}):
        cells = [_cell(row, variant, is_base=not place) for place, variant in enumerate(variants)]
        group = GROUPS.get(row["name"], "")
        rows.append(Row(row["label"], explanation(row["name"]), cells, group))
    return rows


def _cell(row: Mapping[str, Any], variant: Variant, is_base: bool) -> Cell:
    value = format_figure(row["name"], row["values"][variant.name])
    within = interval(variant.summary, row["name"])
    cell = Cell(value, interval=within if within != value else "")
    ratio = row["ratios"][variant.name]
    if is_base or not ratio:
        return cell
    if abs(ratio - 1) < HARDLY_DIFFERENT or row["better"] is None:
        return replace(cell, ratio=times(ratio))
    better = (ratio > 1) == (row["better"] == "higher")
    words = f"{times(ratio)} {'better' if better else 'worse'}"
    return replace(cell, ratio=words, better=better)


def times(ratio: float) -> str:
    """Show a ratio with three significant digits, large ones in full: `0.857 ×`, `10,213 ×`."""
    return f"{ratio:,.0f}\u00a0×" if ratio >= 1000 else f"{ratio:.3g}\u00a0×"


def comparison_finding(variants: Sequence[Variant]) -> str:
    """Say what sets the variants apart: requests served and the slowest first tokens."""
    rows = {row["name"]: row for row in compare({v.name: v.summary for v in variants})}
    said = []
    for variant in variants[1:]:
        ratios = ((words, rows[name]["ratios"][variant.name]) for words, name in HEADLINES)
        parts = [_times_the(ratio, words) for words, ratio in ratios if ratio is not None]
        if parts:
            said.append(f"{short_name(variant.name)} has {' and '.join(parts)}")
    base = short_name(variants[0].name)
    return sentence("; ".join(said) + f" of {base}") if said else "Main figures"


def _times_the(ratio: float, words: str) -> str:
    same = abs(ratio - 1) < HARDLY_DIFFERENT
    return f"the same {words}" if same else f"{times(ratio)} the {words}"


def outcomes(variants: Sequence[Variant]) -> Table:
    """Return what became of the requests in each variant."""
    rows = [
        [METRICS[name].label, *(format_figure(name, v.summary["figures"][name]) for v in variants)]
        for name in OUTCOME_FIGURES
    ]
    return Table(["", *(variant.name for variant in variants)], rows)


def classes(variants: Sequence[Variant]) -> Table | None:
    """Return the classes of traffic in each variant; None if all traffic is alike."""
    rows: list[list[str]] = []
    for variant in variants:
        header, shown = class_table(variant.summary["classes"])
        rows += [[variant.name, *row] for row in shown]
    return Table(["Variant", *header], rows) if rows else None


def all_figures(variants: Sequence[Variant]) -> list[Row]:
    """Return every figure of the catalog that isn't in the comparison."""
    shown = {row["name"] for row in compare({v.name: v.summary for v in variants})}
    return [
        Row(
            metric.label,
            explanation(name),
            [Cell(format_figure(name, estimate(v.summary, name))) for v in variants],
        )
        for name, metric in METRICS.items()
        if name not in shown
    ]


def basis_shares(variants: Sequence[Variant]) -> Table:
    """Return which share of the step time rests on measurements, and which does not."""
    shares = [variant.summary["limits"]["basis_share"] for variant in variants]
    names = dict.fromkeys(name for share in shares for name in share)
    rows = [
        [sentence(name), *(percent(share[name]) if name in share else "–" for share in shares)]
        for name in names
    ]
    return Table(["Basis of the step time", *(variant.name for variant in variants)], rows)


def basis_lines(variants: Sequence[Variant]) -> Table:
    """Return the basis of each component of the step's price; equal variants are told once."""
    rows: dict[tuple[str, ...], None] = {}
    for variant in variants:
        for line in variant.basis:
            rows[(line.component.replace("_", " "), line.basis, line.note)] = None
    return Table(["Component", "Basis", "Note"], [list(row) for row in rows])


def notes(variants: Sequence[Variant]) -> list[str]:
    """Return the notes of all variants, each once; those not of all say of whom."""
    found: dict[str, list[str]] = {}
    for variant in variants:
        for note in variant.notes:
            found.setdefault(note, []).append(short_name(variant.name))
    return [
        note if len(names) == len(variants) else f"{', '.join(names)}: {note}"
        for note, names in found.items()
    ]
