import json

import numpy as np
import pytest

from kvsim.cost.affine import AffineCost
from kvsim.engine.allocators import PoolShape
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.cluster import Cluster
from kvsim.engine.config import EngineConfig
from kvsim.engine.fleet import Fleet
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.metrics import StepCosts
from kvsim.metrics.cut import cut_events, cut_steps
from kvsim.metrics.summary import summarize
from kvsim.tables import TABLES
from kvsim.workload.requests import RequestTable

SECOND = 1_000_000_000


class Part:
    component, bound, basis = "fixed", "hbm", "given"


def test_a_run_that_drains_before_the_cut_is_left_alone(small_run, context):
    requests, steps, events = small_run
    costs = StepCosts(((Part(), np.ones(3)),), np.ones(3), np.ones(3))
    priced = {"costs_of": lambda _: costs, "peak_flop_per_s": 5.0, "peak_hbm_bytes_per_s": 2.0}
    whole, late = (
        summarize(requests, steps, events, context(**priced, end_ns=end_ns))
        for end_ns in (None, 13 * SECOND)
    )
    assert whole == late


def test_a_step_in_flight_counts_with_its_part_of_time_and_no_token(small_run):
    steps = small_run[1]
    flop = np.array([10.0, 20, 40])
    costs = StepCosts(((Part(), np.array([1.0, 3, 4])),), flop, flop)
    cut, costs = cut_steps(steps, costs, 9 * SECOND)
    assert cut["duration_ns"].tolist() == [SECOND, 3 * SECOND, SECOND]
    assert cut["decode_seqs"].tolist() == [0, 2, 0]
    assert cut["running_seqs"].tolist() == [1, 2, 3]
    assert costs.model_flop.tolist() == costs.hbm_bytes.tolist() == [10, 20, 10]
    assert costs.parts_ns[0][1].tolist() == [1, 3, 1]
    assert steps["duration_ns"].tolist() == [SECOND, 3 * SECOND, 4 * SECOND]  # the table stays


def test_a_step_that_would_end_at_the_cut_yields_nothing(small_run):
    cut, _ = cut_steps(small_run[1], None, 5 * SECOND)
    assert cut["duration_ns"].tolist() == [SECOND, 3 * SECOND, 0]
    assert cut["decode_seqs"].tolist() == [0, 0, 0]
    assert cut["prefill_tokens"].tolist() == [10, 0, 0]


def test_a_copy_counts_until_the_cut(table):
    events = table(
        "events",
        [
            {"time_ns": 2, "event": "compacted", "gap_ns": 6},
            {"time_ns": 3, "event": "resumed", "gap_ns": 9},
            {"time_ns": 7, "event": "resumed", "gap_ns": 9},
        ],
    )
    assert cut_events(events, 7)["gap_ns"].tolist() == [5, 9]


@pytest.mark.parametrize("end_ns", [1, 1_000, 12_345, 50_000, 50_001, 333_333, 10**9])
def test_tokens_and_time_are_those_of_the_engine_by_then(context, end_ns):
    count = 40
    sent = RequestTable(
        arrival_ns=np.arange(count) * 2_000,
        prompt_tokens=np.full(count, 30),
        output_tokens=np.full(count, 20),
        max_tokens=np.full(count, 20),
        group=np.arange(count),
        horizon_ns=min(end_ns, count * 2_000),
    )
    fleet = Fleet(
        config=EngineConfig(8, 256, 400, 60, 16),
        replicas=1,
        router=RoundRobin().build(np.random.default_rng(0)),
        build_allocator=lambda oracle: PagedPool(PoolShape(60, 16, 400)),
        cost=AffineCost(fixed_ns=5_000),
    )
    chunks = {name: [np.zeros((0, len(columns)), np.int64)] for name, columns in TABLES.items()}
    Cluster(sent, fleet, lambda name, rows: chunks[name].append(rows)).run(end_ns)
    requests, steps, events = (
        {c.name: np.concatenate(chunks[name])[:, i] for i, c in enumerate(columns)}
        for name, columns in TABLES.items()
    )
    run = context(horizon_ns=sent.horizon_ns, end_ns=end_ns, max_num_seqs=8)
    figures = summarize(requests, steps, events, run)["figures"]
    cut, _ = cut_steps(steps, None, end_ns)
    firsts = (requests["first_token_ns"] >= 0).sum()
    assert cut["decode_seqs"].sum() + firsts == requests["output_tokens"].sum()
    assert figures["makespan_s"] <= end_ns / SECOND
    assert figures["busy_fraction"] <= 1
    busy_ns = min(end_ns, int((steps["start_ns"] + steps["duration_ns"]).max()))
    assert cut["duration_ns"].sum() == busy_ns  # steps follow one another from 0


def test_what_is_too_large_for_a_number_is_null(small_run, context):
    run = context(
        horizon_ns=10 * SECOND,
        price_usd_per_gpu_hour=1e308,
        num_gpus=8,
        slo={"ttft_p99_s": 1e-310, "e2e_p50_s": 100.0},
    )
    summary = summarize(*small_run, run)
    figures = summary["figures"]
    assert figures["usd_per_hour"] is figures["usd_per_million_output_tokens"] is None
    assert summary["verdict"]["targets"][0]["margin"] is None
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
