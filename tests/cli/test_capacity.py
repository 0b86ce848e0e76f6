"""`kvsim capacity`: what it prints, exit codes, JSON, the page, and what it refuses."""

import json

import pytest

# A server of one sequence that takes a second for each prompt; requests come at equal times.
SCENARIO = """
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine:
  max_num_seqs: 1
  max_model_len: 16384
  max_num_batched_tokens: 16384
  async_scheduling: false
cost: {kind: affine, per_token_ns: 100000}
workload:
  arrivals: {kind: constant, rate_per_s: 0.7}
  lengths: {kind: fixed, prompt_tokens: 10000, output_tokens: 1}
  num_requests: 100
slo: {ttft_p95_s: 1.5}
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "even.yaml"
    path.write_text(SCENARIO)
    return path


def test_a_deterministic_queue_is_feasible_until_it_grows(command_line, scenario):
    result = command_line("capacity", scenario, "--jobs", 1, "--json")
    assert result.returncode == 0
    answer = json.loads(result.stdout)
    assert 0.95 <= answer["low"] <= 1.0 <= answer["high"] <= 1.05
    assert answer["confidence"] is None
    assert answer["stopped"] == "resolution"
    assert {one["status"] for one in answer["tried"] if one["value"] > 1.05} == {"unstable"}


def test_text_says_that_nothing_is_random_and_fits_the_terminal(command_line, scenario, tmp_path):
    page = tmp_path / "deep" / "capacity.html"
    result = command_line(
        *("capacity", scenario, "--jobs", 1, "--precision", 0.2, "--from", 0.1, "--out", page)
    )
    assert result.returncode == 0
    assert result.stdout.startswith("Up to ")
    assert "Nothing in this traffic is random" in result.stdout
    assert "the queue is unstable" in result.stdout.replace("\n", " ")
    assert max(map(len, result.stdout.partition("Page:")[0].splitlines())) <= 80
    assert "chart-targets" in page.read_text()
    assert f"kvsim capacity {scenario} --from 0.1 --precision 0.2<" in page.read_text()


def test_a_setting_is_searched_within_its_range(command_line, scenario):
    arguments = ("--vary", "workload.lengths.prompt_tokens", "--from", 1000, "--to", 16000)
    result = command_line("capacity", scenario, *arguments, "--jobs", 1, "--json")
    answer = json.loads(result.stdout)
    # A prompt takes 0.1 ms a token and requests come each 1.43 s: longer ones queue up.
    assert 0.95 * 14_285 <= answer["feasible"] <= 14_500


def test_no_feasible_value_is_exit_code_1(command_line, scenario):
    scenario.write_text(SCENARIO.replace("ttft_p95_s: 1.5", "ttft_p95_s: 0.5"))
    result = command_line("capacity", scenario, "--jobs", 1)
    assert result.returncode == 1
    assert "No value that was tried meets the SLO" in result.stdout


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (("slo: {ttft_p95_s: 1.5}", ""), (), "slo: say what a feasible load has to meet"),
        (("ttft_p95_s", "ttft_max_s"), (), "grows with the length of a run"),
        (("", ""), ("--vary", "engine.max_num_seqs"), "name the range to search"),
        (("", ""), ("--vary", "model", "--from", 1, "--to", 2), "is no number"),
        (("", ""), ("--vary", "engine.max_seqs", "--from", 1, "--to", 2), "max_num_seqs"),
        (("", ""), ("--from", 5, "--to", 2), "holds nothing"),
        (("kind: constant, rate_per_s: 0.7", "kind: all_at_once"), (), "have no rate to vary"),
        (("", ""), ("--variant", "larger"), "there is no variant"),
    ],
)
def test_mistakes_are_told(command_line, scenario, change, arguments, message):
    scenario.write_text(SCENARIO.replace(*change) if change[0] else SCENARIO)
    result = command_line("capacity", scenario, *arguments, "--jobs", 1)
    assert result.returncode == 2
    assert message in result.stderr
    assert not result.stdout


def test_a_file_of_someone_else_is_not_overwritten(command_line, scenario, tmp_path):
    mine = tmp_path / "mine.html"
    mine.write_text("precious")
    result = command_line("capacity", scenario, "--jobs", 1, "--out", mine)
    assert (result.returncode, result.stderr) == (2, f"{mine}: exists; --force overwrites it\n")
    assert mine.read_text() == "precious"
    assert command_line("capacity", scenario, "--out", scenario, "--force").returncode == 2
    assert scenario.read_text() == SCENARIO
