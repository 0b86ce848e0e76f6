"""Durations of steps over time, against each step looked at."""

from itertools import pairwise

import numpy as np
import pytest

from kvsim.report.queue_and_batch import SPANS, queue_and_batch, step_spans
from kvsim.report.time_axis import TABLE_ROWS, TimeAxis


@pytest.fixture(scope="module")
def run(synthetic):
    return synthetic.run(synthetic.Traffic(requests=200, steps=4_000))


def test_spans_have_the_shortest_the_longest_and_the_mean_of_their_steps():
    rng = np.random.default_rng(1)
    steps = {"start_ns": rng.integers(0, 1000, 300), "duration_ns": rng.integers(1, 99, 300)}
    edges = np.array([0, 10, 400, 401, 999, 1000])
    spans = step_spans(steps, edges)
    for place, (low, high) in enumerate(pairwise(edges)):
        inside = steps["duration_ns"][(steps["start_ns"] >= low) & (steps["start_ns"] < high)]
        assert spans.steps[place] == len(inside)
        if len(inside):
            assert spans.shortest_ns[place] == inside.min()
            assert spans.longest_ns[place] == inside.max()
    mean = steps["duration_ns"].mean() / 1e6
    assert spans.mean_ms(1) == pytest.approx([mean])


def test_the_panel_shows_every_extreme_and_breaks_in_pauses(run):
    variant = run.variants[0]
    kept = np.r_[0:1_000, 3_000:4_000]  # an hour of nothing in between, as it were
    steps = {name: column[kept] for name, column in variant.steps.items()}
    steps["duration_ns"] = steps["duration_ns"] * (1 + np.arange(2_000) % 7)
    time = TimeAxis.of_run(run.variants)
    changed = type(variant)("base", variant.summary, variant.requests, steps, variant.events)
    chart = queue_and_batch([changed], time)
    band, mean = (trace for trace in chart.figure["data"] if trace["yaxis"] == "y3")
    longest_ms = steps["duration_ns"].max() / 1e6
    assert max(y for y in band["y"] if y is not None) == pytest.approx(longest_ms, rel=1e-3)
    assert f"its steps take up to {longest_ms:,.3g} ms" in chart.title
    assert band["y"].count(None) == 2  # a stretch on each side of the pause
    assert len(mean["y"]) == SPANS + 1
    assert SPANS / 3 < mean["y"].count(None) < 2 * SPANS / 3


def test_the_table_has_the_mean_step_of_each_span(run):
    time = TimeAxis.of_run(run.variants)
    chart = queue_and_batch(run.variants, time)
    assert chart.table.header[3::3] == ["base: step", "contiguous: step"]
    steps, edges = run.variants[1].steps, time.edges(TABLE_ROWS)
    for row, low, high in zip(chart.table.rows, edges[:-1], edges[1:], strict=True):
        inside = (steps["start_ns"] >= low) & (steps["start_ns"] < high)
        shown = f"{steps['duration_ns'][inside].mean() / 1e6:,.3g} ms" if inside.any() else "–"
        assert row[6] == shown
