import numpy as np
import pytest

from kvsim.metrics.latency import latency_figures, latency_samples, request_latencies, token_gaps

SECOND = 1_000_000_000


def test_latencies_of_each_request(small_run):
    latencies = request_latencies(small_run[0])
    nan = np.nan
    np.testing.assert_array_equal(latencies["ttft"], [2, 3, 2, nan, 3])
    np.testing.assert_array_equal(latencies["tpot"], [6 / 4, 7 / 2, nan, nan, nan])
    np.testing.assert_array_equal(latencies["e2e"], [8, 10, 2, nan, nan])
    np.testing.assert_array_equal(latencies["queue"], [1, 0, 1, nan, 2])


def test_statistics_of_a_run(small_run):
    figures = latency_figures(latency_samples(*small_run))
    assert figures["ttft_p50_s"] == 2.5
    assert figures["ttft_max_s"] == 3
    assert figures["tpot_mean_s"] == 2.5
    assert figures["e2e_p90_s"] == pytest.approx(8 + 0.8 * 2)
    # 2 gaps of 3 s, 3 gaps of 4 s, and 6 s around the preemption
    assert figures["itl_mean_s"] == pytest.approx((2 * 3 + 3 * 4 + 6) / 6)
    assert figures["itl_p50_s"] == 4
    assert figures["itl_max_s"] == 6


def test_requests_of_the_warm_up_are_left_out(small_run):
    samples = latency_samples(*small_run, warmup_ns=2 * SECOND)
    assert samples["ttft"].values.tolist() == [2, 3, 3]
    assert samples["e2e"].values.tolist() == [2, 10]
    assert len(samples["itl"]) == 6
    assert len(latency_samples(*small_run, warmup_ns=2 * SECOND + 1)["itl"]) == 4
    assert len(latency_samples(*small_run, warmup_ns=9 * SECOND)["itl"]) == 0


def test_other_events_are_no_gaps(table):
    steps = table("steps", [{"duration_ns": SECOND, "decode_seqs": 1}])
    events = table("events", [{"event": "compacted", "gap_ns": 9}, {"event": "preempted"}])
    gaps_s, counts = token_gaps(steps, events)
    assert np.repeat(gaps_s, counts).tolist() == [1]
