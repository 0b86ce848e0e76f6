"""Figures of real runs against identities that any run has to keep."""

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
from kvsim.metrics.gaps import event_gaps, step_gaps
from kvsim.metrics.latency import request_latency
from kvsim.metrics.summary import summarize
from kvsim.tables import TABLES
from kvsim.units import NS_PER_S
from kvsim.workload.requests import RequestTable

BLOCKS, BLOCK = 60, 16


def simulate(seed, replicas):
    """Run 300 random requests on a pool so small that sequences are preempted."""
    rng = np.random.default_rng(seed)
    count = 300
    requests = RequestTable(
        arrival_ns=np.cumsum(rng.integers(0, 60_000, count)),
        prompt_tokens=rng.integers(1, 200, count),
        output_tokens=rng.integers(1, 150, count),
        max_tokens=np.full(count, 200),
        group=np.arange(count),
        horizon_ns=30_000 * count,
    )
    fleet = Fleet(
        config=EngineConfig(16, 256, 400, BLOCKS, BLOCK),
        replicas=replicas,
        router=RoundRobin().build(np.random.default_rng(0)),
        build_allocator=lambda oracle: PagedPool(PoolShape(BLOCKS, BLOCK, 400)),
        cost=AffineCost(fixed_ns=5_000, per_token_ns=20),
    )
    chunks = {name: [np.zeros((0, len(columns)), np.int64)] for name, columns in TABLES.items()}
    Cluster(requests, fleet, lambda name, rows: chunks[name].append(rows)).run()
    rows = {name: np.concatenate(parts) for name, parts in chunks.items()}
    return requests, [
        {column.name: rows[name][:, index] for index, column in enumerate(columns)}
        for name, columns in TABLES.items()
    ]


@pytest.fixture(params=[(seed, replicas) for seed in (1, 2) for replicas in (1, 2)])
def run(request, context):
    seed, replicas = request.param
    sent, tables = simulate(seed, replicas)
    duration_ns = tables[1]["duration_ns"].astype(float)
    costs = StepCosts((), duration_ns, duration_ns)
    capacity = (BLOCKS - 1) * BLOCK
    horizon_ns = int((tables[1]["start_ns"] + tables[1]["duration_ns"]).max())
    settings = context(
        horizon_ns=horizon_ns,
        kv_capacity_tokens=capacity,
        replicas=replicas,
        costs_of=lambda _: costs,
        peak_flop_per_s=float(NS_PER_S),
        peak_hbm_bytes_per_s=float(NS_PER_S),
    )
    figures = summarize(*tables, settings)["figures"]
    assert figures["preemptions_total"] > 0
    return sent, tables, figures, replicas


def test_gaps_between_tokens_add_up_to_the_answers(run):
    sent, (requests, steps, events), figures, _ = run
    gaps_ns, counts = map(
        np.concatenate, zip(step_gaps(steps, 0), event_gaps(events, 0), strict=True)
    )
    decoding_ns = int((requests["finish_ns"] - requests["first_token_ns"]).sum())
    assert counts.sum() == int((sent.output_tokens - 1).sum())
    assert (gaps_ns * counts).sum() == decoding_ns
    tpot_s, more = request_latency(requests, "tpot"), requests["output_tokens"] - 1
    assert np.nansum(tpot_s * more) == pytest.approx(figures["itl_mean_s"] * counts.sum())


def test_work_proportional_to_time_is_utilization_equal_to_busyness(run):
    figures = run[2]
    assert figures["mfu"] == figures["mbu"] == pytest.approx(figures["busy_fraction"], rel=1e-12)


def test_the_accounting_of_the_cache_adds_up(run):
    figures = run[2]
    parts = ("held", "to_come", "inside", "rounding", "holes", "free")
    assert sum(figures[f"kv_{part}_share_mean"] for part in parts) == pytest.approx(1)
    assert figures["kv_utilization_mean"] == pytest.approx(
        figures["kv_held_share_mean"] * figures["busy_fraction"]
    )
    assert figures["kv_usage_max"] <= 1


def test_recomputation_explains_all_tokens_beyond_those_asked_for(run):
    sent, (_, steps, _), figures, _ = run
    computed = int(steps["prefill_tokens"].sum() + steps["decode_seqs"].sum())
    asked = int((sent.prompt_tokens + sent.output_tokens - 1).sum())
    assert computed - asked == figures["recomputed_tokens"] > 0
