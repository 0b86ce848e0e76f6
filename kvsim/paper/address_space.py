"""External fragmentation, shown: the physical address space over time, contiguous next to paged."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.metrics.catalog import percent
from kvsim.paper.address_map import CELL_TOKENS, STATES, AddressMap, address_map
from kvsim.paper.chapter import Chapter, Finding
from kvsim.paper.tasks import Task
from kvsim.report.figure import BLUE, GRAY, SKY, Chart, Key, Table, axis, layout

FILE = "kv_shares.yaml"
LAYOUTS = {"orca_oracle": "Orca (Oracle)", "base": "vLLM"}
BEGIN_S, END_S, QUICK_S = 600.0, 720.0, 60.0
COLORS = ("#ECEEF1", GRAY, SKY, BLUE)
HEIGHT_PX = 460
_STEP_OF_TABLE = 20


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return two minutes of each layout, ten minutes into the hour."""
    begin_s, end_s = (QUICK_S / 2, QUICK_S) if quick else (BEGIN_S, END_S)
    return {name: Task(address_map, (folder / FILE, name, begin_s, end_s)) for name in LAYOUTS}


def chapter(results: Mapping[str, AddressMap]) -> Chapter:
    """Draw both, and say how much is free but lies in holes."""
    findings = [
        Finding(f"{words}: slots that are {state}", "%", None, 100 * _mean(results[name], state))
        for name, words in LAYOUTS.items()
        for state in STATES
    ]
    sentence = (
        "Two minutes of the hour of figure 2. Each row is a piece of the KV cache's address space, "
        "each column a moment. Reservations are bars that begin and end whole; where one ends, the "
        "hole stays pale until a request comes that fits it, however many wait. Blocks are taken "
        "one by one, wherever they are, so that no hole is too small."
    )
    title = "External fragmentation, seen"
    charts = [_chart(name, results[name]) for name in LAYOUTS]
    return Chapter("addresses", "Addresses", title, sentence, findings, charts)


def _mean(found: AddressMap, state: str) -> float:
    return float(np.mean(found.shares[state]))


def _chart(name: str, found: AddressMap) -> Chart:
    words = LAYOUTS[name]
    used, free = _mean(found, "tokens"), _mean(found, "free")
    title = f"{words}: {percent(used)} of the slots hold tokens, {percent(free)} lie free"
    steps = len(COLORS)
    scale = [
        [edge / steps, color] for place, color in enumerate(COLORS) for edge in (place, place + 1)
    ]
    heat: dict[str, Any] = {
        "type": "heatmap",
        "x": [round(time_s, 2) for time_s in found.times_s],
        "y": [row * CELL_TOKENS for row in range(len(found.cells))],
        "z": found.cells,
        "zmin": -0.5,
        "zmax": steps - 0.5,
        "colorscale": scale,
        "showscale": False,
        "hovertemplate": "%{x:.0f} s, slot %{y}<extra></extra>",
    }
    drawn = layout(HEIGHT_PX, xaxis=axis("s"), yaxis=axis("physical slot"))
    rows = [
        [f"{found.times_s[i]:.0f} s", *(percent(found.shares[state][i]) for state in STATES)]
        for i in range(0, len(found.times_s), _STEP_OF_TABLE)
    ]
    return Chart(
        f"addresses-{name.replace('_', '-')}",
        title,
        f"Physical slots over time; {CELL_TOKENS} of them are one cell, shown as most of them are.",
        f"A map of the address space over time. {title}.",
        {"data": [heat], "layout": drawn},
        Table(["", *STATES], rows),
        [Key(state, color) for state, color in zip(STATES, COLORS, strict=True)],
    )
