"""The map of the address space against the steps' own account of slots."""

from pathlib import Path

import numpy as np
import pytest

from kvsim.paper.address_map import LOOKS, STATES, address_map
from kvsim.scenario.load import load_scenario
from kvsim.study.point import Point, run_point
from kvsim.units import seconds_to_ns

SCENARIO = """
model: facebook/opt-13b
gpu: a100_sxm_40gb
scheduler: vllm_v0
engine: {num_gpu_blocks_override: 257}
cost: {kind: affine, fixed_ns: 20000000}
workload:
  arrivals: {kind: poisson, rate_per_s: 6}
  duration_s: 60
  lengths:
    {kind: lognormal, prompt_mean_tokens: 100, prompt_cv: 0.8, output_mean_tokens: 150,
     output_cv: 0.8, output_max_tokens: 1000, prompt_max_tokens: 1000}
variants:
  first_fit: {scheduler: orca, kv_cache: {kind: contiguous, reservation: oracle}}
  buddy: {scheduler: orca, kv_cache: {kind: contiguous, reservation: oracle, placement: buddy}}
"""
OWN = {  # states of the map → columns of a step
    "tokens": ("held",),
    "reserved": ("to_come", "inside"),
    "lost to rounding": ("rounding",),
    "free": ("holes", "free"),
}


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.mark.parametrize("variant", ["base", "first_fit", "buddy"])
def test_shares_are_those_of_the_steps(scenario: Path, variant: str):
    found = address_map(scenario, variant, 20.0, 40.0)
    run = run_point(load_scenario(scenario), Point(variant=variant))
    steps = run.tables["steps"]
    times_ns = [seconds_to_ns(time_s) for time_s in found.times_s]
    rows = np.searchsorted(steps["start_ns"], times_ns, side="right") - 1
    assert len(found.times_s) == LOOKS
    np.testing.assert_allclose(np.sum([found.shares[name] for name in STATES], axis=0), 1.0)
    for name, columns in OWN.items():
        slots = sum(steps[f"kv_{column}_tokens"][rows] for column in columns)
        share = np.asarray(slots) / run.context.kv_capacity_tokens
        # Tokens are counted as if they came evenly, and a step ahead or behind: near enough.
        np.testing.assert_allclose(found.shares[name], share, atol=0.03, err_msg=name)


def test_cells_are_what_most_of_their_slots_are(scenario: Path):
    found = address_map(scenario, "first_fit", 20.0, 40.0)
    cells = np.array(found.cells)
    assert cells.shape == (256 * 16 // 64, LOOKS)
    for code, name in enumerate(STATES):
        assert (cells == code).mean() == pytest.approx(np.mean(found.shares[name]), abs=0.08)
