"""`kvsim run --advise` from end to end: what is printed, what is left on the disk."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import kvsim.studies.advice.search
from kvsim.cli.main import app_with
from kvsim.report.advice import finding
from kvsim.rundir.read import open_run
from tests.disk import contents

SCENARIO = """\
# How many constant requests fit a server that takes a tenth of a second for each?
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine: {max_model_len: 2048, max_num_seqs: 1, async_scheduling: false}
cost: {kind: affine, fixed_ns: 100000000}
workload:
  arrivals: {kind: constant, rate_per_s: 6}
  lengths: {kind: fixed, prompt_tokens: 100, output_tokens: 1}
  num_requests: 50
"""
SLO = "slo: {queue_p90_s: 0.05}\n"


@pytest.fixture
def scenario(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "server.yaml"
    path.write_text(SCENARIO + SLO)
    return path


def kvsim_run(*options):
    return CliRunner().invoke(app_with(), ["run", "server.yaml", "--jobs", "1", *options])


def test_what_to_change_next_comes_after_the_limit_and_is_stored(scenario):
    done = kvsim_run("--advise", "--out", "run")
    assert done.exit_code == 0, done.output
    run = open_run(Path("run"))
    blocks = done.stdout.split("\n\n")
    place = next(i for i, block in enumerate(blocks) if block.startswith("Limit: "))
    assert blocks[place + 1].replace("\n", " ") == f"What to change next: {finding(run.advice)}"
    assert finding(run.advice).startswith("2 replicas: 2 times the load fits, ")
    assert blocks[place + 2].split("\n")[0].split() == [
        "load",
        "interval",
        "requests/s",
        "GPUs",
        "USD/Mtok",
    ]
    assert max(map(len, done.stdout.splitlines())) <= 80
    page = Path("run/report.html").read_text()
    assert "2 replicas: 2 times the load fits" in page
    assert "kvsim run server.yaml --advise</pre>" in page
    assert CliRunner().invoke(app_with(), ["report", "run"]).exit_code == 0
    assert Path("run/report.html").read_text() == page


def test_a_run_with_advice_is_replaced_by_one_without(scenario):
    kvsim_run("--advise", "--advise-budget-s", "0", "--no-report", "--out", "run")
    assert "advice.parquet" in contents(Path("run"))
    kvsim_run("--no-report", "--out", "run")
    assert "advice.parquet" not in contents(Path("run"))
    assert open_run(Path("run")).advice == ()


def test_time_that_does_not_suffice_is_said(scenario):
    done = kvsim_run("--advise", "--advise-budget-s", "0", "--out", "run")
    assert done.exit_code == 0
    assert "What to change next: Nothing was compared: the time (0 s) was up" in done.stdout
    assert "not looked at, the time was up" in done.stdout
    assert (
        "kvsim run server.yaml --advise --advise-budget-s 0</pre>"
        in Path("run/report.html").read_text()
    )


def test_advice_without_targets_is_refused_before_anything_runs(scenario):
    scenario.write_text(SCENARIO)
    done = kvsim_run("--advise")
    assert done.exit_code == 2 or "such as ttft_p99_s" in str(done.exception)
    assert [path.name for path in Path().iterdir()] == ["server.yaml"]


def test_an_interrupt_leaves_the_older_run(scenario, monkeypatch):
    kvsim_run("--no-report", "--out", "run")
    before = contents(Path("run"))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kvsim.studies.advice.search, "find_capacity", interrupted)
    done = kvsim_run("--advise", "--out", "run")
    assert done.exit_code != 0
    assert contents(Path("run")) == before
    assert sorted(path.name for path in Path().iterdir()) == ["run", "server.yaml"]
