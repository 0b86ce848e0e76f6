"""The tables of a comparison, as finished text: figures, targets, classes, requests, settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.compare.change import Change
from kvsim.compare.figures import Against
from kvsim.compare.pairs import LATENCIES, Pairs, latency_changes, shares, worst
from kvsim.compare.sides import Side
from kvsim.metrics.catalog import format_figure, format_range, metric_of, percent
from kvsim.metrics.classes import all_targets, met_word
from kvsim.report.configuration import differing
from kvsim.report.figure import Table
from kvsim.report.sections import HARDLY_DIFFERENT, times
from kvsim.units import NS_PER_S, format_duration

HASH_DIGITS = 12  # tell runs apart; their reports have all
# Where columns are few.
SHORT_LABELS = {"usd_per_million_output_tokens": "Cost per 1M output tokens"}
SHORT_UNITS = {"requests/s": "req/s", "tokens/s": "tok/s"}
UNITS_WITH_NUMBERS = {"count", "s", "fraction", "bytes", "USD", "USD/h"}  # others go to the label
UNSURE = "?"  # behind a difference of which no interval is known
CLASS_LATENCIES = ("ttft_p99_s", "tpot_p99_s", "e2e_p99_s")
CLASS_FIGURES = ("requests_per_s", *CLASS_LATENCIES, "failed_fraction")


def apart(one: Against) -> list[Change]:
    """Return the figures that differ, or may."""
    return [change for change in one.changes if change.standing != "alike"]


def difference_table(changes: Sequence[Change], names: tuple[str, str]) -> Table:
    """Show figures of the base and another run, which are called by `names`, one a row."""
    rows = [
        [
            metric_of(change.name).label,
            *_values(change),
            signed(change.name, change.difference),
            _interval(change) or "–",
            _ratio(change),
        ]
        for change in changes
    ]
    return Table(["", *names, "difference", "95 % interval", "ratio"], rows)


def narrow_table(changes: Sequence[Change], names: tuple[str, str], words: bool) -> Table:
    """Show the same in few columns, where units stand beside the names of the figures.

    With `words` it says which way is better.
    """
    rows = []
    for change in changes:
        metric = metric_of(change.name)
        interval = _interval(change) or f"{signed(change.name, change.difference)} {UNSURE}"
        cells = [*_values(change), interval.replace(" points", " pt")]
        label = SHORT_LABELS.get(change.name, metric.label)
        if metric.unit not in UNITS_WITH_NUMBERS:
            label = f"{label}, {SHORT_UNITS.get(metric.unit, metric.unit)}"
            cells = [cell.replace(f" {metric.unit}", "") for cell in cells]
        ratio = _ratio(change) if words else _ratio(change).partition(" ")[0]
        rows.append([label, *cells, ratio])
    return Table(["", *names, "difference (95 %)", "ratio"], rows)


def _values(change: Change) -> list[str]:
    return [format_figure(change.name, value) for value in (change.base, change.other)]


def _ratio(change: Change) -> str:
    return "–" if change.ratio is None else f"{times(change.ratio)}{better(change)}"


def better(change: Change) -> str:
    """Say ` better` or ` worse`; nothing where that is not known, or hardly so."""
    way, ratio = metric_of(change.name).better, change.ratio
    if way is None or ratio is None or abs(ratio - 1) < HARDLY_DIFFERENT:
        return ""
    return " better" if (ratio > 1) == (way == "higher") else " worse"


def signed(name: str, value: float | None) -> str:
    """Show a difference of a figure with its sign; of shares in percentage points."""
    if value is None:
        return "–"
    sign = "+" if value > 0 else "-" if value < 0 else ""
    return sign + _points(name, format_figure(name, abs(value)))


def _points(name: str, shown: str) -> str:
    return shown.replace(" %", " points") if metric_of(name).unit == "fraction" else shown


def _interval(change: Change) -> str:
    if change.bounds is None:
        return ""
    low, high = change.bounds
    if low < 0 and metric_of(change.name).unit.startswith("USD"):
        return f"{signed(change.name, low)} to {signed(change.name, high)}"
    return _points(change.name, format_range(change.name, low, high))


# Targets and classes


def slo_table(sides: Sequence[Side], names: Sequence[str]) -> Table | None:
    """Show which targets runs meet, by what margin; None if none has targets."""
    found = [
        {(of_class, target["name"]): target for of_class, target in all_targets(side.summary)}
        for side in sides
    ]
    keys = dict.fromkeys(key for targets in found for key in targets)
    rows = []
    for key in keys:
        bounds = {targets[key]["bound"] for targets in found if key in targets}
        same = bounds.pop() if len(bounds) == 1 else None
        cells = [_target(targets.get(key), same is None) for targets in found]
        of_class, name = key
        label = metric_of(name.removeprefix("max_")).label
        bound = "its own" if same is None else format_figure(name.removeprefix("max_"), same)
        rows.append([f"{of_class}: {label}" if of_class else label, bound, *cells])
    if not rows:
        return None
    whole = [met_word(side.summary["verdict"]) for side in sides]
    return Table(["target", "at most", *names], [["SLO", "", *whole], *rows])


def _target(target: Mapping[str, Any] | None, own_bound: bool) -> str:
    if target is None:
        return "no such target"
    shown = format_figure(target["figure"], target["value"])
    bound = f" of {format_figure(target['figure'], target['bound'])}" if own_bound else ""
    margin = target["margin"]
    room = "" if margin is None else f"{margin:+.0%} " if margin > -1 else f"{times(1 - margin)} "
    return f"{shown}{bound}, {room}{met_word(target)}"


def class_table(one: Against, names: tuple[str, str]) -> Table | None:
    """Show the classes of traffic in the base and another run; None if there are none."""
    classes = [side.summary["classes"] for side in (one.base, one.other)]
    rows = []
    for name in dict.fromkeys(key for those in classes for key in those):
        changes = [_class_change(figure, name, classes) for figure in CLASS_FIGURES]
        if one.pairs is not None:  # the same requests are of the same classes
            code = one.base.run.manifest["class_names"].index(name)
            of_class = latency_changes(one.pairs.chosen(one.pairs.base["class"] == code))
            changes = [of_class.get(change.name, change) for change in changes]
        shown = difference_table(
            [change for change in changes if change.base or change.other], names
        )
        rows += [[name, *row] for row in shown.rows]
    return Table(["class", "figure", *shown.header[1:]], rows) if rows else None


def _class_change(figure: str, name: str, classes: Sequence[Mapping[str, Any]]) -> Change:
    values = (those[name]["figures"][figure] if name in those else None for those in classes)
    return Change(figure, *values)


# Requests


SHARE_HEADER = ("requests", "faster", "slower", "the same")


def share_cells(pairs: Pairs | None, latency: str) -> list[str] | None:
    """Show how many requests got faster and slower; None if none has the latency in both runs."""
    found = shares(pairs, latency) if pairs else None
    if found is None:
        return None
    return [f"{found.count:,}", *map(percent, (found.faster, found.slower, found.same))]


def share_table(one: Against) -> Table | None:
    """Show that of each latency; None if the requests are not the same."""
    rows = [
        [metric_of(f"{latency}_p50_s").label.removesuffix(" p50"), *cells]
        for latency in LATENCIES
        if (cells := share_cells(one.pairs, latency))
    ]
    return Table(["", *SHARE_HEADER], rows) if rows else None


def worst_table(one: Against, names: tuple[str, str]) -> Table | None:
    """Show the requests whose end-to-end latency grew most; None if none grew."""
    if one.pairs is None or not len(rows := worst(one.pairs)):
        return None
    heads = ["request", "arrives", "prompt", "output", *(f"E2E, {name}" for name in names)]
    cells = [_request_cells(one.pairs, row) for row in rows.tolist()]
    return Table([*heads, "E2E", "TTFT", "preemptions"], cells)


def _request_cells(pairs: Pairs, row: int) -> list[str]:
    base, other = pairs.base, pairs.other
    attempt = int(base["attempt"][row])
    e2e_s = [float(values[row]) for values in pairs.latencies_s["e2e"]]
    ttft_s = [float(values[row]) for values in pairs.latencies_s["ttft"]]
    return [
        f"{base['request'][row]}" + (f" (attempt {attempt + 1})" if attempt else ""),
        format_duration(base["arrival_ns"][row] / NS_PER_S),
        f"{base['prompt_tokens'][row]:,}",
        f"{base['output_tokens'][row]:,}",
        *(format_duration(value) for value in e2e_s),
        *(signed("e2e_mean_s", after - before) for before, after in (e2e_s, ttft_s)),
        f"{base['preemptions'][row]} → {other['preemptions'][row]}",
    ]


# What was run


def run_table(sides: Sequence[Side]) -> Table:
    """Show which runs are compared."""
    rows = [
        [
            side.name,
            side.run.scenario,
            side.variant,
            f"{side.summary['figures']['requests_finished']:,} of "
            f"{side.summary['figures']['requests_total']:,}",
            f"{side.summary['replications']:,}",
        ]
        for side in sides
    ]
    return Table(["run", "scenario", "variant", "requests finished", "replications"], rows)


def configuration(sides: Sequence[Side]) -> Table:
    """Return in which settings runs differ: inputs first, then what identifies the run."""
    return differing({side.name: {**side.inputs, "run": _identity(side)} for side in sides})


def _identity(side: Side) -> dict[str, Any]:
    about = side.run.manifest
    hashes = {name: about[name][:HASH_DIGITS] for name in ("scenario_sha256", "requests_sha256")}
    return {name: about[name] for name in ("scenario", "requests", "versions", "files")} | hashes
