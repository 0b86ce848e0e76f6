"""The Python API: the command line's results as objects, and an import that costs nothing."""

import contextlib
import gc
import io
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kvsim
from kvsim.cli.main import app_with
from kvsim.errors import InputError
from kvsim.metrics.catalog import METRICS
from kvsim.scenario.change import changed
from kvsim.tables import TABLES
from tests.disk import contents

SCENARIO = """\
# Does a small server answer in time?
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine: {max_model_len: 4096, max_num_seqs: 8}
workload:
  arrivals: {kind: poisson, rate_per_s: 8.0}
  lengths: {kind: fixed, prompt_tokens: 550, output_tokens: 50}
  num_requests: 40
slo: {ttft_p99_s: 5.0}
variants:
  contiguous: {kv_cache: {kind: contiguous}}
"""
PLAIN = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "h100_sxm",
    "engine": {"max_model_len": 4096, "max_num_seqs": 8},
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 8.0},
        "lengths": {"kind": "fixed", "prompt_tokens": 550, "output_tokens": 50},
        "num_requests": 40,
    },
    "slo": {"ttft_p99_s": 5.0},
    "variants": {"contiguous": {"kv_cache": {"kind": "contiguous"}}},
}


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO, encoding="utf-8")
    return Path("small.yaml")


def kvsim_run(*arguments: str) -> None:
    command = app_with(["run"])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        command(["run", *arguments])


@pytest.mark.parametrize("replications", [1, 3])
def test_what_is_saved_is_what_the_command_writes(path, tmp_path, replications):
    options = [] if replications == 1 else ["--replications", "3", "--jobs", "1"]
    kvsim_run("small.yaml", "--out", "command", *options)
    result = kvsim.run("small.yaml", replications=None if replications == 1 else 3)
    assert result.save(tmp_path / "api") == tmp_path / "api"
    assert contents(tmp_path / "api") == contents(tmp_path / "command")
    result.save("api", report=False)  # takes the place of the older one
    of_report = {"report.html", "memory_looks.parquet", "memory_map.parquet"}
    assert contents(tmp_path / "api").keys() == contents(tmp_path / "command").keys() - of_report
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="taken"):
        result.save("taken")


def test_a_dictionary_is_as_good_as_a_file(path):
    from_file, from_data = kvsim.run(path), kvsim.run(PLAIN)
    assert from_file.summary == from_data.summary
    assert kvsim.load(PLAIN).base.name == "scenario"
    assert kvsim.run(kvsim.load(path)).summary == from_file.summary


def test_mistakes_in_a_dictionary_have_their_path():
    wrong = {**PLAIN, "engine": {"max_num_seqs": 0}, "gpu": "h100"}
    with pytest.raises(InputError) as error:
        kvsim.load(wrong)
    told = [str(problem).split(": ")[:2] for problem in error.value.problems]
    assert sorted(told) == [["scenario", "engine.max_num_seqs"], ["scenario", "gpu"]]
    with pytest.raises(InputError, match="must be text"):
        kvsim.load({1: 2})
    with pytest.raises(InputError, match="a set is no value"):
        kvsim.load({**PLAIN, "name": {"x"}})


def test_arguments_of_the_wrong_kind_are_told(path):
    endless = {}
    endless["set"] = endless
    with pytest.raises(InputError, match=r"changes: must be a dictionary, not \['seed'\]"):
        kvsim.run(path, changes=["seed"])
    with pytest.raises(InputError, match="is nested deeper than 50 levels"):
        kvsim.sweep(endless, scenario=path)
    for replications in (0, -1, 1.5, "3", 10**9):
        with pytest.raises(InputError, match="replications: should be a whole number from 1 to"):
            kvsim.run(path, replications=replications)


def test_changes_reach_all_variants_and_all_replications(path):
    changes = {"engine.max_num_seqs": np.int64(2), "workload.num_requests": 25}
    result = kvsim.run(path, changes=changes, replications=3)
    assert result.replications["running_seqs_max"].max() == 2
    assert set(result.replications["requests_total"]) == {25}
    assert list(result.summary) == ["base", "contiguous"]
    assert list(kvsim.run(path, variants=[]).summary) == ["base"]
    with pytest.raises(InputError, match="max_num_seq"):
        kvsim.run(path, changes={"engine.max_num_seq": 2})
    with pytest.raises(InputError, match="no variant 'contigous'"):
        kvsim.run(path, variants=["contigous"])


def test_changes_can_follow_each_other(path):
    file = changed(kvsim.load(path), {"engine.max_num_seqs": 2}, "contiguous")
    both = changed(file, {"workload.num_requests": 25}).base
    assert (both.engine.max_num_seqs, both.workload.num_requests) == (2, 25)
    assert both.kv_cache.kind == "contiguous"


def test_tables_are_those_of_the_disk_with_units(path):
    result = kvsim.run(path)
    for name, columns in TABLES.items():
        frame = getattr(result, name)
        assert list(frame.columns) == ["variant", *(column.name for column in columns)]
        assert frame.attrs["units"] == {column.name: column.unit for column in columns}
    requests = result.requests
    assert requests.groupby("variant", observed=True).size().to_dict() == {
        "base": 40,
        "contiguous": 40,
    }
    base = requests[requests["variant"] == "base"]
    ttft_s = (base["first_token_ns"] - base["arrival_ns"]) / 1e9
    figures = result.figures
    assert figures.loc[("ttft_mean_s", "base"), "value"] == pytest.approx(ttft_s.mean())
    assert figures.loc[("ttft_mean_s", "base"), "unit"] == "s"
    low, high = figures.loc[("ttft_mean_s", "base"), ["low", "high"]]
    assert low < ttft_s.mean() < high
    assert list(figures.index.get_level_values("metric").unique()) == list(METRICS)
    assert pd.isna(figures.loc[("requests_per_s", "base"), "low"])
    assert result.verdict["met"] is True


class Tags(HTMLParser):
    """Counts the elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)


def test_a_notebook_shows_the_answer_and_nothing_that_runs():
    name = "<script>alert(1)</script>"
    variants = {"<b>bold<b>": {"kv_cache": {"kind": "contiguous"}}}
    result = kvsim.run({**PLAIN, "variants": variants})
    text = result._repr_html_()
    assert result.verdict["sentence"] in text
    assert "ttft_p99_s" in text
    assert set(Tags(text).found) <= {
        *("div", "p", "strong", "table", "thead", "tbody"),
        "tr",
        "th",
        "td",
    }
    assert "&lt;b&gt;bold" in text
    assert "Meets its SLO" in repr(result)
    with pytest.raises(InputError):
        kvsim.load({**PLAIN, "name": name})


def test_a_result_takes_its_folder_with_it(path):
    result = kvsim.run(path)
    folder = result._folder
    assert folder.is_dir()
    del result
    gc.collect()
    assert not folder.exists()


def test_a_run_that_fails_leaves_no_folder(path, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = SCENARIO.replace("prompt_tokens: 550", "prompt_tokens: 5000")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="never be served"):
        kvsim.run(path)

    def fail(*_):
        raise OSError(28, "No space left on device")

    path.write_text(SCENARIO, encoding="utf-8")
    monkeypatch.setattr("kvsim.rundir.write._write_json", fail)
    with pytest.raises(OSError, match="No space"):
        kvsim.run(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["small.yaml"]


def test_progress_is_told(path):
    told = []
    kvsim.run(path, replications=2, progress=lambda *now: told.append(now))
    assert told[-2:] == [("replications", 1, 2), ("replications", 2, 2)]
    assert {what for what, _, _ in told} <= {"base", "contiguous", "replications"}


def test_importing_kvsim_imports_nothing_that_takes_time():
    code = (
        "import sys, kvsim; print([m for m in ('numpy', 'pandas', 'pyarrow', 'simpy', 'scipy', "
        "'pydantic', 'plotly') if m in sys.modules], 'run' in dir(kvsim), hasattr(kvsim, 'runn'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("]") == ["[", " True False\n"]


def test_a_script_without_a_main_guard_runs(path, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import kvsim\nprint(kvsim.run('small.yaml', replications=2).verdict['met'])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
