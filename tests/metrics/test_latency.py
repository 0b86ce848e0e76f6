import numpy as np
import pytest

from kvsim.metrics.gaps import event_gaps, itl_statistics, step_gaps
from kvsim.metrics.latency import REQUEST_LATENCIES, request_latency, request_statistics
from kvsim.metrics.step_sums import sum_up
from kvsim.metrics.summary import summarize

SECOND = 1_000_000_000


def test_latencies_of_each_request(small_run):
    latencies = {name: request_latency(small_run[0], name) for name in REQUEST_LATENCIES}
    nan = np.nan
    np.testing.assert_array_equal(latencies["ttft"], [2, 3, 2, nan, 3])
    np.testing.assert_array_equal(latencies["tpot"], [6 / 4, 7 / 2, nan, nan, nan])
    np.testing.assert_array_equal(latencies["e2e"], [8, 10, 2, nan, nan])
    np.testing.assert_array_equal(latencies["queue"], [1, 0, 1, nan, 2])


def test_statistics_of_a_run(small_run, context):
    figures = summarize(*small_run, context())["figures"]
    assert figures["ttft_p50_s"] == 2.5
    assert figures["ttft_max_s"] == 3
    assert figures["tpot_mean_s"] == 2.5
    assert figures["e2e_p90_s"] == pytest.approx(8 + 0.8 * 2)
    # 2 gaps of 3 s, 3 gaps of 4 s, and 6 s around the preemption
    assert figures["itl_mean_s"] == pytest.approx((2 * 3 + 3 * 4 + 6) / 6)
    assert figures["itl_p50_s"] == 4
    assert figures["itl_max_s"] == 6


def test_what_happens_in_the_warm_up_is_left_out(small_run):
    requests, steps, events = small_run
    statistics, _ = request_statistics(requests, 2 * SECOND, {"ttft_p50_s": 1.0})
    assert statistics["ttft"]["mean"] == pytest.approx((2 + 3 + 3) / 3)
    assert statistics["e2e"]["p50"] == 6  # of 2 and 10
    for warmup_ns, gaps, longer in ((2 * SECOND, 5, 1), (2 * SECOND + 1, 3, 1), (9 * SECOND, 0, 0)):
        assert step_gaps(steps, warmup_ns)[1].sum() == gaps
        assert event_gaps(events, warmup_ns)[1].sum() == longer


def test_other_events_are_no_gaps(table):
    events = table("events", [{"event": "compacted", "gap_ns": 9}, {"event": "preempted"}])
    assert not len(event_gaps(events, 0)[0])


@pytest.mark.parametrize("rows", [0, 1, 2, 300, 70_000])
@pytest.mark.parametrize("longest_ns", [1, 40_000_000, 2**62])
def test_percentiles_of_gaps_are_exact(rows, longest_ns, table, context):
    """Against numpy's percentiles of all gaps, one by one."""
    rng = np.random.default_rng(rows)
    steps = {name: np.zeros(rows, dtype=np.int64) for name in table("steps", [])}
    steps["duration_ns"] = rng.integers(1, longest_ns + 1, rows)
    steps["duration_ns"][: rows // 3] = 16_777_217  # 2²⁴ + 1 is no number of 32 bits
    steps["decode_seqs"] = rng.integers(0, 4, rows)
    steps["discarded_seqs"] = np.minimum(rng.integers(0, 2, rows), steps["decode_seqs"])
    events = table("events", [{"event": "resumed", "gap_ns": 10**9}] * (rows % 7))
    run, names = context(), ("mean", "p0", "p12.5", "p50", "p99", "p99.99", "p100", "max")
    found = itl_statistics(steps, events, run, sum_up(steps, run, 10)[1], names)
    gaps_s = (
        np.repeat(steps["duration_ns"], steps["decode_seqs"] - steps["discarded_seqs"]) / SECOND
    )
    gaps_s = np.concatenate((gaps_s, np.ones(rows % 7)))
    if not len(gaps_s):
        assert set(found.values()) == {None}
        return
    assert found.pop("mean") == pytest.approx(gaps_s.mean(), rel=1e-12)
    assert found.pop("max") == gaps_s.max()
    for name, value in found.items():
        assert value == np.percentile(gaps_s, float(name[1:])), name
