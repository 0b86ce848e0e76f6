"""Chart of how evenly replicas are loaded: a dot for each, and its range over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from kvsim.metrics.catalog import format_number
from kvsim.metrics.latency import FINISHED
from kvsim.names import short_name
from kvsim.report.drawing import thinned, told
from kvsim.report.figure import (
    Chart,
    Table,
    axis,
    look,
    named,
    panel_axis,
    panels,
    rounded,
    sentence,
    variant_keys,
)
from kvsim.report.inputs import Variant
from kvsim.report.series import Floats, Ints
from kvsim.report.time_axis import TABLE_ROWS, TimeAxis
from kvsim.table_files import chunks
from kvsim.tables import Columns
from kvsim.units import NS_PER_S

MOST_LABELED = 16  # replicas below the chart
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")  # of variants, in order
SIZES = ((7, 16), (5, 80), (3, float("inf")))  # of dots, for so many replicas
MOST_ROWS = 128  # of the table
APART = 0.12  # of a replica's place, between variants
MEASURES = {"finished": "Requests finished", "busy": "Busy", "running": "Running"}
UNITS = {"finished": "requests/s", "busy": "% of the time", "running": "requests"}


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of the replicas in spans of time that follow one another: shape (replicas, spans).

    Attributes:
        finished: Requests that end in it.
        busy: Share of the span that is spent in steps.
        running: Sequences admitted, averaged over the span; none between steps.
    """

    finished: Ints
    busy: Floats
    running: Floats


def loads(variant: Variant, edges_ns: Ints) -> Loads:
    """Return the loads of a variant's replicas between neighboring instants.

    The steps are read once, chunk by chunk. A replica that never ran a step has loads of zero.
    """
    requests, widths_ns = variant.requests, np.diff(edges_ns)
    done = np.flatnonzero((requests["outcome"] == FINISHED) & (requests["replica"] >= 0))
    served_by, finish_ns = requests["replica"][done], requests["finish_ns"][done]
    areas = _areas(variant.steps, edges_ns)
    count = max(len(areas), _replicas(variant))
    areas = np.pad(areas, ((0, count - len(areas)), (0, 0), (0, 0)))
    span = np.searchsorted(edges_ns, finish_ns) - 1  # an end belongs to the span before it
    inside = (span >= 0) & (span < len(widths_ns))
    finished = np.zeros((count, len(widths_ns)), dtype=np.int64)
    np.add.at(finished, (served_by[inside], span[inside]), 1)
    within = np.diff(areas, axis=1) / widths_ns[:, None]
    return Loads(finished, within[:, :, 0], within[:, :, 1])


def _replicas(variant: Variant) -> int:
    """Return how many engines the variant was resolved to, or, if that isn't told, served."""
    ranks: int = variant.inputs.get("engine", {}).get("data_parallel_size") or 1
    told = ranks * int(variant.inputs.get("replicas", 0))
    return max(told, int(variant.requests["replica"].max(initial=-1)) + 1)


def _areas(steps: Columns, edges_ns: Ints) -> Floats:
    """Return time in steps, and sequences × time, until each instant: (replicas, edges, 2)."""
    areas = np.zeros((0, len(edges_ns), 2))
    for chunk in chunks(steps, ("replica", "start_ns", "duration_ns", "running_seqs")):
        if not len(chunk["replica"]):
            continue
        replica, start_ns = chunk["replica"], chunk["start_ns"]
        duration_ns, running = chunk["duration_ns"], chunk["running_seqs"]
        count = max(len(areas), int(replica.max()) + 1)
        areas = np.pad(areas, ((0, count - len(areas)), (0, 0), (0, 0)))
        last_ns = int((start_ns + duration_ns).max())
        whole = _sums_until(last_ns, replica, start_ns, duration_ns, running, count)
        for place in np.flatnonzero(edges_ns > start_ns.min()).tolist():
            edge_ns = int(edges_ns[place])
            areas[:, place] += (
                whole
                if edge_ns >= last_ns
                else _sums_until(edge_ns, replica, start_ns, duration_ns, running, count)
            )
    return areas


def _sums_until(
    edge_ns: int, replica: Ints, start_ns: Ints, duration_ns: Ints, running: Ints, count: int
) -> Floats:
    """Return the time of steps until an instant, and sequences × that time: (replicas, 2)."""
    inside_ns = np.clip(edge_ns - start_ns, 0, duration_ns).astype(np.float64)
    weights = (inside_ns, inside_ns * running)
    return np.stack([np.bincount(replica, each, count) for each in weights], axis=1)


def balance(variants: Sequence[Variant], time: TimeAxis) -> Chart | None:
    """Show the loads of the replicas of each variant; None if none has more than one."""
    edges_ns = np.linspace(0, time.window_ns, TABLE_ROWS + 1).round().astype(np.int64)
    too_short = len(np.unique(edges_ns)) <= TABLE_ROWS
    if too_short or all(_replicas(variant) < 2 for variant in variants):
        return None
    found = [loads(variant, edges_ns) for variant in variants]
    span_s = float(np.diff(edges_ns).mean()) / NS_PER_S
    finding = sentence(told(list(map(_finding, variants, found))))
    data = [
        _dots(values, panel, place, len(variants)) | named(variants[place].name, _hover(measure))
        for place, each in enumerate(found)
        for panel, (measure, values) in enumerate(_values(each, span_s).items())
    ]
    vertical = [axis(UNITS[measure], rangemode="tozero") for measure in MEASURES]
    most = max(len(each.busy) for each in found)
    every = ceil(most / MOST_LABELED)
    x_axis = axis("replica", tickformat=",d", range=[-0.6, most - 0.4], tick0=0, dtick=every)
    return Chart(
        key="chart-balance",
        title=finding,
        definition=f"A dot is a replica's mean until arrivals stop; the line through it spans the "
        f"lowest and the highest of {TABLE_ROWS} equal parts of that time. Busy is the share of "
        "the time that is spent in engine steps.",
        alt=f"Dots with ranges, three panels, one place a replica. {finding}.",
        figure={"data": data, "layout": panels(list(MEASURES.values()), vertical, x_axis)},
        table=_table(variants, found),
        keys=variant_keys([variant.name for variant in variants]),
        note=_note(found),
    )


def _values(each: Loads, span_s: float) -> dict[str, Floats]:
    return {"finished": each.finished / span_s, "busy": 100 * each.busy, "running": each.running}


def _hover(measure: str) -> str:
    unit = "% busy" if measure == "busy" else f"{MEASURES[measure].lower()}, {UNITS[measure]}"
    return f"replica %{{customdata}}: %{{y:.3~g}} {unit}"


def _dots(values: Floats, panel: int, place: int, variants: int) -> dict[str, Any]:
    """Return the replicas of a variant as dots, those of variants side by side."""
    means = np.asarray(values.mean(axis=1), np.float64)
    size = next(size for size, most in SIZES if len(means) <= most)
    color, _ = look(place)
    aside = APART * (place - (variants - 1) / 2)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": rounded(np.arange(len(means), dtype=np.float64) + aside, 3),
        "y": rounded(means, 5),
        "yaxis": panel_axis(panel),
        "customdata": list(range(len(means))),
        "marker": {"color": color, "symbol": SYMBOLS[place % len(SYMBOLS)], "size": size},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": rounded(values.max(axis=1) - means, 5),
            "arrayminus": rounded(means - values.min(axis=1), 5),
            "color": color,
            "thickness": 1.2,
            "width": 0,
        },
    }


def _finding(variant: Variant, each: Loads) -> str:
    served = each.finished.sum(axis=1)
    name = short_name(variant.name)
    if len(served) < 2:
        return f"{name} has one replica"
    least, most = int(served.min()), int(served.max())
    if least == most:
        return f"replicas of {name} finish {most:,} requests each"
    times = f" (the most {most / least:.3g} × the least)" if least else ""
    return f"replicas of {name} finish {least:,} to {most:,} requests each{times}"


def _table(variants: Sequence[Variant], found: Sequence[Loads]) -> Table:
    rows = [
        [
            f"{variant.name}, {replica}",
            f"{int(each.finished[replica].sum()):,}",
            _with_range(100 * each.busy[replica], " %"),
            _with_range(each.running[replica], ""),
        ]
        for variant, each in zip(variants, found, strict=True)
        for replica in range(len(each.busy))
    ]
    head = ["Replica", "Requests finished", "Busy (lowest to highest part)", "Running (the same)"]
    return Table(head, thinned(rows, MOST_ROWS))


def _with_range(values: Floats, unit: str) -> str:
    mean, low, high = (format_number(float(v)) for v in (values.mean(), values.min(), values.max()))
    return f"{mean}{unit} ({low} to {high})"


def _note(found: Sequence[Loads]) -> str:
    replicas = sum(len(each.busy) for each in found)
    return f"The table shows {MOST_ROWS} of {replicas:,} replicas." if replicas > MOST_ROWS else ""
