from pathlib import Path

import pytest

from kvsim.scenario.load import load_scenario

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SERVE = f"vllm serve {LLAMA} --max-model-len 8192 --max-num-seqs 64 --port 8000"


@pytest.fixture
def kvsim(command_line):
    return command_line


def test_a_scenario_that_init_wrote_runs(kvsim, tmp_path):
    done = kvsim("init", "--from", SERVE, "--gpu", "h100_sxm")
    assert done.returncode == 0
    assert done.stdout == "scenario.yaml written from vllm serve; next: kvsim run scenario.yaml\n"
    *assumed, irrelevant = done.stderr.splitlines()
    assert assumed
    assert all(line.startswith("assumed: ") for line in assumed)
    assert irrelevant == "without effect on capacity: --port"
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("num_requests: 1000", "num_requests: 50"))
    run = kvsim("run", "scenario.yaml", "--no-report")
    assert run.returncode in {0, 1}  # whether the assumed targets are met is not the question
    assert "50 requests" in run.stdout
    assert run.stderr == ""


def test_the_same_command_gives_the_same_file(kvsim, tmp_path):
    for name in ("a.yaml", "b.yaml"):
        assert kvsim("init", "--from", SERVE, "--out", name).returncode == 0
    assert (tmp_path / "a.yaml").read_bytes() == (tmp_path / "b.yaml").read_bytes()


def test_a_file_and_stdin_are_read_like_a_command(kvsim, tmp_path):
    (tmp_path / "my start.sh").write_text(f"\ufeff{SERVE} \\\r\n --enforce-eager\r\n")
    file = kvsim("init", "--from", "my start.sh", "--out", "a.yaml")
    assert file.returncode == 0
    stdin = kvsim("init", "--from", "-", "--out", "b.yaml", stdin=f"{SERVE} --enforce-eager")
    assert stdin.returncode == 0
    assert (tmp_path / "a.yaml").read_bytes() == (tmp_path / "b.yaml").read_bytes()
    assert load_scenario(tmp_path / "a.yaml").base.engine.enforce_eager


def test_paths_start_at_the_scenario(kvsim, tmp_path):
    (tmp_path / "plans").mkdir()
    (tmp_path / "log.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4,5\n"
    )
    done = kvsim("init", "--from", SERVE, "--trace", "log.csv", "--out", "plans/s.yaml")
    assert done.returncode == 0
    base = load_scenario(tmp_path / "plans" / "s.yaml").base
    assert base.workload.arrivals.file == str(Path("..") / "log.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "no.yaml"], "no.yaml: No such file or directory"),
        (["--from", "."], ".: Is a directory"),
        (["--from", "bad.txt"], "bad.txt: is not UTF-8 text: invalid start byte"),
        (["--from", "broken.yaml"], "broken.yaml:2: is not valid YAML: "),
        (["--from", "python app.py"], "no vLLM server in it: expected `vllm serve MODEL ...`"),
        (["--from", "empty.txt"], "empty.txt: no vLLM server in it"),
        (["--from", "vllm serve m 'x"], "the command has a quote (') that is not closed"),
        (["--from", f"{SERVE} --enable-lora"], "--enable-lora: LoRA adapters are not modeled"),
        (["--from", SERVE, "--out", "taken.yaml"], "taken.yaml: exists; --force overwrites it"),
        (
            ["--from", SERVE, "--out", "no/s.yaml"],
            "no/s.yaml: can't be written: No such",
        ),
        (["--from", "x" * 9000 + " y"], "no vLLM server in it"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(kvsim, tmp_path, arguments, message):
    (tmp_path / "bad.txt").write_bytes(b"vllm serve \xff")
    (tmp_path / "broken.yaml").write_text("apiVersion: v1\nx: [")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "taken.yaml").write_text("mine")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = kvsim("init", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(message)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_all_problems_are_told_at_once(kvsim, tmp_path):
    done = kvsim("init", "--from", f"{SERVE} -dcp 2 --typo --swap-space 4 $MORE")
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        "-dcp",
        "--typo",
        "--swap-space",
        "$MORE is set somewhere else",
    ]


def test_force_overwrites(kvsim, tmp_path):
    (tmp_path / "scenario.yaml").write_text("mine")
    assert kvsim("init", "--from", SERVE, "--force").returncode == 0
    assert load_scenario(tmp_path / "scenario.yaml").base.model == LLAMA
