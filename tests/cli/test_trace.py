import json
import os
import re
from functools import partial
from pathlib import Path

import pytest

from kvsim.scenario.load import load_scenario

ROOT = Path(__file__).parents[2]
AZURE = ROOT / "scenarios" / "traces" / "AzureLLMInferenceTrace_code.csv"


@pytest.fixture
def kvsim(command_line):
    return partial(command_line, "trace")


def test_a_log_is_told_first_in_a_sentence(kvsim, tmp_path):
    done = kvsim(AZURE, "--fit", "like.yaml")
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split("\n\n")[0].split())
    assert told == (
        "8,819 requests over 57.3 min; 2.57/s on average, 12.1/s in the busiest minute, far "
        "burstier than Poisson at every scale up to 60 s; prompts of 1,469 tokens (median) and "
        "answers of 13; what prompts share is not recorded."
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    page = tmp_path / "reports" / "AzureLLMInferenceTrace_code.trace.html"
    assert done.stdout.splitlines()[-2:] == [
        f"Page: {page.relative_to(tmp_path)}",
        "Scenario: like.yaml",
    ]
    assert re.search(r"<h1><bdi>AzureLLMInferenceTrace_code.csv</bdi></h1>", page.read_text())
    assert load_scenario(tmp_path / "like.yaml").base.workload.lengths.kind == "trace"
    assert {path.name for path in tmp_path.rglob("*")} == {"reports", page.name, "like.yaml"}


def test_json_is_for_machines(kvsim, tmp_path):
    done = kvsim(AZURE, "--json", "--no-page")
    told = json.loads(done.stdout)
    assert told["requests"] == 8819
    assert told["arrivals"]["windows"][1]["seconds"] == 10.0
    assert told["prefix_reuse"] is None
    assert list(tmp_path.iterdir()) == []


def test_a_log_of_no_known_format_is_read_by_its_columns(kvsim, tmp_path):
    rows = [f"{second},{10 + second},5,{'ab'[second % 2]}" for second in range(40)]
    rows[7] = "x,y,z,a"
    (tmp_path / "mine.csv").write_text("\n".join(["when,in,out,model", *rows]))
    columns = ("arrival=when", "prompt_tokens=in", "output_tokens=out")
    options = [word for column in columns for word in ("--column", column)]
    done = kvsim("mine.csv", *options, "--json", "--no-page")
    assert done.returncode == 2
    assert "mine.csv:9" in done.stderr
    done = kvsim(
        *("mine.csv", *options, "--skip-bad-rows", 1, "--time-unit", "ms", "--where", "model=b"),
        *("--json", "--no-page"),
    )
    told = json.loads(done.stdout)
    assert told["requests"] == 19
    assert told["arrivals"]["duration_s"] == pytest.approx(0.038)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.csv"], "absent.csv: can't be read: No such file"),
        (["log.csv"], "log.csv:1: is in no format that kvsim recognizes"),
        ([AZURE, "--format", "azur"], "no trace format 'azur'; did you mean azure"),
        ([AZURE, "--where", "Model"], "--where Model: should be NAME=VALUE"),
        ([AZURE, "--time-unit", "weeks"], "time_unit"),
        ([AZURE, "--model", "nobody/knows"], "nobody/knows"),
        ([AZURE, "--fit", "log.csv"], "log.csv: exists; --force overwrites it"),
        ([AZURE, "--out", "log.csv"], "log.csv: exists; --force overwrites it"),
        ([AZURE, "--out", "."], ".: is no file that could be replaced"),
        ([AZURE, "--out", "x", "--fit", "./x"], "x: log, page and scenario must be different"),
        (["log.csv", "--out", "log.csv", "--force"], "log.csv: log, page and scenario must be"),
        ([AZURE, "--without-log"], "--without-log is about the imitation: give --fit too"),
    ],
)
def test_mistakes_are_told_in_one_message(kvsim, arguments, message, tmp_path):
    (tmp_path / "log.csv").write_text("a,b\n1,2\n")
    done = kvsim(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"log.csv"}
    assert (tmp_path / "log.csv").read_text() == "a,b\n1,2\n"


def test_the_page_is_written_anew(kvsim, tmp_path):
    first = kvsim(AZURE, "--out", "page.html")
    bytes_before = (tmp_path / "page.html").read_bytes()
    again = kvsim(AZURE, "--out", "page.html")
    assert (first.returncode, again.returncode) == (0, 0)
    assert (tmp_path / "page.html").read_bytes() == bytes_before


def test_what_is_no_file_is_never_replaced(kvsim, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for option in ("--out", "--fit"):
        done = kvsim(AZURE, option, "pipe", "--force")
        assert (done.returncode, done.stderr) == (2, "pipe: is no file that could be replaced\n")


def test_few_requests_are_not_imitated(kvsim, tmp_path):
    (tmp_path / "log.csv").write_text("input_tokens,output_tokens,arrival_s\n5,5,0\n6,6,1\n")
    done = kvsim("log.csv", "--fit", "like.yaml")
    assert done.returncode == 2
    assert done.stderr == "log.csv: has fewer than 10 requests to be imitated\n"


def test_a_scenario_in_a_new_folder_finds_the_log(kvsim, tmp_path):
    assert kvsim(AZURE, "--fit", "new/folder/like.yaml", "--no-page").returncode == 0
    file = load_scenario(tmp_path / "new" / "folder" / "like.yaml")
    assert file.base.workload.lengths.path.resolve() == AZURE


def test_what_can_not_be_written_is_told_by_the_name_that_was_given(kvsim, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    done = kvsim(AZURE, "--out", "file/page.html")
    assert (done.returncode, done.stdout) == (2, "")
    assert "file/page.html: can't be written: " in done.stderr

    def denied(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "write_text", denied)
    done = kvsim(AZURE, "--out", "page.html")
    assert done.returncode == 2
    assert "page.html: can't be written: Permission denied" in done.stderr
    assert ".page.html" not in done.stderr
