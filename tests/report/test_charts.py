import json
import re
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from kvsim.metrics.catalog import format_figure, percent
from kvsim.names import short_name
from kvsim.report.balance import balance
from kvsim.report.figure import Chart
from kvsim.report.fingerprint import fingerprint
from kvsim.report.iterations import iterations
from kvsim.report.over_time import SLOT_LOOKS, occupancy, preemptions, slot_uses
from kvsim.report.queue_and_batch import queue_and_batch
from kvsim.report.series import MAX_POINTS, Timeline, joined, time_means
from kvsim.report.step_time import step_time
from kvsim.report.tails import tails
from kvsim.report.time_axis import TABLE_ROWS, TimeAxis
from kvsim.report.where_time_goes import where_memory_goes, where_time_goes
from kvsim.tables import EVENT_KINDS, SLOT_USES


@pytest.fixture(scope="module")
def run(synthetic):
    return synthetic.run(synthetic.Traffic(requests=600, steps=30_000, rate_per_s=8, preempted=90))


@pytest.fixture(scope="module")
def charts(run) -> dict[str, Chart]:
    time = TimeAxis.of_run(run.variants)
    drawn = [
        occupancy(run.variants, time),
        queue_and_batch(run.variants, time),
        *tails(run.variants, 0.0),
        step_time(run.variants),
        where_time_goes(run.variants),
        where_memory_goes(run.variants),
        iterations(run.variants),
        preemptions(run.variants, time),
        *fingerprint(run.variants[0]).charts,
        balance([replace(variant, inputs={"replicas": 3}) for variant in run.variants], time),
    ]
    return {chart.key: chart for chart in drawn}


def test_plotly_accepts_every_figure(charts):
    for chart in charts.values():
        go.Figure(data=chart.figure["data"], layout=chart.figure["layout"])


def test_series_stay_within_the_point_limit_and_say_so(charts, run):
    for key in ("chart-kv-slots", "chart-queue-batch"):
        data = charts[key].figure["data"]
        lines = [line for line in data if line["mode"] == "lines" and line["yaxis"] != "y3"]
        assert lines
        assert all(900 < len(trace["x"]) <= MAX_POINTS for trace in lines)
        assert f"{len(run.variants[0].steps['step']) + 1:,}" in charts[key].note


def test_every_drawn_stack_adds_up_to_all_slots(charts):
    data = charts["chart-kv-slots"].figure["data"]
    for place in range(2):
        stack = [trace["y"] for trace in data if trace.get("stackgroup") == f"panel{place}"]
        assert len(stack) >= 3
        assert np.sum(stack, axis=0) == pytest.approx(100, abs=0.05)


def test_peaks_of_the_series_are_drawn(charts, run):
    data = charts["chart-queue-batch"].figure["data"]
    for place, variant in enumerate(run.variants):
        assert max(data[place]["y"]) == variant.steps["running_seqs"].max()
        assert max(data[2 + place]["y"]) == variant.steps["waiting_seqs"].max()


def test_titles_say_the_figures_of_the_summary(charts, run):
    for variant in run.variants:
        figures = variant.summary["figures"]
        held = f"{percent(figures['kv_utilization_mean'])} in {variant.name}"
        assert held in charts["chart-kv-slots"].title
        runs = f"runs {figures['running_seqs_mean']:.3g} requests at once"
        assert runs in charts["chart-queue-batch"].title
        for name in ("ttft_p99_s", "tpot_p99_s"):
            shown = format_figure(name, figures[name])
            assert shown in charts[f"chart-tail-{name[:4]}"].title


def test_tables_over_time_agree_with_the_mean_of_the_summary(run):
    time = TimeAxis.of_run(run.variants)
    for variant in run.variants:
        capacity, parts = slot_uses(variant.steps)
        assert capacity == variant.summary["figures"]["kv_capacity_tokens"]
        held = time_means(joined(parts), time.divisions()[1])[0, 0] / capacity
        assert held == pytest.approx(variant.summary["figures"]["kv_utilization_mean"], rel=1e-6)


def test_slots_are_free_while_nothing_runs():
    names = [f"kv_{use}_tokens" for use in SLOT_USES]
    steps = {name: np.array([0, 0]) for name in names} | {
        "replica": np.array([0, 0]),
        "start_ns": np.array([0, 30]),
        "duration_ns": np.array([10, 10]),
        "kv_held_tokens": np.array([60, 25]),
        "kv_reusable_tokens": np.array([10, 5]),
        "kv_free_tokens": np.array([30, 70]),
    }
    capacity, parts = slot_uses(steps)
    line = joined(parts)
    assert capacity == 100
    assert line.times_ns.tolist() == [0, 10, 30, 40]
    assert line.levels[:, 0].tolist() == [60, 0, 25, 0]
    assert line.levels[:, -2].tolist() == [10, 10, 5, 5]  # prefixes stay where they are
    assert line.levels[:, -1].tolist() == [30, 90, 70, 95]


def test_tail_curve_passes_the_percentiles_of_the_summary(charts, run):
    for latency in ("ttft", "e2e"):
        lines = charts[f"chart-tail-{latency}"].figure["data"]
        for place, variant in enumerate(run.variants):
            curve = lines[place]
            value = np.interp(-50, -np.array(curve["y"]), curve["x"])
            expected = variant.summary["figures"][f"{latency}_p50_s"]
            assert value == pytest.approx(expected, rel=0.02)


def test_targets_are_marked_where_the_slo_puts_them(charts):
    marks = [t for t in charts["chart-tail-e2e"].figure["data"] if t["mode"] == "markers"]
    assert [(mark["x"], mark["y"]) for mark in marks] == [([30.0], [pytest.approx(5.0)])]


def test_a_variant_without_the_target_of_the_base_is_said_to_have_none(run):
    base, other = run.variants
    for targets, said in (
        ([], r"has .+ and no such target$"),
        ([{"name": "e2e_p95_s", "bound": 99.0, "value": 4.5, "met": True}],
         "meets its own of 99 s with 4.5 s, none takes longer$"),
    ):  # fmt: skip
        verdict = {**other.summary["verdict"], "targets": targets}
        changed = replace(other, summary={**other.summary, "verdict": verdict})
        charts = {chart.key: chart for chart in tails([base, changed], 0.0)}
        assert re.search(said, charts["chart-tail-e2e"].title)
        assert "target 30 s" in charts["chart-tail-e2e"].title


def test_reusable_prefixes_have_a_color_of_their_own():
    colors = [color for _, color, _ in SLOT_LOOKS]
    assert len(set(colors)) == len(colors)
    assert SLOT_LOOKS[SLOT_USES.index("reusable")][0] == "reusable prefixes"


def test_the_cross_of_a_target_and_who_is_beyond_it_are_told(synthetic):
    run = synthetic.run(slo={"ttft_p90_s": 0.5, "ttft_p99_s": 1.0, "e2e_mean_s": 3.0})
    charts = {chart.key: chart for chart in tails(run.variants, 0.0)}
    ttft = charts["chart-tail-ttft"]
    crosses = [
        (line.get("yref"), line["x0"], line["y0"]) for line in ttft.figure["layout"]["shapes"]
    ]
    assert crosses == [
        ("paper", 0.5, 0),
        (None, 0, pytest.approx(10)),
        ("paper", 1.0, 0),
        (None, 0, pytest.approx(1)),
    ]
    for variant, row in zip(run.variants, ttft.table.rows, strict=True):
        ttft_ns = variant.requests["first_token_ns"] - variant.requests["arrival_ns"]
        shares = [percent(float((ttft_ns > bound * 1e9).mean())) for bound in (0.5, 1.0)]
        assert row[-2:] == shares
    assert ttft.table.header[-2:] == ["longer than 500 ms", "longer than 1 s"]
    assert f"{shares[0]} take longer" in ttft.title or "0 %" in shares[0]
    (rule,) = charts["chart-tail-e2e"].figure["layout"]["shapes"]  # a mean allows no share
    assert rule["x0"] == rule["x1"] == 3.0


def test_warmup_is_left_out_of_the_tails(run):
    late = tails(run.variants, warmup_s=30.0)[0].figure["data"][0]
    assert min(late["y"]) > 100 / len(run.variants[0].requests["request"])


def test_step_time_bars_add_up(charts, run):
    data = charts["chart-step-time"].figure["data"]
    means_ms = [1e3 * variant.summary["figures"]["step_mean_s"] for variant in run.variants]
    for axis in ("y", "y2"):
        bars = [trace["x"] for trace in data if trace["yaxis"] == axis]
        assert np.sum(bars, axis=0) == pytest.approx(means_ms, rel=1e-3)


def test_preemption_bars_count_every_preemption(charts):
    (base,) = charts["chart-preemptions"].figure["data"]  # the other variant has none
    assert sum(base["y"]) == 90
    ticks = [t for t in charts["chart-kv-slots"].figure["data"] if "customdata" in t]
    assert [sum(trace["customdata"]) for trace in ticks] == [90, 0]


def test_swapping_out_is_a_preemption_too(run):
    base = run.variants[0]
    swapped = np.full_like(base.events["event"], EVENT_KINDS.index("swapped_out"))
    changed = replace(base, events={**base.events, "event": swapped})
    chart = preemptions([changed], TimeAxis.of_run(run.variants))
    assert sum(chart.figure["data"][0]["y"]) == 90


def test_no_preemption_no_chart(synthetic):
    run = synthetic.run()
    assert preemptions(run.variants, TimeAxis.of_run(run.variants)) is None


def test_a_variant_has_one_color_in_all_charts(charts):
    queue = charts["chart-queue-batch"].figure["data"]
    tail = charts["chart-tail-ttft"].figure["data"]
    bars = charts["chart-preemptions"].figure["data"]
    assert bars[0]["marker"]["color"] == queue[0]["line"]["color"]
    for place in range(2):
        assert queue[place]["line"]["color"] == tail[place]["line"]["color"]
        assert queue[place]["line"]["dash"] == tail[place]["line"]["dash"]
    assert queue[0]["line"]["color"] != queue[1]["line"]["color"]
    assert queue[0]["line"]["dash"] != queue[1]["line"]["dash"]


def test_every_chart_has_words_numbers_and_units(charts):
    for chart in charts.values():
        assert chart.title[0].isupper() or not chart.title[0].isalpha()
        assert len(chart.alt) > 20
        assert len(chart.definition) > 20
        assert chart.table.rows
        assert all(len(row) == len(chart.table.header) for row in chart.table.rows)
        layout = chart.figure["layout"]
        named = [layout[name]["title"]["text"] for name in layout if re.match(r"[xy]axis", name)]
        assert any(named)
        json.dumps(chart.figure, allow_nan=False)


def test_foreign_writing_keeps_its_direction_to_itself():
    assert short_name("plain") == "plain"
    assert short_name("\u202eevil") == "\u2068\u202eevil\u2069"
    assert len(short_name("x" * 300)) == 28


@pytest.mark.parametrize(
    ("span_s", "unit"), [(1, "s"), (599, "s"), (600, "min"), (7200, "h"), (4 * 86_400, "days")]
)
def test_time_axis_suits_the_run(synthetic, span_s, unit):
    run = synthetic.empty()
    run.variants[0].summary["figures"]["window_s"] = span_s
    assert TimeAxis.of_run(run.variants).unit == unit


@pytest.mark.parametrize("span_ns", [0, 1, 7])
def test_no_row_of_a_table_is_empty_however_short_the_run(synthetic, span_ns):
    run = synthetic.empty()
    run.variants[0].summary["figures"]["window_s"] = span_ns / 1e9
    time = TimeAxis.of_run(run.variants)
    level = Timeline(np.array([0, 100]), np.array([[3], [0]]))
    assert time_means(level, time.divisions()[0]).ravel().tolist() == [3.0] * TABLE_ROWS
