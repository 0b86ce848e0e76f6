"""Charts with simulated time on the horizontal axis: KV slots, preemptions."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from kvsim.metrics.catalog import percent
from kvsim.names import short_name
from kvsim.report.figure import (
    BROWN,
    GRAY,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    YELLOW,
    Chart,
    Key,
    Table,
    axis,
    fill_pattern,
    line_style,
    panel_axis,
    panels,
    plotly_text,
    rounded,
)
from kvsim.report.inputs import Variant
from kvsim.report.series import Ints, Reduced, Timeline, extent_ns, reduced, timeline
from kvsim.report.time_axis import TimeAxis
from kvsim.table_files import chunks
from kvsim.tables import FREE, LOSSES, SLOT_COLUMNS, Columns

# How the uses of KV slots look, in the order of `kvsim.tables.SLOT_USES`, from the bottom of the
# stack: words, color, fill pattern.
SLOT_LOOKS = (
    ("holding tokens", GREEN, ""),
    ("reserved for tokens to come", SKY, "/"),
    ("wasted inside reservations", ORANGE, "x"),
    ("lost to rounding up", YELLOW, "."),
    ("in holes too small to use", PURPLE, "\\"),
    ("reusable prefixes", BROWN, "-"),
    ("free", "rgba(138,143,152,0.22)", ""),
)
MOST_TICKS = 500
BARS = 60


def slot_uses(steps: Columns) -> tuple[int, Iterator[Timeline]]:
    """Return the KV slots of all replicas, and their uses over time; see `SLOT_LOOKS`."""
    slots: dict[int, int] = {}
    enough = _chunks_with_all_replicas(steps)
    for chunk in islice(chunks(steps, ("replica", *SLOT_COLUMNS)), enough):
        replicas, firsts = np.unique(chunk["replica"], return_index=True)
        pools = np.sum([chunk[name][firsts] for name in SLOT_COLUMNS], axis=0)
        slots |= zip(replicas.tolist(), pools.tolist(), strict=True)
    capacity = sum(slots.values())
    parts = timeline(steps, SLOT_COLUMNS[:-1], lasting=("kv_reusable_tokens",))
    return capacity, (_with_free(part, capacity) for part in parts)


def _chunks_with_all_replicas(steps: Columns) -> int:
    """Return how many chunks to read until each replica has had a step."""
    seen: set[int] = set()
    enough = 0
    for place, chunk in enumerate(chunks(steps, ("replica",)), start=1):
        here = np.flatnonzero(np.bincount(chunk["replica"])).tolist()
        if not seen.issuperset(here):
            seen.update(here)
            enough = place
    return enough


def _with_free(part: Timeline, capacity: int) -> Timeline:
    free = capacity - part.levels.sum(axis=1, keepdims=True)  # between steps nothing is held
    return Timeline(part.times_ns, np.hstack([part.levels, free]))


def occupancy(variants: Sequence[Variant], time: TimeAxis) -> Chart:
    """Show what the KV slots of each variant are used for, with preemptions as ticks on top."""
    uses = []
    for variant in variants:
        capacity, parts = slot_uses(variant.steps)
        uses.append((capacity, reduced(parts, extent_ns(variant.steps), [FREE], time.divisions())))
    data: list[dict[str, Any]] = []
    for place, (capacity, use) in enumerate(uses):
        data += _stack(use.drawn[0], capacity, time, place)
        data.append(_ticks(preemption_times(variants[place].events), time, place))
    findings = ", ".join(
        f"{percent(variant.summary['figures']['kv_utilization_mean'] or 0)} in "
        f"{short_name(variant.name)}"
        for variant in variants
    )
    return Chart(
        key="chart-kv-slots",
        title=f"KV slots hold tokens on average: {findings}",
        definition="What each slot of the KV cache (room for the keys and values of one token) is "
        "used for, in percent of all slots; the mean in the title is over the time until arrivals "
        "stop (dotted line). The line at 100 % is the capacity, ticks above it are preemptions.",
        alt=f"Stacked areas over time, one panel a variant. KV slots that hold tokens: {findings}.",
        figure={"data": data, "layout": _occupancy_layout(variants, uses, time)},
        table=_use_table(variants, uses, time),
        keys=[
            Key(words, color)
            for column, (words, color, _) in enumerate(SLOT_LOOKS)
            if any(use.peaks[column] for _, use in uses)
        ],
        note=thinning_note([(len(use.drawn[0]), use.states) for _, use in uses]),
    )


def _stack(line: Timeline, capacity: int, time: TimeAxis, place: int) -> list[dict[str, Any]]:
    x = time.of(line.times_ns)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": words,
            "x": x,
            "y": rounded(100 * line.levels[:, column] / max(capacity, 1), 2),
            "yaxis": panel_axis(place),
            "stackgroup": f"panel{place}",
            "line": {"width": 0, "shape": "hv", "color": color},
            "fillcolor": color,
            "fillpattern": fill_pattern(pattern, color),
            "hovertemplate": f"%{{y:.1f}} % {words}<extra></extra>",
        }
        for column, (words, color, pattern) in enumerate(SLOT_LOOKS)
        if line.levels[:, column].any()
    ]


def preemption_times(events: Columns) -> Ints:
    """Return when requests lost their KV cache, or it was swapped out, in order of time."""
    return np.sort(events["time_ns"][np.isin(events["event"], LOSSES)])


def _ticks(times_ns: Ints, time: TimeAxis, place: int) -> dict[str, Any]:
    """Return preemptions as ticks; those too close to be told apart share one."""
    span_ns = time.end_ns // MOST_TICKS + 1
    _, firsts, counts = np.unique(times_ns // span_ns, return_index=True, return_counts=True)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": time.of(times_ns[firsts]),
        "y": [105] * len(firsts),
        "yaxis": panel_axis(place),
        "customdata": counts.tolist(),
        "marker": {"symbol": "line-ns-open", "size": 8, "color": GRAY, "line": {"width": 1.5}},
        "hovertemplate": "%{customdata} preempted<extra></extra>",
    }


def _occupancy_layout(
    variants: Sequence[Variant], uses: Sequence[tuple[int, Reduced]], time: TimeAxis
) -> dict[str, Any]:
    headings = [
        f"{plotly_text(variant.name)}: {capacity:,} slots"
        for variant, (capacity, _) in zip(variants, uses, strict=True)
    ]
    vertical = axis("% of KV slots", range=[0, 110], tickvals=[0, 25, 50, 75, 100])
    capacities = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "yref": panel_axis(place),
            "y0": 100,
            "y1": 100,
            "line": {"color": GRAY, "width": 1.5},
        }
        for place in range(len(variants))
    ]
    shapes = time.window_mark() + capacities
    return panels(headings, [vertical] * len(variants), time.layout()) | {
        "shapes": shapes,
        "hovermode": "x unified",
    }


def _use_table(
    variants: Sequence[Variant], uses: Sequence[tuple[int, Reduced]], time: TimeAxis
) -> Table:
    rows = []
    for variant, (capacity, use) in zip(variants, uses, strict=True):
        shares = use.means[0] / max(capacity, 1)
        shares[:, -1] = np.round(1 - shares[:, :-1].sum(axis=1), 9) + 0.0  # no -0
        for span, row in zip(time.row_names(), shares, strict=True):
            rows.append([variant.name, span, *(percent(share) for share in row)])
    return Table(["Variant", "Time (mean over)", *(words for words, _, _ in SLOT_LOOKS)], rows)


def preemptions(variants: Sequence[Variant], time: TimeAxis) -> Chart | None:
    """Show when requests lost their KV cache, a panel a variant; None if none ever did."""
    edges = time.edges(BARS)
    counts = [np.histogram(preemption_times(v.events), edges)[0] for v in variants]
    hit = [place for place, count in enumerate(counts) if count.any()]
    if not hit:
        return None
    findings = ", ".join(
        f"{v.summary['figures']['preemptions_total']:,} in {short_name(v.name)}" for v in variants
    )
    middles = time.of((edges[:-1] + edges[1:]) // 2)
    data = [
        _bars(middles, counts[place], place) | {"yaxis": panel_axis(panel)}
        for panel, place in enumerate(hit)
    ]
    headings = [plotly_text(variants[place].name) for place in hit]
    figure = panels(headings, [axis("preemptions a bar")] * len(hit), time.layout())
    return Chart(
        key="chart-preemptions",
        title=f"Preemptions: {findings}",
        definition="A running request loses its KV cache because another one needs a block; it "
        "waits, then its tokens are computed again, or copied back from the host. Each bar counts "
        f"1/{BARS} of the time.",
        alt=f"Bars over time. Preemptions: {findings}.",
        figure={"data": data, "layout": figure | {"shapes": time.window_mark()}},
        table=_preemption_table(variants),
    )


def _bars(middles: Sequence[float], counts: Ints, place: int) -> dict[str, Any]:
    return {
        "type": "bar",
        "x": middles,
        "y": counts.tolist(),
        "marker": {"color": line_style(place)["color"]},
        "hovertemplate": "%{y:,} preemptions<extra></extra>",
    }


def _preemption_table(variants: Sequence[Variant]) -> Table:
    header = ["Variant", "Preemptions", "Requests hit", "Most for one", "Tokens recomputed"]
    rows = []
    for variant in variants:
        times = variant.requests["preemptions"]
        counts = (times.sum(), (times > 0).sum(), times.max(initial=0))
        again = variant.requests["recomputed_tokens"].sum()
        rows.append([variant.name, *(f"{int(count):,}" for count in (*counts, again))])
    return Table(header, rows)


def thinning_note(drawn: Sequence[tuple[int, int]]) -> str:
    """Tell how much of the series is drawn, if not all of it."""
    if all(kept == total for kept, total in drawn):
        return ""
    most = max(kept for kept, _ in drawn)
    total = max(total for _, total in drawn)
    return (
        f"Drawn: at most {most:,} of {total:,} states. Of each short span of time the lowest and "
        "the highest are kept, so no peak is lost."
    )
