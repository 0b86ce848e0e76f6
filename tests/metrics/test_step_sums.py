"""Sums over steps don't depend on how many of them are looked at together."""

import dataclasses

import numpy as np
import pytest

from kvsim.metrics import StepCosts, step_sums
from kvsim.metrics.step_sums import last_end_ns, sum_up
from kvsim.tables import HEAD_LACKS, STEPS


def random_steps(count):
    rng = np.random.default_rng(count)
    steps = {column.name: rng.integers(0, 10**6, count) for column in STEPS}
    steps["duration_ns"] = rng.integers(1, 10**8, count)
    steps["start_ns"] = np.cumsum(steps["duration_ns"])
    steps["head_lacks"] = rng.integers(0, len(HEAD_LACKS), count)
    steps["waiting_seqs"] = rng.integers(0, 3, count)
    steps["discarded_seqs"] = np.minimum(steps["discarded_seqs"], steps["decode_seqs"])
    rest = steps["decode_seqs"] - steps["discarded_seqs"]
    steps["late_seqs"] = np.minimum(steps["late_seqs"] % 9, rest)
    return steps


class Part:
    component, bound, basis = "any", "hbm", "given"


def costs_of(steps):
    ns = steps["decode_seqs"] / 3
    return StepCosts(((Part, ns), (Part, np.sqrt(ns))), ns * 1e12, ns / 7)


@pytest.mark.parametrize("rows", [0, 1, 7, 129, 1_000, 70_001])
@pytest.mark.parametrize("end_ns", [None, 10**9])
def test_sums_are_the_same_to_the_bit_however_many_rows_a_batch_has(
    rows, end_ns, context, monkeypatch
):
    steps, run = random_steps(rows), context(costs_of=costs_of, end_ns=end_ns, warmup_ns=10**8)
    found = []
    for batch in (128, 999, 16_384, 10**6):
        monkeypatch.setattr(step_sums, "BATCH_ROWS", batch)
        sums, gaps = sum_up(steps, run, window_ns=2 * 10**12)
        values = {field.name: getattr(sums, field.name) for field in dataclasses.fields(sums)}
        values |= {name: getattr(gaps, name) for name in ("gaps", "total_ns", "longest_ns")}
        values |= {"by_bin": gaps.by_bin, "last_ns": last_end_ns(steps, run)}
        found.append(values)
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_array_equal(other[name], value, name)


def test_sums_are_those_of_numpy_over_whole_columns(context):
    steps = random_steps(200_003)
    sums, gaps = sum_up(steps, context(costs_of=costs_of), window_ns=10**18)
    weights = steps["duration_ns"].astype(np.float64)
    assert sums.area("running") == (steps["running_seqs"] * weights).sum()
    assert sums.area("held") == (steps["kv_held_tokens"] * weights).sum()
    costs = costs_of(steps)
    assert sums.parts_ns.tolist() == [part_ns.sum() for _, part_ns in costs.parts_ns]
    assert sums.work.tolist() == [costs.model_flop.sum(), costs.hbm_bytes.sum()]
    assert sums.peak("free") == steps["kv_free_tokens"].max()
    assert sums.time_ns == sums.window_ns == steps["duration_ns"].sum()
    tokens = steps["decode_seqs"] - steps["discarded_seqs"] - steps["late_seqs"]
    assert gaps.gaps == gaps.by_bin.sum() == tokens.sum()
    assert gaps.total_ns == sum(map(int.__mul__, steps["duration_ns"].tolist(), tokens.tolist()))
