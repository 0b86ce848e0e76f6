import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML
from typer.main import get_command

from kvsim import __version__
from kvsim.cli import main as command_line
from kvsim.cli.crew import crew
from kvsim.errors import InputError
from kvsim.study.here import Here

ROOT = Path(__file__).parents[2]
KVSIM = [sys.executable, "-c", "from kvsim.cli.main import main; main()"]


def kvsim(*arguments, cwd=ROOT, stdout=subprocess.PIPE):
    command = [*KVSIM, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=120
    )


def test_help_names_the_commands_and_version_the_version():
    shown = kvsim("--help")
    assert shown.returncode == 0
    for command in ("run", "memory", "schema"):
        assert f"\n  {command} " in shown.stdout
    assert kvsim("--version").stdout == f"kvsim {__version__}\n"


def test_options_that_messages_name_exist():
    """In rooms that tell of no other program's options."""
    whole = get_command(command_line.app_with())
    groups = [whole, *whole.commands.values()]
    known = {
        name for one in groups for part in one.params for name in part.opts + part.secondary_opts
    }
    rooms = ("api", "cli", "paper", "profiling", "report", "studies", "study", "traffic")
    files = [path for room in rooms for path in (ROOT / "kvsim" / room).rglob("*.py")]
    named = {
        option
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", node.value)
    }
    assert {"--yes", "--force", "--kv-cache-dtype"} <= named
    assert named <= known


def test_help_imports_nothing_heavy():
    """What makes --help quick; the time itself is measured in benchmarks, not here."""
    code = (
        "import sys; sys.argv = ['kvsim', '--help']\n"
        "from kvsim.cli.main import main\n"
        "try: main()\n"
        "finally: print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(shown.stderr.split())
    assert "typer" in loaded
    heavy = {
        "numpy",
        "pandas",
        "plotly",
        "pyarrow",
        "simpy",
        "pydantic",
        "ruamel",
        "rich",
        "jinja2",
        "torch",
    }
    assert not loaded & heavy


def test_a_mistake_in_a_scenario_is_told_before_the_heavy_imports(tmp_path):
    (tmp_path / "s.yaml").write_text("model: x\ngpu: y\n")
    code = (
        "import sys; sys.argv = ['kvsim', 'run', 's.yaml']\n"
        "from kvsim.cli.main import main\n"
        "try: main()\n"
        "finally: print(*{name.split('.')[0] for name in sys.modules})"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert told.returncode == 2
    assert "workload: is required" in told.stderr
    loaded = set(told.stdout.split())
    assert "pydantic" in loaded
    assert not loaded & {"pandas", "plotly", "pyarrow", "simpy", "jinja2", "rich"}


def test_bad_usage_is_exit_code_2():
    for arguments in (["bogus"], ["run"], ["memory", "--gpu", "h100_sxm"]):
        found = kvsim(*arguments)
        assert found.returncode == 2
        assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (None, ["s.yaml: can't be read: No such file or directory"]),
        ("a: [1", ["s.yaml:1: is not valid YAML"]),
        (
            "model: x\ngpu: y\nreplcas: 3\n",
            [
                "s.yaml: workload: is required",
                "s.yaml:1: model: model 'x' is neither",
                "s.yaml:2: gpu: GPU 'y'",
                "s.yaml:3: replcas: unknown key; did you mean replicas?",
            ],
        ),
    ],
)
def test_bad_input_is_told_on_stderr_and_leaves_nothing(tmp_path, text, messages):
    if text is not None:
        (tmp_path / "s.yaml").write_text(text)
    found = kvsim("run", "s.yaml", cwd=tmp_path)
    assert found.returncode == 2
    assert found.stdout == ""
    lines = found.stderr.splitlines()
    assert len(lines) == len(messages)
    for line, message in zip(lines, messages, strict=True):
        assert line.startswith(message)
    assert [path.name for path in tmp_path.iterdir()] == ([] if text is None else ["s.yaml"])


def test_a_place_that_can_not_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "run"
    found = kvsim("run", ROOT / "scenarios" / "memory_pressure.yaml", "--out", out)
    assert found.returncode == 2
    assert str(tmp_path / "file") in found.stderr.splitlines()[-1]
    assert "Traceback" not in found.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line():
    with Path("/dev/full").open("w") as full:
        found = kvsim("schema", stdout=full)
    assert found.returncode == 2
    assert found.stderr == "No space left on device\n"


@pytest.mark.skipif(os.name != "posix", reason="pipes break otherwise elsewhere")
def test_a_reader_that_leaves_is_no_error():
    process = subprocess.Popen(
        [*KVSIM, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    process.stdout.close()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGPIPE
    assert stderr == b""


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_by_its_code_and_leaves_nothing(tmp_path, sent):
    process = subprocess.Popen(
        [*KVSIM, "run", str(ROOT / "scenarios" / "chat.yaml"), "--out", "here/run"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("here/*/*")) and time.monotonic() < deadline:
        time.sleep(0.02)  # until it writes tables
    process.send_signal(sent)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + sent
    assert stdout == ""
    assert "Traceback" not in stderr
    assert stderr.rstrip().endswith("interrupted")
    assert list(tmp_path.glob("here/*")) == []


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 2, "not enough memory"),
        (RecursionError(), 2, "nested too deeply"),
        (ZeroDivisionError("a defect"), 3, "ZeroDivisionError: a defect"),
    ],
)
def test_a_defect_is_told_from_a_missed_slo(monkeypatch, capsys, error, code, words):
    def fail(_):
        raise error

    monkeypatch.setattr(command_line, "app_with", fail)
    monkeypatch.setattr(command_line.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    assert stopped.value.code == code
    assert words in capsys.readouterr().err


def test_the_schema_accepts_the_scenarios_that_ship_and_refuses_mistakes():
    schema = json.loads(kvsim("schema").stdout)
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    files = sorted((ROOT / "scenarios").glob("*.yaml"))
    assert files
    for path in files:
        validator.validate(YAML(typ="safe").load(path))
    good = YAML(typ="safe").load(files[0])
    for mistake in (
        {"replcas": 2},
        {"replicas": "2"},
        {"kv_cache": "contigous"},
        {"slo": {"a": "b"}},
    ):
        assert list(validator.iter_errors(good | mistake)), mistake


def test_every_field_of_the_schema_is_described():
    schema = json.loads(kvsim("schema").stdout)
    sections = {"Scenario": schema, **schema["$defs"]}
    for section in ("Scenario", "Engine", "Workload", "Poisson", "TraceArrivals", "Lognormal"):
        for name, field in sections[section]["properties"].items():
            described = field.get("description") or "$ref" in field
            assert name == "kind" or described, f"{section}.{name}"


def test_who_does_the_work_is_let_go_after_an_error(monkeypatch):
    let_go = []
    monkeypatch.setattr(Here, "stop", lambda crew: let_go.append(crew))
    with pytest.raises(InputError, match="no good"), crew(1) as workers:
        raise InputError("no good")
    assert let_go == [workers]
