"""Replications: the same whoever simulates them, and figures that follow from each of them."""

import json
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from kvsim.errors import BrokenLawError, InputError
from kvsim.metrics.catalog import METRICS
from kvsim.metrics.summary import COMPARED, certainty
from kvsim.rundir.read import Run
from kvsim.rundir.write import run_into
from kvsim.scenario.load import load_scenario, with_replications
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all
from kvsim.study.here import Here
from kvsim.study.local import crew_of
from kvsim.study.point import Point, point_key, run_point
from kvsim.study.replications import further_replications
from kvsim.study.tasks import Failure
from tests.disk import contents

SCENARIO = """\
# Does a small server answer in time?
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine: {max_model_len: 4096, max_num_seqs: 4, num_gpu_blocks_override: 600}
workload:
  arrivals: {kind: poisson, rate_per_s: 8.0}
  lengths: {kind: uniform, prompt_min_tokens: 50, prompt_max_tokens: 900,
            output_min_tokens: 5, output_max_tokens: 90}
  num_requests: 60
slo: {ttft_p99_s: 1.0, ttft_p98_s: 1.0}
replications: 4
variants:
  slower: {engine: {max_num_batched_tokens: 256, max_num_seqs: 3}}
"""
FIXED = "{kind: fixed, prompt_tokens: 550, output_tokens: 50}"


def write(folder: Path, text: str) -> Path:
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def simulate(path: Path, folder: Path, crew=None) -> Run:
    folder.mkdir()
    file = load_scenario(path)
    variants, count = resolve_all(file), file.base.replications
    requests = draw_requests(file, variants)

    def further():
        return further_replications(file, list(variants), count, crew or Here())

    return run_into(folder, file, variants, requests, further=further).run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, Run]:
    folder = tmp_path_factory.mktemp("replications")
    return folder, simulate(write(folder, SCENARIO), folder / "run")


def test_it_does_not_matter_who_simulates(run, tmp_path):
    simulate(run[0] / "small.yaml", tmp_path / "two", crew_of(2))
    assert contents(tmp_path / "two") == contents(run[0] / "run")


def test_each_row_is_the_run_of_a_point(run):
    folder, found = run
    rows = pd.read_parquet(folder / "run" / "replications.parquet")
    assert list(zip(rows["variant"], rows["replication"], strict=True)) == [
        (name, number) for name in ("base", "slower") for number in range(4)
    ]
    file = load_scenario(folder / "small.yaml")
    for place, number in ((0, 0), (7, 3)):
        point = Point(variant=rows["variant"][place], replication=number)
        alone = run_point(file, point).summary()["figures"]
        for name, value in alone.items():
            shown = rows[name][place]
            assert pd.isna(shown) if value is None else shown == value, name
    assert found.summaries["base"]["figures"]["ttft_mean_s"] == rows["ttft_mean_s"][0]


def test_intervals_are_students_over_the_rows(run):
    folder, found = run
    rows = pd.read_parquet(folder / "run" / "replications.parquet")
    for name, summary in found.summaries.items():
        mine = rows[rows["variant"] == name]
        for figure, interval in summary["uncertainty"].items():
            values = mine[figure].to_numpy()
            assert interval["mean"] == pytest.approx(values.mean(), rel=1e-12)
            assert interval["count"] == 4
            if values.std() > 0:
                low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
                assert interval["low"] == pytest.approx(max(low, 0), rel=1e-9), figure
                assert interval["high"] == pytest.approx(high, rel=1e-9), figure
        assert set(summary["uncertainty"]) == {
            figure for figure in METRICS if mine[figure].notna().all()
        }


def test_differences_are_paired(run):
    folder, found = run
    rows = pd.read_parquet(folder / "run" / "replications.parquet")
    base, slower = (rows[rows["variant"] == name] for name in ("base", "slower"))
    differences = found.summaries["slower"]["differences"]
    assert found.summaries["base"]["differences"] == {}
    assert set(differences) <= set(COMPARED)
    for figure in ("ttft_p99_s", "running_seqs_mean"):
        values = slower[figure].to_numpy() - base[figure].to_numpy()
        low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
        got = differences[figure]
        assert (got["low"], got["high"]) == pytest.approx((low, high), rel=1e-9)
        alone = found.summaries["slower"]["uncertainty"][figure]
        assert got["high"] - got["low"] < alone["high"] - alone["low"]  # what is common cancels


def test_the_verdict_is_on_the_means(run):
    folder, found = run
    rows = pd.read_parquet(folder / "run" / "replications.parquet")
    summary = found.summaries["base"]
    mean = rows[rows["variant"] == "base"]["ttft_p99_s"].mean()
    listed, other = summary["verdict"]["targets"][1:]  # p98 is in no catalog
    assert listed["value"] == pytest.approx(mean)
    assert listed["met"] == (mean <= 1.0)
    assert other["value"] < listed["value"]
    assert other["low"] < other["value"] < other["high"]
    assert certainty(summary) == (
        "Figures are means over 4 replications, with 95 % intervals by Student's t."
    )


def test_the_number_of_replications_is_no_part_of_a_point(run):
    file = load_scenario(run[0] / "small.yaml")
    assert point_key(file, Point({"replications": 9})) == point_key(file, Point())
    assert with_replications(file, None) is file
    assert {v.replications for v in with_replications(file, 7).variants.values()} == {7}


def test_replications_that_are_all_alike_say_no_more_than_one(tmp_path):
    text = SCENARIO.replace("kind: poisson", "kind: constant").partition("  lengths")[0]
    text += f"  lengths: {FIXED}\n  num_requests: 40\nreplications: 3\n"
    run = simulate(write(tmp_path, text), tmp_path / "run")
    assert run.notes_on("base")[-1].startswith("The 3 replications are all alike")
    found = run.summaries["base"]
    assert found["replications"] == 1
    assert found["uncertainty"]["e2e_mean_s"]["count"] <= 40
    assert len(pd.read_parquet(tmp_path / "run" / "replications.parquet")) == 3
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["replications"] == 3


def test_a_run_of_replications_has_no_such_note(run):
    assert not any("alike" in note for note in run[1].notes_on("slower"))


def test_variants_have_no_replications_of_their_own(tmp_path):
    wrong = SCENARIO.replace("slower: {", "slower: {replications: 2, ")
    with pytest.raises(InputError, match=r"variants\.slower\.replications: can't differ"):
        load_scenario(write(tmp_path, wrong))


def test_a_replication_that_can_not_be_simulated_is_named(tmp_path):
    """The first replication's longest prompt just fits; one of the others has a longer one."""
    before, rest = SCENARIO.split("  lengths: ")
    lengths = "{kind: lognormal, prompt_mean_tokens: 300, output_mean_tokens: 20, prompt_cv: 2.0,"
    text = f"{before}  lengths: {lengths} output_cv: 0.5}}\n  num{rest.split('  num')[1]}"
    text = text.replace(", num_gpu_blocks_override: 600", "").replace("len: 4096", "len: 32768")
    file = load_scenario(write(tmp_path, text))
    variants = resolve_all(file)
    longest = [int(draw_requests(file, variants, r).prompt_tokens.max()) for r in range(5)]
    limit = longest[0] + 100
    worst = next(number for number in range(5) if longest[number] > limit)
    file = load_scenario(write(tmp_path, text.replace("len: 32768", f"len: {limit}")))
    with pytest.raises(InputError, match=f"replication {worst} of variant base: .*never be served"):
        further_replications(file, ["base"], 5, Here())


def test_a_failure_is_raised_as_what_it_is():
    for failure, kind in (
        (Failure("refused", "too long"), InputError),
        (Failure("killed", "workers died"), InputError),
        (Failure("defect", "Traceback"), BrokenLawError),
    ):
        assert type(failure.error()) is kind
        assert str(failure.error("here")) == f"here: {failure.message}"
