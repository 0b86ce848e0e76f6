"""Cases → rows, sums and page: nothing is dropped, and the same input gives the same rows."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kvsim.validate import run
from kvsim.validate.case import Case, ClosedLoop, Measured, Server
from kvsim.validate.files import read_cases
from kvsim.validate.page import build_page
from kvsim.validate.peers import peers_of
from kvsim.validate.run import Row, rows_of, validate
from kvsim.validate.summary import spread_of, summarize
from tests.validate.measured import KV_SIZES, POINTS, record, records


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    found = []
    for name, text in (("r", records(record())), ("p", POINTS), ("k", KV_SIZES)):
        (folder / name).write_text(text)
        found += read_cases(folder / name)
    return found


@pytest.fixture(scope="module")
def rows(cases):
    return validate(cases)


def test_every_case_and_every_figure_has_its_row(cases, rows):
    asked = {(case.id, m.metric, m.stage) for case in cases for m in case.measured}
    listed = [(row.id, row.metric, row.stage) for row in rows]
    assert asked <= set(listed)
    assert len(listed) == len(set(listed))
    assert [*dict.fromkeys(row.id for row in rows)] == [case.id for case in cases]
    for row in rows:
        assert (row.predicted is None) == bool(row.reason)


def test_reasons_say_what_is_wrong(rows):
    reasons = {row.id: row.reason for row in rows}
    assert "concurrency" in reasons["c"]
    assert "who/knows" in reasons["d"]
    assert "mi300x" in reasons["d"]
    assert "vLLM does one or the other" in reasons["e"]
    assert reasons["elsewhere"] == "the GPU is not recorded"
    assert reasons["mine"] == reasons["a"] == reasons["tokens"] == ""


def test_rows_come_alike_from_several_processes(cases, rows):
    assert validate(cases, jobs=2) == rows


def test_the_seed_decides_the_draws(cases, rows):
    assert rows_of(cases[0], 0) == [row for row in rows if row.id == "mine"]
    assert rows_of(cases[0], 1) != rows_of(cases[0], 0)


def test_a_server_alone_answers_as_fast_as_its_steps():
    """One request at a time: the same arithmetic without queue, burst or batch."""
    server = Server("Qwen/Qwen3-8B", "H100", max_num_batched_tokens=4096, max_num_seqs=8)
    measured = (Measured("ttft_mean", 1.0), Measured("tpot_mean", 1.0), Measured("e2e_mean", 1.0))
    case = Case("alone", server, ClosedLoop(1, 1000, 50, rounds=3), measured)
    ttft, tpot, e2e = (row.predicted for row in rows_of(case, 0))
    assert e2e == pytest.approx(ttft + 49 * tpot)
    burst = replace(case, client=ClosedLoop(8, 1000, 50, rounds=1))
    assert rows_of(burst, 0)[0].predicted > 2 * ttft


def test_recorded_blocks_serve_and_computed_ones_are_compared(cases):
    server = replace(cases[0].server, max_model_len=128)
    few = replace(cases[0], server=replace(server, num_gpu_blocks=9))
    kept = {(row.metric, row.stage): row for row in rows_of(replace(cases[0], server=server), 0)}
    squeezed = {(row.metric, row.stage): row for row in rows_of(few, 0)}
    key = "kv_cache_tokens", -1
    assert squeezed[key].predicted == kept[key].predicted
    assert squeezed["ttft_p99", -1].predicted > 1.5 * kept["ttft_p99", -1].predicted


def test_a_server_too_small_says_so(cases):
    tiny = replace(cases[0], server=replace(cases[0].server, num_gpu_blocks=3))
    reason = next(row.reason for row in rows_of(tiny, 0) if row.metric == "e2e_mean")
    assert "fit" in reason


def test_a_defect_at_one_server_leaves_the_others(cases, monkeypatch):
    def broken(*_):
        raise KeyError("gone")

    monkeypatch.setattr(run, "resolve", broken)
    found = rows_of(cases[0], 0)
    assert all("defect of kvsim: KeyError" in r.reason for r in found if r.metric == "e2e_mean")
    assert next(row for row in found if row.metric == "kv_cache_tokens").predicted


def test_errors_are_relative_to_the_measurement():
    row = Row("x", "e2e_mean", -1, 90.0, 120.0)
    assert row.error_percent == pytest.approx(-25)
    assert row.ape == pytest.approx(25)
    assert Row("x", "e2e_mean", -1, None, 120.0).ape is None


def test_sums_are_those_of_whole_runs(cases, rows):
    summary = summarize(rows, cases, {})
    for metric, spread in summary.metrics.items():
        errors = [r.ape for r in rows if r.metric == metric and r.stage == -1 and r.ape is not None]
        assert spread.n == len(errors)
        assert spread.median == pytest.approx(np.median(errors))
        assert spread.mean == pytest.approx(np.mean(errors))
        assert spread.p90 == pytest.approx(np.percentile(errors, 90))
    by_gpu = summary.groups["gpu"]
    assert sum(group["ttft_mean"].n for group in by_gpu.values() if "ttft_mean" in group) == (
        summary.metrics["ttft_mean"].n
    )
    assert set(summary.unpredicted) == {row.id for row in rows if row.reason}
    assert json.dumps(summary.as_dict(), allow_nan=False)


def test_peers_are_compared_on_the_same_measurements(cases):
    rows = [Row("1", "e2e_mean", -1, 110.0, 100.0), Row("2", "e2e_mean", -1, 130.0, 100.0)]
    named = [replace(cases[0], id="1"), replace(cases[0], id="2")]
    peers = {"A": {("1", "e2e_mean"): 40.0, ("3", "e2e_mean"): 1.0, ("1", "ttft_mean"): 2.0}}
    (beside,) = summarize(rows, named, peers).beside
    assert (beside.simulator, beside.metric) == ("A", "e2e_mean")
    assert beside.theirs == spread_of([40.0])
    assert beside.ours.median == pytest.approx(10.0)


def test_published_errors_are_found_by_experiment():
    peers = peers_of(["9", "10"])
    assert peers["BLIS"]["10", "e2e_mean"] == pytest.approx(12.1, abs=0.1)
    assert "Vidur" not in peers
    assert peers_of(["nobody"]) == {}


def test_the_page_shows_parity_and_hides_nothing(cases, rows):
    evil = "<script>alert(1)</script>"
    renamed = [replace(row, id=evil if row.id == "mine" else row.id) for row in rows]
    named = [replace(case, id=evil if case.id == "mine" else case.id) for case in cases]
    summary = summarize(renamed, named, {})
    page = build_page(renamed, named, summary, {}, "kvsim validate mine.json")
    assert page == build_page(renamed, named, summary, {}, "kvsim validate mine.json")
    assert evil not in page
    for key in ("chart-e2e_mean", "chart-ttft_mean", "chart-tpot_mean", "chart-kv_cache_tokens"):
        assert f'id="{key}"' in page
    assert "concurrency or lengths are not recorded" in page
    assert "http://" not in page.partition('<script type="application/json"')[0]


def test_a_page_without_any_prediction_is_a_page(cases):
    refused = [replace(cases[0], refusals=("for a test",))]
    rows = validate(refused)
    page = build_page(rows, refused, summarize(rows, refused, {}), {}, "kvsim validate")
    assert "No latency could be compared" in page
    assert "for a test" in page
