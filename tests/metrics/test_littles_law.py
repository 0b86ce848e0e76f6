"""Time averages from the steps table against sojourns from the requests table."""

import numpy as np
import pytest

from kvsim.metrics.latency import request_latency
from kvsim.metrics.step_sums import sum_up
from kvsim.metrics.utilization import utilization_figures

SECOND = 1_000_000_000


def batching_server(seed, slots):
    """Requests arrive as a step begins, first come first served; rows of both tables."""
    rng = np.random.default_rng(seed)
    requests, steps, queue, running = [], [], [], []
    now_ns = 0
    for round_number in range(400):
        duration_ns = int(rng.integers(1, SECOND))
        for _ in range(rng.poisson(0.9) if round_number < 300 else 0):
            requests.append({"arrival_ns": now_ns, "output_tokens": int(rng.integers(1, 9))})
            queue.append(requests[-1])
        while queue and len(running) < slots:
            queue[0]["admitted_ns"] = now_ns
            running.append([queue.pop(0), 0])
        if running:
            steps.append(
                {"start_ns": now_ns, "duration_ns": duration_ns, "step": len(steps),
                 "running_seqs": len(running), "waiting_seqs": len(queue)}
            )  # fmt: skip
        now_ns += duration_ns
        for entry in running:
            entry[1] += 1
            if entry[1] == 1:
                entry[0]["first_token_ns"] = now_ns
            if entry[1] == entry[0]["output_tokens"]:
                entry[0]["finish_ns"] = now_ns
        running = [entry for entry in running if entry[1] < entry[0]["output_tokens"]]
    assert not running
    assert not queue
    return requests, steps, now_ns


@pytest.mark.parametrize("slots", [5, 8, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_number_in_system_is_rate_times_sojourn(seed, slots, table, context):
    request_rows, step_rows, end_ns = batching_server(seed, slots)
    requests, steps = table("requests", request_rows), table("steps", step_rows)
    sums, _ = sum_up(steps, context(), end_ns)
    figures = utilization_figures(requests, sums, context(), end_ns)
    latencies = {name: request_latency(requests, name) for name in ("queue", "e2e")}
    end_s = end_ns / SECOND
    waits_s, sojourns_s = latencies["queue"].sum(), latencies["e2e"].sum()
    assert figures["waiting_seqs_mean"] * end_s == pytest.approx(waits_s, rel=1e-12, abs=1e-9)
    assert figures["running_seqs_mean"] * end_s == pytest.approx(sojourns_s - waits_s, rel=1e-12)
    if slots == 1000:
        assert waits_s == 0
    else:
        assert waits_s > 0
