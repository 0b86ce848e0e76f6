"""Runs of sweeps: only what is missing runs, failures are kept, the same bytes whoever works."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from kvsim.errors import InputError
from kvsim.metrics.catalog import METRICS
from kvsim.studies.sweep import outcome
from kvsim.studies.sweep.store import STORE
from kvsim.study.local import crew_of
from kvsim.study.point import Point, run_point

RATE = "workload.arrivals.rate_per_s"
TWO_AXES = f"axes: {{{RATE}: [2, 8], engine.max_num_seqs: [1, 4]}}\n"


def bytes_of(result) -> tuple[bytes, bytes]:
    return result.table_path.read_bytes(), result.page_path.read_bytes()


def test_each_row_is_what_its_point_alone_comes_to(folder):
    result, _ = folder.run(TWO_AXES + "variants: [base, contiguous]\nreplications: 2")
    table = result.table
    assert len(table) == 16
    scenario = folder.load(TWO_AXES).scenario
    for _, row in table.sample(4, random_state=1).iterrows():
        changes = {RATE: row[RATE], "engine.max_num_seqs": int(row["engine.max_num_seqs"])}
        point = Point(changes, row["variant"], int(row["replication"]))
        summary = run_point(scenario, point).summary()
        assert row["met"] == summary["verdict"]["met"]
        for name, value in summary["figures"].items():
            assert np.isnan(row[name]) if value is None else row[name] == value
    means = table.groupby("point")["ttft_p99_s"].mean().to_numpy()
    assert result.results.means("ttft_p99_s") == pytest.approx(means)


def test_the_table_has_units_and_types(folder):
    result, _ = folder.run(TWO_AXES)
    schema = pq.read_schema(result.table_path)
    assert schema.field("ttft_p99_s").metadata[b"unit"] == b"s"
    assert set(METRICS) <= set(schema.names)
    assert str(schema.field("engine.max_num_seqs").type) == "int64"
    assert str(schema.field("met").type) == "bool"
    assert pd.read_parquet(result.table_path).equals(result.table)


def test_a_second_run_simulates_nothing_and_writes_the_same(folder):
    first, ran = folder.run(TWO_AXES)
    assert len(ran) == first.ran == 4
    before = bytes_of(first)
    second, ran = folder.run(TWO_AXES)
    assert (len(ran), second.ran) == (0, 0)
    assert bytes_of(second) == before


def test_an_extended_sweep_runs_only_what_is_missing(folder):
    folder.run(TWO_AXES)
    longer = TWO_AXES.replace("[2, 8]", "[2, 4, 8]")
    _, ran = folder.run(longer)
    assert {point.changes[RATE] for point in ran} == {4}
    _, ran = folder.run(longer + "replications: 2\n")
    assert {point.replication for point in ran} == {1}
    # The scenario's own value as a further axis: those points are there.
    _, ran = folder.run(longer.replace("}", ", engine.block_size: [16, 32]}"))
    assert {point.changes["engine.block_size"] for point in ran} == {32}
    assert len(ran) == 6


def test_a_changed_scenario_is_run_anew(folder):
    folder.run(TWO_AXES)
    scenario = folder.path / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("output_tokens: 4", "output_tokens: 5"))
    _, ran = folder.run(TWO_AXES)
    assert len(ran) == 4


def test_two_workers_write_what_one_writes(folder):
    alone, _ = folder.run(TWO_AXES, out="one")
    together, _ = folder.run(TWO_AXES, out="two", crew=crew_of(2))
    assert bytes_of(alone) == bytes_of(together)


def test_progress_counts_what_was_there(folder):
    folder.run(TWO_AXES)
    told = []
    longer = TWO_AXES.replace("[2, 8]", "[2, 4, 8]")
    folder.run(longer, tell=lambda *counts: told.append(counts))
    assert told == [(4, 6), (5, 6), (6, 6)]


# Failures

REFUSED = "axes: {engine.max_model_len: [4096, 1000000], engine.max_num_seqs: [2, 4]}\n"


def test_a_refused_point_is_recorded_and_stops_no_other(folder):
    result, ran = folder.run(REFUSED)
    assert len(ran) == 4
    table = result.table.set_index("engine.max_model_len")
    assert list(table.loc[4096, "status"]) == ["done", "done"]
    assert list(table.loc[1_000_000, "status"]) == ["refused", "refused"]
    assert table.loc[1_000_000, "error"].str.contains("131072 positions").all()
    assert table.loc[1_000_000, "ttft_p99_s"].isna().all()
    _, ran = folder.run(REFUSED)
    assert not ran
    _, ran = folder.run(REFUSED, retry=True)
    assert {point.changes["engine.max_model_len"] for point in ran} == {1_000_000}


def test_values_that_do_not_go_together_are_refused_at_their_point(folder):
    sizes = "engine.num_gpu_blocks_override: [1000, null]"
    text = f"axes: {{{sizes}, engine.kv_cache_memory_bytes: [1000000000, null]}}\n"
    result, ran = folder.run(text)
    assert list(result.table["status"]) == ["refused", "done", "done", "done"]
    assert len(ran) == 3
    together = '{left: engine.num_gpu_blocks_override, op: "==", right: null}'
    result, ran = folder.run(f"{text}where: [{together}]\n")
    assert list(result.table["status"]) == ["done", "done"]
    assert not ran


def test_a_defect_and_a_death_are_told_apart_and_retried(folder, monkeypatch):
    def failing(_, point):
        if point.changes[RATE] == 2:
            raise ZeroDivisionError("a slip")
        raise MemoryError

    monkeypatch.setattr("kvsim.studies.sweep.run.simulated", failing)
    result, _ = folder.run(TWO_AXES)
    assert list(result.table["status"]) == ["defect", "defect", "killed", "killed"]
    assert result.table["error"][0].endswith("ZeroDivisionError: a slip\n")
    assert result.answer.sentence == "None of 4 points could be simulated"
    monkeypatch.undo()
    result, ran = folder.run(TWO_AXES, retry=True)
    assert set(result.table["status"]) == {"done"}
    assert len(ran) == 4


def test_a_finished_point_survives_the_driver(folder, monkeypatch):
    def interrupted(file, point):
        if point.changes == {RATE: 8, "engine.max_num_seqs": 4}:
            raise KeyboardInterrupt
        return outcome.simulated(file, point)

    monkeypatch.setattr("kvsim.studies.sweep.run.simulated", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.run(TWO_AXES)
    assert [path.name for path in sorted((folder.path / "out").iterdir())] == [STORE]
    monkeypatch.undo()
    _, ran = folder.run(TWO_AXES)
    assert len(ran) < 4


# The directory


def test_results_hold_no_place_of_this_machine(folder):
    result, _ = folder.run(TWO_AXES)
    with sqlite3.connect(folder.path / "out" / STORE) as database:
        rows = database.execute("SELECT key, status, content FROM results").fetchall()
    database.close()
    assert len(rows) == 4
    for key, status, content in rows:
        assert len(key) == 64
        assert status == "done"
        assert set(json.loads(content)) == {"met", "verdict", "figures"}
    assert str(folder.path).encode() not in result.page_path.read_bytes()


@pytest.mark.parametrize("content", [b"no database at all, but a text that is long enough " * 40])
def test_a_store_that_is_none_is_told(folder, content):
    out = folder.path / "out"
    out.mkdir()
    (out / STORE).write_bytes(content)
    with pytest.raises(InputError, match=r"results.sqlite: results can't be kept here: "):
        folder.run(TWO_AXES)
    assert (out / STORE).read_bytes() == content


@pytest.mark.parametrize("name", ["mine.parquet", "mine.html"])
def test_what_kvsim_did_not_write_is_not_replaced(folder, name):
    out = folder.path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    with pytest.raises(InputError, match=f"{name}: is there already, and kvsim did not write it"):
        folder.run(TWO_AXES)
    assert [path.name for path in out.iterdir()] == [name]
    assert (out / name).read_text() == "mine"


def test_a_foreign_table_is_no_store(folder):
    out = folder.path / "out"
    out.mkdir()
    with sqlite3.connect(out / STORE) as database:
        database.execute("CREATE TABLE results (other TEXT)")
    database.close()
    with pytest.raises(InputError, match="results can't be kept here"):
        folder.run(TWO_AXES)


@pytest.mark.parametrize("content", ["{", "[]", "3", '{"met": true}'])
def test_a_damaged_result_is_told(folder, content):
    folder.run(TWO_AXES)
    with sqlite3.connect(folder.path / "out" / STORE) as database:
        database.execute("UPDATE results SET content = ?", (content,))
    database.close()
    with pytest.raises(InputError, match=r"results.sqlite: results can't be kept here: the result"):
        folder.run(TWO_AXES)


def test_a_sweep_is_named_by_its_file_or_itself(folder):
    result, _ = folder.run("axes: {seed: [1, 2]}\n", name="seeds")
    assert result.table_path == Path(folder.path / "out" / "seeds.parquet")
    result, _ = folder.run("name: other\naxes: {seed: [1, 2]}\n", name="seeds")
    assert result.page_path.name == "other.html"
