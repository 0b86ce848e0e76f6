"""`kvsim sensitivity`: what it prints, its page, exit codes, mistakes."""

import json

import pytest

from tests.studies.plan.deployments import scenario_text


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(scenario_text())
    return path


def test_tornado_is_told_and_drawn(command_line, scenario):
    done = command_line(
        *("sensitivity", scenario, "--vary", "load=0.5:3", "--vary", "engine.max_num_seqs=4:32"),
        *("--metric", "e2e_p99_s", "--replications", 3, "--jobs", 1, "--out", "pages/s.html"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "max_num_seqs" in done.stdout
    page = (scenario.parent / "pages" / "s.html").read_text()
    assert "--vary load=0.5:3" in page


def test_indices_for_machines(command_line, scenario):
    done = command_line(
        *("sensitivity", scenario, "--vary", "load=0.5:2", "--vary", "engine.max_num_seqs=4:32"),
        *("--method", "morris", "--samples", 2, "--jobs", 1, "--json"),
    )
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["metric"] == "ttft_p90_s"
    assert document["evaluations"] == 6
    assert {factor["factor"] for factor in document["factors"]} == {"load", "engine.max_num_seqs"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--vary", "load"), "expected PATH=LOW:HIGH"),
        (("--vary", "load=2:1"), "holds nothing"),
        (("--vary", "load=1:2", "--vary", "load=1:3"), "load is there already"),
        (("--metric", "ttft"), "there is no metric"),
        (("--vary", "load=1:2", "--method", "sobol"), "at least two factors"),
        (("--out", "fleet.yaml"), "is read"),
    ],
)
def test_mistakes_are_exit_code_2(command_line, scenario, arguments, message):
    done = command_line("sensitivity", scenario, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
