"""`kvsim conform`: exit codes, what it prints, and JSON for machines."""

import json

import pytest
from typer.testing import CliRunner

from kvsim.cli.main import app_with, main
from tests.conformance.recorded import FOLDER
from tests.conformance.test_recording import document

RUNNER = CliRunner()


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document()))
    return path


@pytest.fixture
def differing(tmp_path):
    changed = document()
    changed["runs"][0]["steps"][1][3] = 4
    changed["runs"].append({**document()["runs"][0], "name": "again"})
    path = tmp_path / "differing.json"
    path.write_text(json.dumps(changed))
    return path


def test_identical_schedules_end_with_zero(mine):
    result = RUNNER.invoke(app_with(), ["conform", str(mine), str(mine)])
    assert result.exit_code == 0
    assert "mine/small" in result.stdout
    assert result.stdout.endswith("2 of 2 runs are identical, 4 of 4 steps\n")


def test_a_difference_is_told_and_ends_with_one(differing):
    result = RUNNER.invoke(app_with(), ["conform", str(differing)])
    assert result.exit_code == 1
    assert "step 1 at 5.41 ms, free_blocks: expected 4, found 5" in result.stdout
    assert "1 of 2 runs are identical, 3 of 4 steps" in result.stdout


def test_json_is_for_machines(differing):
    result = RUNNER.invoke(app_with(), ["conform", "--json", str(differing)])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "runs": 2,
        "identical": 1,
        "steps": 4,
        "steps_identical": 3,
        "differences": [
            {
                "run": "differing/small",
                "step": 1,
                "time_ms": 5.41,
                "request": None,
                "field": "free_blocks",
                "expected": 4,
                "found": 5,
            }
        ],
    }


def test_what_is_not_modeled_is_not_identical(tmp_path):
    changed = document()
    changed["runs"][0]["config"]["num_speculative_tokens"] = 3
    path = tmp_path / "more.json"
    path.write_text(json.dumps(changed))
    result = RUNNER.invoke(app_with(), ["conform", "--json", str(path)])
    assert result.exit_code == 1
    (difference,) = json.loads(result.stdout)["differences"]
    assert difference == {
        "run": "more/small",
        "not_modeled": "settings num_speculative_tokens",
    }


def test_a_bad_file_is_told_in_one_message(monkeypatch, capsys, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text("{")
    monkeypatch.setattr("sys.argv", ["kvsim", "conform", "--json", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"{path}: is no recorded schedule: ")
    assert len(captured.err.splitlines()) == 1


def test_what_a_bad_file_comes_after_is_not_lost(monkeypatch, capsys, mine, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("[1e999]")
    monkeypatch.setattr("sys.argv", ["kvsim", "conform", "--json", str(mine), str(bad), str(mine)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert (told["runs"], told["identical"]) == (2, 2)
    (problem,) = told["problems"]
    assert (
        problem
        == captured.err.rstrip()
        == f"{bad}: is no recorded schedule: 1e999 is too large a number"
    )


def test_unknown_keys_are_told_beside_the_verdicts(tmp_path):
    path = tmp_path / "typo.json"
    path.write_text(json.dumps(document() | {"step_cots": 1}))
    result = RUNNER.invoke(app_with(), ["conform", str(path)])
    assert result.exit_code == 0
    assert f"Note: {path}: step_cots: unknown, so not looked at; did you mean" in result.stdout
    (note,) = json.loads(RUNNER.invoke(app_with(), ["conform", "--json", str(path)]).stdout)[
        "unread"
    ]
    assert "step_cots" in note


def test_nothing_of_a_file_reaches_the_terminal_but_what_prints(tmp_path):
    changed = document()
    changed["runs"][0]["name"] = "\x1b[31mred\nline\ud800"
    changed["runs"][0]["summary"]["note"] = "\x1b]0;title\x07"
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(changed))
    result = RUNNER.invoke(app_with(), ["conform", str(path)])
    assert result.exit_code == 1
    assert "\\x1b[31mred\\nline\\ud800" in result.stdout
    assert all(line.isprintable() for line in result.stdout.splitlines())


def test_recorded_files_are_read_as_they_are_shipped():
    result = RUNNER.invoke(
        app_with(), ["conform", "--json", str(FOLDER / "03_long_prompts_chunked.json.xz")]
    )
    told = json.loads(result.stdout)
    assert (told["runs"], told["steps"]) == (4, 5969)
