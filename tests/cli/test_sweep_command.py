"""`kvsim sweep`: what it prints, exit codes, and what a killed one leaves."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kvsim

SCENARIO = """
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine: {max_model_len: 4096, num_gpu_blocks_override: 1000, enable_prefix_caching: false}
cost: {kind: affine, fixed_ns: 1.0e+7, per_token_ns: 1.0e+5}
workload:
  arrivals: {kind: poisson, rate_per_s: 4}
  lengths: {kind: fixed, prompt_tokens: 50, output_tokens: 4}
  num_requests: 12
slo: {ttft_p99_s: 0.1}
"""
AXES = "{workload.arrivals.rate_per_s: [2, 8], engine.max_num_seqs: [1, 2, 4]}"


@pytest.fixture
def sweep_file(tmp_path):
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    file = tmp_path / "mine.yaml"
    file.write_text(f"# Which cap?\nscenario: scenario.yaml\naxes: {AXES}\n")
    return file


def test_the_answer_comes_first_and_fits_the_terminal(command_line, sweep_file):
    done = command_line("sweep", sweep_file, "--jobs", 1)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("6 of 6 points meet the SLO; the cheapest costs $")
    assert max(map(len, lines)) <= 80
    assert lines[-2:] == [
        "Table: reports/sweeps/mine.parquet",
        "Page: reports/sweeps/mine.html",
    ]
    assert "Simulated now: 6." in done.stdout
    assert not done.stderr
    assert "Simulated now: 0." in command_line("sweep", sweep_file).stdout


def test_json_names_the_best_and_the_front(command_line, sweep_file):
    done = command_line("sweep", sweep_file, "--json", "--jobs", 1)
    told = json.loads(done.stdout)
    assert (told["points"], told["meet_slo"], told["failed"]) == (6, 6, 0)
    cost = "usd_per_million_output_tokens"
    front = [point["figures"][cost]["mean"] for point in told["front"]]
    assert front == sorted(front, reverse=True)
    assert told["best"]["figures"][cost]["mean"] == front[-1]
    assert told["best"]["changes"]["workload.arrivals.rate_per_s"] == 8


def test_no_point_that_meets_the_slo_is_exit_code_1(command_line, sweep_file):
    scenario = sweep_file.with_name("scenario.yaml")
    scenario.write_text(SCENARIO.replace("0.1}", "0.001}"))
    done = command_line("sweep", sweep_file, "--jobs", 1)
    assert done.returncode == 1
    assert done.stdout.startswith("None of 6 points meets the SLO; the closest keeps ")


def test_mistakes_are_exit_code_2_and_leave_nothing(command_line, sweep_file, tmp_path):
    sweep_file.write_text("scenario: scenario.yaml\naxes: {engine.max_num_seq: [1]}\n")
    done = command_line("sweep", sweep_file)
    assert done.returncode == 2
    assert f"{sweep_file}:2: axes.engine.max_num_seq: unknown key; did you mean" in done.stderr
    assert not done.stdout
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("count", [400, 100_000])
def test_many_points_need_a_yes_and_are_only_counted(command_line, sweep_file, count):
    wide = f"{{from: 0.0, to: 1.0, count: {count}}}"
    sweep_file.write_text(
        f"scenario: scenario.yaml\naxes: {{engine.watermark: {wide}, warmup_s: {wide}}}\n"
    )
    begin = time.monotonic()
    done = command_line("sweep", sweep_file)
    assert time.monotonic() - begin < 5
    assert done.returncode == 2
    assert f"its axes span {count**2:,} points, more than 100,000" in done.stderr
    assert "--yes" in done.stderr


def test_failed_points_are_told(command_line, sweep_file):
    sweep_file.write_text("scenario: scenario.yaml\naxes: {engine.max_model_len: [4096, 1000000]}")
    done = command_line("sweep", sweep_file, "--jobs", 1)
    assert done.returncode == 0
    assert "Failed: 1 refused." in done.stdout
    assert "Simulated now: 1." in command_line("sweep", sweep_file, "--retry").stdout


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_command_with_workers_is_resumed(command_line, sweep_file, tmp_path):
    long = AXES.replace("[2, 8]", "{from: 1.0, to: 20.0, count: 24}")
    sweep_file.write_text(f"scenario: scenario.yaml\naxes: {long}\n")
    command = [sys.executable, "-c", "from kvsim.cli.main import main; main()", "sweep"]
    environment = os.environ | {"PYTHONPATH": str(Path(kvsim.__file__).parents[1])}
    process = subprocess.Popen(
        [*command, sweep_file, "--out", "out", "--jobs", "2"], cwd=tmp_path, env=environment
    )
    store = tmp_path / "out" / "results.sqlite"
    while not (store.exists() and _count(store)):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    there = _count(store)
    assert 0 < there < 72
    done = command_line("sweep", sweep_file, "--out", "out", "--jobs", 1)
    assert f"Simulated now: {72 - there}." in done.stdout
    command_line("sweep", sweep_file, "--out", "other", "--jobs", 1)
    for name in ("mine.parquet", "mine.html"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def _count(store) -> int:
    database = sqlite3.connect(store, timeout=10)
    try:
        return database.execute("SELECT count(*) FROM results").fetchone()[0]
    except sqlite3.OperationalError:  # there is no table yet
        return 0
    finally:
        database.close()
