"""Chart of what runs, what waits, and how long steps take, on one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.names import short_name
from kvsim.report.drawing import told
from kvsim.report.figure import (
    Chart,
    Table,
    area,
    axis,
    line_style,
    look,
    named,
    panel_axis,
    panels,
    sentence,
    variant_keys,
)
from kvsim.report.inputs import Variant
from kvsim.report.over_time import thinning_note
from kvsim.report.series import Floats, Ints, Reduced, Timeline, extent_ns, reduced, timeline
from kvsim.report.time_axis import TABLE_ROWS, TimeAxis
from kvsim.table_files import chunks
from kvsim.tables import Columns
from kvsim.units import NS_PER_MS

COUNTED = {"running": "Running", "waiting": "Waiting"}
SPANS = 20 * TABLE_ROWS  # in which steps are summed up; those of the table end where some end
_NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StepSpans:
    """Durations of the steps that start in each span of time, in ns; arrays of shape (spans,)."""

    shortest_ns: Ints
    longest_ns: Ints
    total_ns: Ints
    steps: Ints

    def mean_ms(self, spans: int) -> Floats:
        """Return the mean duration in so many spans, into which these go; NaN without a step."""
        total_ns = self.total_ns.reshape(spans, -1).sum(axis=1)
        steps = self.steps.reshape(spans, -1).sum(axis=1)
        mean: Floats = np.where(steps > 0, total_ns / np.maximum(steps, 1) / NS_PER_MS, np.nan)
        return mean


def step_spans(steps: Columns, edges_ns: Ints) -> StepSpans:
    """Sum up the durations of steps, chunk by chunk, in spans of time between neighboring edges."""
    count = len(edges_ns) - 1
    found = StepSpans(np.full(count, _NEVER), *(np.zeros(count, dtype=np.int64) for _ in range(3)))
    for chunk in chunks(steps, ("start_ns", "duration_ns")):
        span = np.searchsorted(edges_ns, chunk["start_ns"], side="right") - 1
        span, duration_ns = np.minimum(span, count - 1), chunk["duration_ns"]
        np.minimum.at(found.shortest_ns, span, duration_ns)
        np.maximum.at(found.longest_ns, span, duration_ns)
        np.add.at(found.total_ns, span, duration_ns)
        np.add.at(found.steps, span, 1)
    return found


def queue_and_batch(variants: Sequence[Variant], time: TimeAxis) -> Chart:
    """Show how many requests run and wait, and how long steps take, one line a variant."""
    counts = [
        reduced(
            timeline(variant.steps, [f"{name}_seqs" for name in COUNTED]),
            extent_ns(variant.steps),
            [0, 1],
            time.divisions(),
        )
        for variant in variants
    ]
    spans = [step_spans(variant.steps, time.edges(SPANS)) for variant in variants]
    findings = told(list(map(_finding, variants, counts, spans)))
    data = _count_lines(variants, counts, time)
    for place, (variant, each) in enumerate(zip(variants, spans, strict=True)):
        data += _step_lines(variant.name, each, place, time)
    headings = [*COUNTED.values(), "Step time"]
    vertical = [axis("requests", rangemode="tozero")] * len(COUNTED)
    figure = panels(headings, [*vertical, axis("ms", rangemode="tozero")], time.layout())
    states = [(len(line), count.states) for count in counts for line in count.drawn]
    return Chart(
        key="chart-queue-batch",
        title=sentence(findings),
        definition="Requests in the running batch and in the waiting queue after each scheduling "
        "call, all replicas together; the mean is over the time until arrivals stop (dotted "
        f"line). Below, the mean duration of the steps that start in each 1/{SPANS} of the time; "
        "the band spans the shortest and the longest.",
        alt=f"Three panels over time, running and waiting requests, step time: {findings}.",
        figure={"data": data, "layout": figure | {"shapes": time.window_mark()}},
        table=_table(variants, counts, spans, time),
        keys=variant_keys([variant.name for variant in variants]),
        note=thinning_note(states),
    )


def _finding(variant: Variant, count: Reduced, spans: StepSpans) -> str:
    longest_ms = spans.longest_ns.max(initial=0) / NS_PER_MS
    return (
        f"{short_name(variant.name)} runs {count.means[1][0, 0]:.3g} requests at once, queues up "
        f"to {int(count.peaks[1]):,}, and its steps take up to {longest_ms:,.3g} ms"
    )


def _count_lines(
    variants: Sequence[Variant], counts: Sequence[Reduced], time: TimeAxis
) -> list[dict[str, Any]]:
    return [
        _count_line(count.drawn[panel], panel, place, time)
        | named(variants[place].name, f"%{{y:,}} {verb}")
        for panel, verb in enumerate(COUNTED)
        for place, count in enumerate(counts)
    ]


def _count_line(line: Timeline, panel: int, place: int, time: TimeAxis) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": time.of(line.times_ns),
        "y": line.levels[:, panel].tolist(),
        "yaxis": panel_axis(panel),
        "line": line_style(place) | {"shape": "hv"},
    }


def _step_lines(name: str, spans: StepSpans, place: int, time: TimeAxis) -> list[dict[str, Any]]:
    """Return the band of the shortest and the longest step, and the mean; both break in pauses."""
    edges = time.of(time.edges(SPANS))
    mean_ms = spans.mean_ms(SPANS)
    band_x: list[float | None] = []
    band_y: list[float | None] = []
    for first, end in _stretches(spans.steps > 0):
        corners = [edge for span in range(first, end) for edge in (edges[span], edges[span + 1])]
        lows = _twice_ms(spans.shortest_ns[first:end])
        highs = _twice_ms(spans.longest_ns[first:end])
        band_x += [*corners, *reversed(corners), None]
        band_y += [*highs, *reversed(lows), None]
    color, panel = look(place)[0], {"yaxis": panel_axis(len(COUNTED))}
    shown = [None if np.isnan(ms) else round(float(ms), 4) for ms in mean_ms]
    mean = {
        "type": "scatter",
        "mode": "lines",
        "x": edges,
        "y": [*shown, shown[-1]],
        "line": line_style(place) | {"shape": "hv"},
    }
    hover = named(name, "%{y:.3g} ms a step")
    return [area(band_x, band_y, color) | panel, mean | panel | hover]


def _stretches(filled: Any) -> list[tuple[int, int]]:
    """Return where neighboring true values begin, and where they end."""
    turns = np.flatnonzero(np.diff(np.concatenate([[False], filled, [False]])))
    return [(int(first), int(end)) for first, end in turns.reshape(-1, 2)]


def _twice_ms(durations_ns: Ints) -> list[float]:
    return [round(ns / NS_PER_MS, 4) for ns in np.repeat(durations_ns, 2).tolist()]


def _table(
    variants: Sequence[Variant],
    counts: Sequence[Reduced],
    spans: Sequence[StepSpans],
    time: TimeAxis,
) -> Table:
    header = ["Time (mean over)"]
    for name in (short_name(variant.name) for variant in variants):
        header += [f"{name}: running", f"{name}: waiting", f"{name}: step"]
    step_ms = [each.mean_ms(TABLE_ROWS) for each in spans]
    rows = []
    for row, span in enumerate(time.row_names()):
        cells = [span]
        for count, mean_ms in zip(counts, step_ms, strict=True):
            cells += [f"{mean:,.1f}" for mean in count.means[0][row]]
            cells.append("–" if np.isnan(mean_ms[row]) else f"{mean_ms[row]:,.3g} ms")
        rows.append(cells)
    return Table(header, rows)
