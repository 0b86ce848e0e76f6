"""The same scenario gives the same bytes; chunks and further variants change no row."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from kvsim.errors import InputError
from kvsim.rundir.write import new_directory, run_into
from kvsim.scenario.load import load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all
from kvsim.tables import TABLES
from kvsim.workload.files import content_digest
from tests.disk import contents

ROOT = Path(__file__).parents[1]
SCENARIO = """\
model: meta-llama/Llama-3.1-8B-Instruct
gpu: l40s
engine: {max_model_len: 2048, max_num_seqs: 12, num_gpu_blocks_override: 200}
replicas: 2
routing: least_requests
workload:
  arrivals: {kind: gamma, rate_per_s: 20.0, burstiness: 0.3}
  lengths: {kind: lognormal, prompt_mean_tokens: 300, prompt_cv: 1.0,
            output_mean_tokens: 150, output_cv: 1.0}
  num_requests: 120
  n: 2
oversized_requests: reject
slo: {ttft_p99_s: 1.0}
"""
VARIANTS = """\
variants:
  contiguous: {kv_cache: {kind: contiguous, reservation: oracle_pow2, placement: buddy}}
  shared: {routing: shared_queue}
"""


def ran(folder, text=SCENARIO):
    (folder / "s.yaml").write_text(text)
    file = load_scenario(folder / "s.yaml")
    variants = resolve_all(file)
    (folder / "run").mkdir()
    return run_into(folder / "run", file, variants, draw_requests(file, variants))


def run(folder, text=SCENARIO):
    return ran(folder, text).run


def assert_same_rows(one, other):
    for table in TABLES:
        assert one[table].keys() == other[table].keys()
        for name, column in one[table].items():
            np.testing.assert_array_equal(column, other[table][name], f"{table}.{name}")


def test_the_scenario_has_all_kinds_of_rows(tmp_path):
    """What follows would say little of a run in which nothing happens."""
    tables = run(tmp_path, SCENARIO + VARIANTS).tables
    for variant in ("base", "contiguous", "shared"):
        assert set(tables[variant]["steps"]["replica"].tolist()) == {0, 1}
    assert tables["base"]["requests"]["preemptions"].sum() > 0
    assert tables["contiguous"]["steps"]["kv_rounding_tokens"].max() > 0
    assert len(set(tables["base"]["steps"]["head_lacks"].tolist())) >= 3


def test_what_stops_an_engine_is_located_in_the_file(tmp_path):
    """Only one of the variants is too small: the message must say which."""
    small = """\
model: meta-llama/Llama-3.1-8B-Instruct
gpu: l40s
scheduler: {kind: vllm_v0, declared_prefixes: true}
engine: {max_model_len: 64, block_size: 64, num_gpu_blocks_override: 100}
workload:
  arrivals: {kind: all_at_once}
  lengths: {kind: fixed, prompt_tokens: 21, output_tokens: 20}
  prompts: {kind: shared_prefix, prefix_tokens: 1, groups: 3}
  num_requests: 8
  n: 4
variants:
  small: {engine: {num_gpu_blocks_override: 3}}
"""
    with pytest.raises(InputError, match="too small for a group of sequences") as error:
        run(tmp_path, small)
    (problem,) = error.value.problems
    assert (problem.file, problem.path) == (str(tmp_path / "s.yaml"), "variants.small")
    assert problem.line == 12


def test_fresh_processes_write_the_same_bytes(tmp_path):
    (tmp_path / "s.yaml").write_text(SCENARIO + VARIANTS)
    code = "from kvsim.cli.main import main; main()"
    runs = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code, "run", "s.yaml", "--out", f"out{seed}"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode in {0, 1}, done.stderr
        runs.append((contents(tmp_path / f"out{seed}"), done.stdout.replace(f"out{seed}", "out")))
    (first, said), (second, said_again) = runs
    assert len(first) == 9
    assert first.keys() == second.keys()
    for name in first:
        assert first[name] == second[name], name
    assert said == said_again


def test_a_run_carries_the_manifest_that_it_wrote(tmp_path, monkeypatch):
    """What reproduces a run is computed once; files are told by their content."""
    digested = []

    def digest(path):
        digested.append(path.name)
        return content_digest(path)

    monkeypatch.setattr("kvsim.workload.parameters.content_digest", digest)
    rows = "".join(f"{10 * number},5\n" for number in range(1, 9))
    (tmp_path / "l.csv").write_text(f"prompt_tokens,output_tokens\n{rows}")
    start, end = SCENARIO.index("  lengths:"), SCENARIO.index("  num_requests:")
    lengths = "  lengths: {kind: empirical, file: l.csv}\n"
    made = ran(tmp_path, SCENARIO[:start] + lengths + SCENARIO[end:] + VARIANTS)
    written = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert made.run.manifest == written
    assert written["files"] == {"l.csv": content_digest(tmp_path / "l.csv")}
    assert written["requests_sha256"] == made.requests.digest()
    assert digested == ["l.csv"]


def test_another_seed_gives_other_rows(tmp_path):
    """The equalities here are not those of a run that ignores its draws."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = run(tmp_path / "a"), run(tmp_path / "b", SCENARIO + "seed: 1\n")
    arrivals = [found.tables["base"]["requests"]["arrival_ns"] for found in (one, other)]
    assert not np.array_equal(*arrivals)


@pytest.mark.parametrize("steps", [1, 100])
def test_the_size_of_chunks_changes_no_row(tmp_path, monkeypatch, steps):
    """Steps are written replica by replica in each chunk: only that order changes."""
    (tmp_path / "usual").mkdir()
    (tmp_path / "other").mkdir()
    short = SCENARIO.replace("num_requests: 120", "num_requests: 40")
    usual = run(tmp_path / "usual", short)
    monkeypatch.setattr("kvsim.engine.recorder.STEPS_IN_A_CHUNK", steps)
    other = run(tmp_path / "other", short)
    groups = pq.ParquetFile(tmp_path / "other" / "run" / "steps.parquet").num_row_groups
    assert groups > 5
    assert_same_rows(
        *({**each.tables["base"], "steps": by_replica(each)} for each in (usual, other))
    )
    assert usual.summaries == other.summaries


def by_replica(found):
    steps = found.tables["base"]["steps"]
    order = np.lexsort((steps["step"], steps["replica"]))
    return {name: column[order] for name, column in steps.items()}


def test_a_further_variant_changes_nothing_in_the_base(tmp_path):
    (tmp_path / "alone").mkdir()
    (tmp_path / "more").mkdir()
    alone, more = run(tmp_path / "alone"), run(tmp_path / "more", SCENARIO + VARIANTS)
    assert_same_rows(alone.tables["base"], more.tables["base"])
    assert alone.summaries["base"] == more.summaries["base"]


def test_figures_of_a_run_that_is_cut_are_those_of_its_time(tmp_path):
    """Throughput is what completed before the cut, over the time until then."""
    made = ran(tmp_path, SCENARIO + "max_simulated_s: 2.0\n")
    cut = made.run
    requests, figures = cut.tables["base"]["requests"], cut.summaries["base"]["figures"]
    assert made.requests.horizon_ns == 2 * 10**9
    finished = int((requests["outcome"] == 0).sum())
    assert 0 < finished < len(requests["outcome"])
    assert figures["requests_per_s"] == pytest.approx(finished / 2.0)
    assert figures["requests_unfinished"] > 0


def test_a_folder_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "a" / "b"
    with new_directory(target) as folder:
        assert not target.exists()
        (folder / "x").write_text("1")
        assert folder.parent.parent == target.parent
    assert contents(tmp_path) == {"a/b/x": b"1"}
    assert [path.name for path in target.parent.iterdir()] == ["b"]


def test_an_empty_folder_is_filled_and_a_file_refused(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with new_directory(Path()) as folder:
        (folder / "x").write_text("1")
    assert contents(tmp_path) == {"empty/x": b"1"}
    with (
        pytest.raises(InputError, match="is no folder"),
        new_directory(tmp_path / "empty" / "x"),
    ):
        pytest.fail("it must be refused before anything runs")


def test_a_link_to_a_run_keeps_pointing_to_it(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with new_directory(tmp_path / "link") as folder:
        (folder / "x").write_text("1")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "x").read_text() == "1"


def test_an_older_run_comes_back_if_the_new_one_can_not_take_its_place(tmp_path, monkeypatch):
    run(tmp_path)
    target = tmp_path / "run"
    before = contents(target)
    rename = Path.rename

    def fails_for_the_new_one(self, to):
        if self.name == "new":
            raise OSError(5, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fails_for_the_new_one)
    with pytest.raises(OSError, match="Input/output"), new_directory(target) as folder:
        (folder / "x").write_text("1")
    assert contents(target) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "s.yaml"]
