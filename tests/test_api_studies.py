"""Sweeps, searches and plans from Python: the commands' answers as objects."""

import gc
import inspect
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

import kvsim
from kvsim.api import studies
from kvsim.errors import InputError
from kvsim.studies.capacity.answer import CapacityAnswer, Tried
from kvsim.studies.capacity.search import Options

DOCS = Path(__file__).parents[1] / "docs"
SCENARIO = {
    "model": "facebook/opt-13b",
    "gpu": "a100_sxm",
    "engine": {"max_model_len": 512, "num_gpu_blocks_override": 200},
    "cost": {"kind": "affine", "fixed_ns": 10_000_000},
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 2},
        "num_requests": 60,
        "lengths": {"kind": "fixed", "prompt_tokens": 20, "output_tokens": 30},
    },
    "slo": {"ttft_p99_s": 0.5},
}
ANSWER = CapacityAnswer(
    path="workload.arrivals.rate_per_s",
    unit="requests/s",
    value=3.5,
    low=3.4,
    high=3.6,
    feasible=3.4,
    confidence=0.95,
    limited_by="ttft_p99_s",
    stopped="precise",
    sentence="At 3.4 requests/s <the> SLO is met.",
    notes=["A note."],
    rising=True,
    slo={"ttft_p99_s": 0.5},
    allowed={"ttft_p99_s": 0.01},
    tried=[Tried(3.4, 8, "met", "ttft_p99_s", 0.9, 0.8, 0.99)],
    trials=[],
)
SWEEP = {
    "axes": {"workload.arrivals.rate_per_s": [2, 16], "engine.max_num_seqs": [1, 8]},
    "replications": 2,
}


def tags(text: str) -> set[str]:
    found = set()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, _: found.add(tag)
    parser.feed(text)
    return found


def test_a_sweep_of_a_dictionary_has_a_row_for_each_replication(tmp_path):
    result = kvsim.sweep(SWEEP, scenario=SCENARIO, out=tmp_path / "sweeps")
    table = result.table
    assert len(table) == 2 * 2 * 2
    assert set(table["engine.max_num_seqs"]) == {1, 8}
    alone = kvsim.run(
        SCENARIO, changes={"workload.arrivals.rate_per_s": 16, "engine.max_num_seqs": 8}
    )
    mine = table[
        (table["workload.arrivals.rate_per_s"] == 16) & (table["engine.max_num_seqs"] == 8)
    ]
    first = mine[mine["replication"] == 0].iloc[0]
    assert first["ttft_mean_s"] == alone.summary["base"]["figures"]["ttft_mean_s"]
    assert result.page_path.parent == tmp_path / "sweeps"
    assert result.answer.sentence in result._repr_html_()
    assert "script" not in tags(result._repr_html_())
    told = []
    kvsim.sweep(
        SWEEP, scenario=SCENARIO, out=tmp_path / "sweeps", progress=lambda *n: told.append(n)
    )
    assert told == [(8, 8)]  # all of it was there


def test_a_sweep_file_is_run_where_it_says_and_cleaned_up(tmp_path):
    (tmp_path / "s.yaml").write_text(str(SCENARIO), encoding="utf-8")
    (tmp_path / "sweep.yaml").write_text(str({**SWEEP, "scenario": "s.yaml"}), encoding="utf-8")
    result = kvsim.sweep(tmp_path / "sweep.yaml")
    page = result.page_path
    assert page.exists()
    del result
    gc.collect()
    assert not page.parent.exists()


def test_mistakes_in_a_sweep_have_their_path(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InputError, match=r"^sweep: axes.*max_num_seq"):
        kvsim.sweep({"axes": {"engine.max_num_seq": [1, 2]}}, scenario=SCENARIO)
    with pytest.raises(InputError, match="there is no file"):
        kvsim.sweep({**SWEEP, "scenario": "none.yaml"})
    assert not list(tmp_path.iterdir())


def test_capacity_passes_on_what_is_asked_and_shows_the_answer(monkeypatch):
    asked = []

    def find(file, options, crew, tell):
        asked.append((file.base.model, options, crew.size))
        tell(1, 2, 3.4)
        return ANSWER

    monkeypatch.setattr(studies, "find_capacity", find)
    told = []
    result = kvsim.capacity(
        SCENARIO,
        changes={"engine.max_num_seqs": 4},
        goodput=0.99,
        between=(1.0, 9.0),
        progress=lambda *now: told.append(now),
    )
    options = Options(changes={"engine.max_num_seqs": 4}, goodput=0.99, start=1.0, end=9.0)
    assert asked == [("facebook/opt-13b", options, 1)]
    assert told == [(1, 2)]
    assert result.answer is ANSWER
    assert result.tried.loc[0, "status"] == "met"
    assert "&lt;the&gt; SLO" in result._repr_html_()
    assert "3.4 requests/s" in repr(result)


def test_the_defaults_of_capacity_are_those_of_the_search():
    parameters = inspect.signature(kvsim.capacity).parameters
    for name in ("variant", "vary", "smallest", "goodput", "precision", "max_replications"):
        assert parameters[name].default == getattr(Options(), name), name
    assert parameters["confidence"].default == Options().confidence


def test_a_plan_has_a_table_of_candidates():
    options = kvsim.PlanOptions(
        gpus=["h100_sxm", "a100_sxm"], weights=["auto"], kv_cache_dtypes=["auto"],
        tensor_parallel_sizes=[1], replications=2,
    )  # fmt: skip
    result = kvsim.plan(SCENARIO, options=options, changes={"workload.num_requests": 80})
    assert result.plan.winner is not None
    assert set(result.candidates["GPU"]) <= {"h100_sxm", "a100_sxm"}
    assert result.plan.file.base.workload.num_requests == 80
    assert result.plan.winner.least.candidate.gpu in json.dumps(result.summary)
    assert "script" not in tags(result._repr_html_())


def test_the_python_of_the_documents_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(studies, "find_capacity", lambda *_: ANSWER)  # takes minutes
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S)
    monkeypatch.chdir(tmp_path)
    shutil.copy(DOCS / "assistant.yaml", tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "python.md", "exec"), names)  # our own document
        assert capsys.readouterr().out
    assert len(blocks) == 7
    assert (tmp_path / "reports" / "assistant" / "report.html").exists()
