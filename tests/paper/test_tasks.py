"""Runs in memory against runs on disk; the search against rates that are known."""

from pathlib import Path

import pytest

import kvsim.paper.tasks as tasks
from kvsim.rundir.write import run_into
from kvsim.scenario.load import load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all

SCENARIO = """
model: facebook/opt-13b
gpu: a100_sxm_40gb
engine: {enable_prefix_caching: false, num_gpu_blocks_override: 200, max_model_len: 512}
cost: {kind: affine, fixed_ns: 10000000}
workload:
  arrivals: {kind: poisson, rate_per_s: 2}
  duration_s: 60
  lengths: {kind: fixed, prompt_tokens: 20, output_tokens: 30}
max_simulated_s: 50
variants:
  contiguous: {kv_cache: {kind: contiguous, reservation: oracle}}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.mark.parametrize("variant", ["base", "contiguous"])
def test_figures_are_those_of_a_run_on_disk(scenario: Path, tmp_path: Path, variant: str):
    file = load_scenario(scenario)
    variants = resolve_all(file)
    run = run_into(tmp_path, file, variants, draw_requests(file, variants)).run
    assert tasks.summary_of(scenario, variant, {}) == run.summaries[variant]


def test_changes_are_made_where_they_say(scenario: Path):
    changes = {"engine.block_size": 32, "workload.arrivals.rate_per_s": 8.0}
    before, after = (tasks.summary_of(scenario, "base", c)["figures"] for c in ({}, changes))
    assert after["kv_capacity_tokens"] == pytest.approx(2 * before["kv_capacity_tokens"], rel=0.01)
    assert after["offered_requests_per_s"] > 2.5 * before["offered_requests_per_s"]


def test_the_search_ends_about_the_capacity(scenario: Path, monkeypatch):
    """One step yields a token for all, so that rates are bound by memory: 6 or 7 at once."""
    monkeypatch.setattr(tasks, "OVERLOADED_S", 60.0)
    found = tasks.sustained_rate(scenario, "contiguous", {"engine.max_num_seqs": 4}, 0.05)
    assert found == sorted(found)
    rate = tasks.rate_at(found, 0.05)
    below = max(r for r, latency in found if latency <= 0.05)
    above = min(r for r, latency in found if latency > 0.05)
    assert below <= rate <= above <= 1.1 * below
    assert rate == pytest.approx(4 / (30 * 0.010), rel=0.25)  # four at a time, 30 steps of 10 ms
    bare = tasks.sustained_rate(scenario, "contiguous", {"engine.max_num_seqs": 4}, 0.05, ())
    assert found[len(tasks.LOWER_SHARES) :] == bare


def test_a_rate_between_two_that_were_tried_is_interpolated_in_logarithms():
    trials = [(1.0, 0.01), (2.0, 0.1), (4.0, 10.0)]
    assert tasks.rate_at(trials, 1.0) == pytest.approx(2 * 2**0.5)
    assert tasks.rate_at(trials, 100.0) == 4.0
    assert tasks.rate_at(trials, 0.001) == 1.0
