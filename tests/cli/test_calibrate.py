"""`kvsim calibrate`: exit codes, tables, the profile, JSON for machines, kernels to pack."""

import json

import pandas as pd
import pytest

from kvsim.cost.front_end import FrontEnd
from kvsim.cost.overheads.async_engine import AsyncEngine
from kvsim.scenario.profiles import load_profile
from tests.calibrate.benchmarks import closed_loop, costs, scenario, served, vllm_bench, written

CONSTANTS = [*AsyncEngine.model_fields, *FrontEnd.model_fields][1:]  # all but the kind


@pytest.fixture
def measured(tmp_path):
    """Return a scenario and two results of a server that is slower than its profile says."""
    (tmp_path / "truth").mkdir()
    truth = scenario(tmp_path / "truth", costs(fixed_s=0.002, per_seq_s=2e-5, request_s=0.02))
    results = []
    for concurrency in (1, 12):
        count = 2 * concurrency
        requests = closed_loop(concurrency, [500] * count, [40] * count)
        document = vllm_bench(served(truth, requests), requests, concurrency=concurrency)
        results.append(written(tmp_path / f"c{concurrency}.json", document))
    return scenario(tmp_path), *results


def test_tables_and_profile(command_line, measured, tmp_path):
    done = command_line("calibrate", *measured, "--out", "mine.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    header, *rows = done.stdout.split("\n\n")[0].splitlines()
    assert header.split("  ")[0] == "Constant"
    assert [row.split()[0].partition(".")[2] for row in rows] == CONSTANTS
    assert "c12.json" in done.stdout
    assert "Median error" in done.stdout
    assert "is one more than so few results can tell" in " ".join(done.stdout.split())
    assert "per_all_reduce_s has no effect in these runs" in done.stdout
    assert done.stdout.endswith("names it by cost: {profile: mine.yaml}\n")
    profile = load_profile("mine.yaml", tmp_path)
    assert profile.overhead.fixed_s == pytest.approx(0.002, rel=0.15)
    assert "# fitted" in (tmp_path / "mine.yaml").read_text()


def test_json_has_constants_figures_and_notes(command_line, measured):
    document = json.loads(command_line("calibrate", *measured, "--json").stdout)
    assert list(document) == ["profile", "start", "constants", "figures", "notes"]
    assert [one["name"].partition(".")[2] for one in document["constants"]] == CONSTANTS
    figure = document["figures"][0]
    assert list(figure) == ["result", "metric", "measured_ms", "before_ms", "after_ms"]
    before, after = (
        abs(figure[key] / figure["measured_ms"] - 1) for key in ("before_ms", "after_ms")
    )
    assert after < before
    assert document["notes"]


def test_a_file_stays_unless_forced(command_line, measured, tmp_path):
    (tmp_path / "profile.yaml").write_text("mine")
    done = command_line("calibrate", *measured)
    assert (done.returncode, done.stderr) == (2, "profile.yaml: exists; --force overwrites it\n")
    assert (tmp_path / "profile.yaml").read_text() == "mine"
    assert command_line("calibrate", *measured, "--force").returncode == 0
    assert load_profile("profile.yaml", tmp_path).engine == "vllm"


def test_mistakes_leave_no_profile(command_line, measured, tmp_path):
    server, first, _ = measured
    (tmp_path / "broken.json").write_text('{"completed": 3, "mean_ttft_ms": 1.0}')
    done = command_line("calibrate", server, first, "broken.json")
    assert done.returncode == 2
    assert "broken.json:1: total_input_tokens is missing" in done.stderr
    assert "name files with results" in command_line("calibrate", server).stderr
    assert "name the scenario" in command_line("calibrate").stderr
    done = command_line("calibrate", server, first, "--kernels", ".")
    assert (done.returncode, done.stderr[:9]) == (2, "--kernels")
    assert not (tmp_path / "profile.yaml").exists()


def test_a_foreign_model_and_failed_requests_are_told(command_line, measured, tmp_path):
    server, first, _ = measured
    document = json.loads(first.read_text()) | {"model_id": "acme/Other-7B", "failed": 2}
    (tmp_path / "other.json").write_text(json.dumps(document))
    text = " ".join(command_line("calibrate", server, "other.json").stdout.split())
    assert "other.json was measured with acme/Other-7B, the scenario serves meta-llama/" in text
    assert "other.json: 2 requests failed" in text
    assert "There are no intervals" in text


def test_kernels_are_packed(command_line, tmp_path):
    (tmp_path / "timings").mkdir()
    rows = [
        {"gpu": "my_gpu", "dtype": "bfloat16", "m": m, "n": 4096, "k": 4096, "latency_us": 9.0 + m}
        for m in (1, 16, 256)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "timings" / "gemm.csv", index=False)
    done = command_line("calibrate", "--kernels", "timings", "--out", "my_gpu.npz")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("my_gpu: gemm: 3 rows\nKernels: my_gpu.npz.")
    assert (tmp_path / "my_gpu.npz").is_file()


def test_a_server_that_would_not_start_is_told_by_its_line(command_line, measured, tmp_path):
    server, first, _ = measured
    server.write_text(server.read_text() + "cost: {kind: affine, fixed_ns: 1000.0}\n")
    line = len(server.read_text().splitlines())
    done = command_line("calibrate", server, first)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{server}:{line}: cost.kind: only the overheads")
