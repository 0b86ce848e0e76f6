import numpy as np
import pytest

from kvsim.metrics import StepCosts
from kvsim.metrics.definitions import KV_PARTS
from kvsim.metrics.step_sums import sum_up, time_in_window_ns
from kvsim.metrics.utilization import utilization_figures

SECOND = 1_000_000_000


def figures_of(requests, steps, run, window_ns):
    return utilization_figures(requests, sum_up(steps, run, window_ns)[0], run, window_ns)


@pytest.fixture
def figures(small_run, context):
    requests, steps, _ = small_run
    return figures_of(requests, steps, context(), 10 * SECOND)


def test_steps_are_cut_at_the_window(small_run):
    steps = small_run[1]
    assert time_in_window_ns(steps, 10 * SECOND).tolist() == [SECOND, 3 * SECOND, 2 * SECOND]
    assert time_in_window_ns(steps, 3 * SECOND).tolist() == [SECOND, SECOND, 0]


def test_idle_time_counts_as_zero(figures):
    assert figures["busy_fraction"] == 0.6
    assert figures["running_seqs_mean"] == pytest.approx((1 * 1 + 3 * 2 + 2 * 3) / 10)
    assert figures["waiting_seqs_mean"] == pytest.approx((3 * 1 + 2 * 2) / 10)
    assert figures["batch_occupancy"] == pytest.approx(1.3 / 4)
    assert figures["kv_utilization_mean"] == pytest.approx((10 + 120 + 160) / 1000)


def test_the_split_of_the_kv_cache_is_over_busy_time(figures):
    assert figures["kv_held_share_mean"] == pytest.approx((10 + 120 + 160) / 600)
    assert figures["kv_inside_share_mean"] == pytest.approx(60 / 600)
    assert figures["kv_usage_mean"] == pytest.approx((16 + 180 + 160) / 600)
    assert sum(figures[f"kv_{part}_share_mean"] for part in KV_PARTS) == pytest.approx(1)
    peaks = {part: figures[f"kv_{part}_share_max"] for part in KV_PARTS}
    assert peaks == {
        "held": 0.8, "to_come": 0.06, "inside": 0.2, "rounding": 0.05, "holes": 0.3,
        "reusable": 0.0, "free": 0.84,
    }  # fmt: skip
    assert figures["kv_usage_max"] == 0.8
    assert figures["kv_capacity_bytes"] == 200


def test_peaks_are_those_of_the_window(small_run, context):
    requests, steps, _ = small_run
    early = figures_of(requests, steps, context(), 8 * SECOND)
    assert (early["running_seqs_max"], early["waiting_seqs_max"]) == (2, 1)
    late = figures_of(requests, steps, context(), 8 * SECOND + 1)
    assert (late["running_seqs_max"], late["waiting_seqs_max"]) == (3, 2)


def test_steps_and_preemptions(figures):
    assert figures["steps_total"] == 3
    assert figures["step_mean_s"] == pytest.approx(8 / 3)
    assert figures["step_tokens_mean"] == pytest.approx(15 / 3)
    assert figures["preemptions_total"] == 1
    assert figures["recomputed_tokens"] == 12


def test_replicas_share_the_window(small_run, context, figures):
    requests, steps, _ = small_run
    second = {name: column.copy() for name, column in steps.items()}
    second["replica"][:] = 1
    both = {name: np.concatenate((steps[name], second[name])) for name in steps}
    twice = figures_of(requests, both, context(replicas=2), 10 * SECOND)
    same = ("busy_fraction", "running_seqs_mean", "kv_utilization_mean", "kv_held_share_mean")
    assert {name: twice[name] for name in same} == pytest.approx({n: figures[n] for n in same})
    half_idle = figures_of(requests, steps, context(replicas=2), 10 * SECOND)
    assert half_idle["busy_fraction"] == pytest.approx(0.3)
    assert half_idle["kv_utilization_mean"] == pytest.approx(0.145)


def test_work_of_a_step_counts_by_its_share_in_the_window(small_run, context):
    requests, steps, _ = small_run
    costs = StepCosts((), np.array([10.0, 20, 40]), np.array([1.0, 2, 8]))
    run = context(
        costs_of=lambda _: costs, peak_flop_per_s=5.0, peak_hbm_bytes_per_s=2.0, replicas=2
    )
    figures = figures_of(requests, steps, run, 10 * SECOND)
    assert figures["mfu"] == pytest.approx((10 + 20 + 40 / 2) / (10 * 5 * 2))
    assert figures["mbu"] == pytest.approx((1 + 2 + 8 / 2) / (10 * 2 * 2))


def test_without_peaks_there_is_no_mfu(small_run, context):
    requests, steps, _ = small_run
    costs = StepCosts((), np.ones(3), np.ones(3))
    figures = figures_of(requests, steps, context(costs_of=lambda _: costs), 10 * SECOND)
    assert figures["mfu"] is None
    assert figures["mbu"] is None


def test_a_day_of_a_large_pool_does_not_overflow(table, context):
    day_ns = 86_400 * SECOND
    steps = table("steps", [{"duration_ns": day_ns, "kv_held_tokens": 10**7}] * 3)
    steps["start_ns"] = np.arange(3) * day_ns
    run = context(kv_capacity_tokens=2 * 10**7)
    figures = figures_of(table("requests", []), steps, run, 3 * day_ns)
    assert figures["kv_utilization_mean"] == pytest.approx(0.5)


def test_saved_by_sharing_goes_by_time(small_run, context):
    """Weights 1, 3, 2 s: 30 and 20 slots shared; sequences own 16, 60 and 80."""
    requests, steps, _ = small_run
    shared = {**steps, "shared_kv_tokens": np.array([0, 30, 20])}
    found = figures_of(requests, shared, context(), 10 * SECOND)
    saved, owned = 3 * 30 + 2 * 20, 16 + 3 * 60 + 2 * 80
    assert found["kv_saved_by_sharing"] == pytest.approx(saved / (saved + owned))
    idle = {name: column[:0] for name, column in shared.items()}
    assert figures_of(requests, idle, context(), SECOND)["kv_saved_by_sharing"] is None
