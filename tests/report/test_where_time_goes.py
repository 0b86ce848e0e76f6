"""Bars of phases, of the average step, and of a GPU's memory, against the summary they draw."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from kvsim.metrics.catalog import PHASE_METRICS
from kvsim.metrics.phases import PHASES
from kvsim.report.bars import Piece, stacked
from kvsim.report.where_time_goes import PHASE_LOOKS, where_memory_goes, where_time_goes
from kvsim.tables import SLOT_USES
from kvsim.units import format_duration

GIB = 2**30


@pytest.fixture(scope="module")
def run(synthetic):
    return synthetic.run(synthetic.Traffic(requests=400, rate_per_s=8, preempted=30))


def with_phases(variant, **parts):
    """A variant whose median and slow request have these phases, 0 where not told."""
    whole = {f"{phase}_s": parts.get(phase, 0.0) for phase in PHASES}
    e2e_s = sum(value or 0.0 for value in whole.values())
    found = {"requests": 7, "e2e_s": e2e_s, **whole}
    return replace(variant, summary={**variant.summary, "phases": {"p50": found, "p95": found}})


def test_every_phase_has_a_look():
    assert tuple(PHASE_LOOKS) == PHASES
    looks = [look[:2] for look in PHASE_LOOKS.values()]
    assert len(set(looks)) == len(looks)


def test_the_bars_are_the_shares_of_the_summary(run):
    chart = where_time_goes(run.variants)
    data = chart.figure["data"]
    for panel, quantile in (("y", "p50"), ("y2", "p95")):
        bars = [trace for trace in data if trace["yaxis"] == panel]
        assert len(bars) == len(PHASES)
        assert np.sum([bar["x"] for bar in bars], axis=0) == pytest.approx(100, abs=0.01)
        for phase, bar in zip(PHASES, bars, strict=True):
            for place, variant in enumerate(run.variants):
                part = variant.summary["phases"][quantile]
                share = 100 * part[f"{phase}_s"] / part["e2e_s"]
                assert bar["x"][place] == pytest.approx(share, rel=1e-4)
    go.Figure(data=data, layout=chart.figure["layout"])


def test_the_table_tells_the_seconds(run):
    rows = where_time_goes(run.variants).table.rows
    assert [row[0] for row in rows] == [
        "base, p50", "base, p95", "contiguous, p50", "contiguous, p95"
    ]  # fmt: skip
    part = run.variants[1].summary["phases"]["p95"]
    assert rows[3][1:4] == [
        f"{part['requests']}", format_duration(part["e2e_s"]), format_duration(part["front_end_s"])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("phases", "lacks", "said"),
    [
        ({"queue": 6.0, "decode": 4.0}, {"kv_blocks": 0.7, "sequence_slot": 0.3},
         "base waits 60 % of 10 s in the queue, mostly for memory"),
        ({"queue": 6.0, "decode": 4.0}, {"sequence_slot": 1.0},
         "base waits 60 % of 10 s in the queue, mostly for a sequence slot"),
        ({"queue": 6.0, "decode": 4.0}, {}, "base waits 60 % of 10 s in the queue"),
        ({"decode": 8.0, "stalled": 2.0}, {"kv_blocks": 1.0}, "base spends 80 % of 10 s decoding"),
        ({"decode": 2.0, "stalled": 8.0}, {},
         "base is stalled 80 % of 10 s by prefills of others"),
        ({"preempted": 9.0, "decode": 1.0}, {}, "base loses 90 % of 10 s to preemptions"),
        ({"prefill": 1.0}, {}, "base spends 100 % of 1 s in its prefill"),
        ({"front_end": 2.0}, {}, "base spends 100 % of 2 s in the API server"),
    ],
)  # fmt: skip
def test_the_title_says_what_the_slow_request_does(run, phases, lacks, said):
    variant = with_phases(run.variants[0], **phases)
    limits = {**variant.summary["limits"], "waiting_share": lacks}
    variant = replace(variant, summary={**variant.summary, "limits": limits})
    assert where_time_goes([variant]).title == f"The p95 request: {said}"


def test_stalls_that_are_not_known_are_said_to_be(run):
    chart = where_time_goes([with_phases(run.variants[0], decode=1.0, stalled=None)])
    assert "Steps of base have no price" in chart.note
    column = chart.table.header.index(PHASE_METRICS["stalled_s"].label)
    assert [row[column] for row in chart.table.rows] == ["–", "–"]
    assert where_time_goes(run.variants).note == ""


def test_variants_without_a_finished_request_are_left_out(run, synthetic):
    base, other = run.variants
    none = replace(other, summary={**other.summary, "phases": {}})
    assert where_time_goes([none]) is None
    assert len(where_time_goes([base, none]).figure["data"][0]["x"]) == 1
    assert where_time_goes(synthetic.rejected().variants) is None


def test_a_request_that_takes_no_time_divides_nothing(run):
    chart = where_time_goes([with_phases(run.variants[0])])
    assert {value for bar in chart.figure["data"] for value in bar["x"]} == {0.0}


def test_memory_adds_up_and_the_cache_is_split_as_the_figures_say(run):
    chart = where_memory_goes(run.variants)
    data = {trace["hovertemplate"].partition(":")[0]: trace for trace in chart.figure["data"][:2]}
    assert set(data) == {"weights", "CUDA graphs"}
    bars = chart.figure["data"]
    for place, variant in enumerate(run.variants):
        total = sum(bar["x"][place] for bar in bars)
        assert total == pytest.approx(sum(variant.memory_bytes.values()) / GIB, rel=1e-4)
        for use, bar in zip(SLOT_USES, bars[2:], strict=True):
            name = f"kv_{use}_share_mean"
            expected = variant.memory_bytes["KV cache"] * variant.summary["figures"][name] / GIB
            assert bar["x"][place] == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert chart.table.rows[-1] == ["KV cache, all of it", "53.30 GiB", "53.30 GiB"]
    go.Figure(data=bars, layout=chart.figure["layout"])


def test_a_cache_that_was_never_used_is_free(synthetic):
    (variant,) = synthetic.rejected().variants
    variant = replace(variant, memory_bytes={"weights": 2.0 * GIB, "KV cache": 3.0 * GIB})
    bars = where_memory_goes([variant]).figure["data"]
    assert [bar["x"] for bar in bars if any(bar["x"])] == [[2.0], [3.0]]
    assert bars[-1]["hovertemplate"].startswith("KV: free")
    assert where_memory_goes(synthetic.rejected().variants) is None


def test_a_piece_is_named_where_there_is_room_and_its_color_is_opaque():
    pieces = [
        Piece("long", "#000000", "", "", [90.0, 1.0]),
        Piece("short", "#ffffff", "", "what it <means>", [2.0, 0.0]),
        Piece("clear", "rgba(0,0,0,0.1)", "", "", [50.0, 50.0]),
    ]
    bars = stacked(pieces, "ms")
    assert [bar["text"] for bar in bars] == [["long", ""], ["", ""], ["", ""]]
    assert "&lt;means&gt;" in bars[1]["hovertemplate"]
    assert bars[0]["customdata"] == ["63.4 %", "1.96 %"]


def test_titles_tell_the_first_variants_and_leave_many_others_to_the_table(run):
    base = run.variants[0]
    for count, ends in ((4, "decoding"), (6, "3 others in the table")):
        variants = [replace(with_phases(base, decode=1.0), name=f"v{k}") for k in range(count)]
        chart = where_time_goes(variants)
        assert chart.title.endswith(ends)
        assert len(chart.table.rows) == 2 * count
