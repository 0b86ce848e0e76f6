"""`kvsim plan`: what it prints, which files it writes, exit codes, mistakes."""

import json

import pytest

from tests.studies.plan.deployments import scenario_text

WORKLOAD = (
    "{arrivals: {kind: poisson, rate_per_s: 30}, num_requests: 60, lengths: {kind: fixed, "
    "prompt_tokens: 300, output_tokens: 20}}"
)
ONE = ("--gpus", "h100_sxm", "--tp", "1", "--weights", "auto", "--jobs", "1", "--also", "0")


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(scenario_text(workload=WORKLOAD, slo="{e2e_p90_s: 4}"))
    return path


def test_answer_comes_first_and_files_lie_beside_the_page(command_line, scenario):
    done = command_line(
        "plan", scenario, *ONE, "--spare", 1, "--price", "h100_sxm=2.5", "--out", "plans/a.html"
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert first.startswith("1 × h100_sxm, TP 1 (1 GPU, $2.50/h")
    assert any(line.startswith("With 1 spare: 2 × h100_sxm") for line in lines)
    assert max(map(len, done.stdout.splitlines())) <= 80
    folder = scenario.parent / "plans"
    assert sorted(path.name for path in folder.iterdir()) == ["a.html", "a.json", "a.yaml"]
    numbers = json.loads((folder / "a.json").read_text())
    assert numbers["winner"]["usd_per_hour"] == 5.0
    run = command_line("run", "plans/a.yaml", "--json", "--no-report")
    assert run.returncode == 0
    assert json.loads(run.stdout)["base"]["figures"]["usd_per_hour"] == 5.0
    command = "kvsim plan " + str(scenario)
    assert command in (folder / "a.html").read_text()


def test_no_fleet_is_exit_code_1(command_line, scenario):
    scenario.write_text(scenario_text(workload=WORKLOAD, slo="{e2e_p90_s: 0.00001}"))
    done = command_line("plan", scenario, *ONE, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["winner"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--price", "h100_sxm"), "expected GPU=USD"),
        (("--price", "h100_sxm=-1"), "expected GPU=USD"),
        (("--tp", "one"), "expected numbers of GPUs"),
        (("--vary", "engine.max_num_seqs"), "expected PATH=VALUES"),
        (("--gpus", "h100"), "is not in the catalog"),
        (("--kv-cache-dtype", "fp7"), "--kv-cache-dtype: must be auto or fp8, not 'fp7'"),
        (("--out", "fleet.yaml"), "name the page .html"),
        (("--out", "."), ".: is no file that could be replaced"),
    ],
)
def test_mistakes_are_exit_code_2(command_line, scenario, arguments, message):
    done = command_line("plan", scenario, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_other_files_are_not_replaced(command_line, scenario):
    (scenario.parent / "a.json").write_text("mine")
    done = command_line("plan", scenario, *ONE, "--out", "a.html")
    assert (done.returncode, done.stderr) == (2, "a.json: exists; --force overwrites it\n")
    assert (scenario.parent / "a.json").read_text() == "mine"
