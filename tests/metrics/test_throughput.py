import numpy as np
import pytest

from kvsim.metrics.step_sums import last_end_ns
from kvsim.metrics.throughput import request_figures, throughput_figures, window_ns

SECOND = 1_000_000_000


def figures_of(requests, steps, run):
    return throughput_figures(requests, last_end_ns(steps, run), run)


def test_only_what_finished_inside_the_horizon_counts(small_run, context):
    requests, steps, _ = small_run
    figures = figures_of(requests, steps, context(horizon_ns=10 * SECOND))
    assert figures["window_s"] == 10
    assert figures["makespan_s"] == 12
    assert figures["offered_requests_per_s"] == 5 / 10
    assert figures["requests_per_s"] == 2 / 10
    assert figures["output_tokens_per_s"] == 6 / 10
    assert figures["total_tokens_per_s"] == 23 / 10


def test_a_finish_at_the_horizon_is_inside(small_run, context):
    requests, steps, _ = small_run
    at = figures_of(requests, steps, context(horizon_ns=12 * SECOND))
    before = figures_of(requests, steps, context(horizon_ns=12 * SECOND - 1))
    assert at["requests_per_s"] == 3 / 12
    assert before["requests_per_s"] == pytest.approx(2 / 12)


def test_a_batch_that_arrives_at_once_is_measured_to_its_end(small_run, context):
    requests, steps, _ = small_run
    batch = context(horizon_ns=0)
    assert window_ns(requests, 11 * SECOND, batch) == 12 * SECOND
    assert figures_of(requests, steps, batch)["requests_per_s"] == 3 / 12


@pytest.mark.parametrize("horizon_ns", [0, 1, 1000])
def test_a_horizon_of_a_moment_is_none(small_run, context, horizon_ns):
    requests, steps, _ = small_run
    figures = figures_of(requests, steps, context(horizon_ns=horizon_ns))
    assert figures["window_s"] == figures["makespan_s"] == 12
    assert figures["offered_requests_per_s"] == 5 / 12
    assert window_ns(requests, 12 * SECOND, context(horizon_ns=1001)) == 1001


def test_prefix_hits_are_a_share_of_the_admitted_prompts(small_run):
    requests = {**small_run[0], "cached_tokens": np.array([8, 16, 0, 99, 3])}
    hits = request_figures(requests, warmup_ns=0)["prefix_hit_fraction"]
    assert hits == (8 + 16 + 3) / (10 + 20 + 7 + 9)  # the rejected one was never admitted
    nobody = {name: column[3:4] for name, column in requests.items()}
    assert request_figures(nobody, warmup_ns=0)["prefix_hit_fraction"] is None


def test_goodput_needs_every_bound(small_run, context):
    requests, steps, _ = small_run

    def goodput(slo):
        figures = figures_of(requests, steps, context(horizon_ns=10 * SECOND, slo=slo))
        return figures["goodput_requests_per_s"], figures["slo_attainment_fraction"]

    assert goodput({"ttft_p99_s": 2.0}) == (2 / 10, 2 / 5)
    assert goodput({"ttft_p99_s": 3.0}) == (2 / 10, 3 / 5)
    assert goodput({"ttft_p99_s": 3.0, "tpot_p50_s": 1.4}) == (1 / 10, 1 / 5)  # one token: no TPOT
    assert goodput({"e2e_p95_s": 9.0, "queue_max_s": 0.5}) == (0, 0)
    assert goodput({"max_failed_fraction": 0.5}) == (2 / 10, 3 / 5)
    assert goodput(None) == (None, None)


def test_cost(small_run, context):
    requests, steps, _ = small_run
    deployment = context(horizon_ns=10 * SECOND, price_usd_per_gpu_hour=1.8, num_gpus=4)
    figures = figures_of(requests, steps, deployment)
    assert figures["usd_per_hour"] == pytest.approx(7.2)
    assert figures["usd_per_million_output_tokens"] == pytest.approx(7.2 / 3600 / 0.6 * 1e6)
    unknown = figures_of(requests, steps, context(horizon_ns=10 * SECOND))
    assert unknown["usd_per_hour"] is unknown["usd_per_million_output_tokens"] is None


def test_every_request_has_one_outcome(small_run):
    figures = request_figures(small_run[0], warmup_ns=4 * SECOND)
    assert figures == {
        "requests_total": 5,
        "retries_total": 0,
        "unanswered_fraction": pytest.approx(2 / 5),
        "requests_measured": 3,
        "requests_finished": 3,
        "requests_rejected": 1,
        "requests_unfinished": 1,
        "requests_timed_out": 0,
        "failed_fraction": 2 / 5,
        "prefix_hit_fraction": 0,
    }
