"""Engines before vLLM V1 equal plain ones, step by step."""

import numpy as np
import pytest

from kvsim.cost.pcie import HostLink
from kvsim.engine.allocators.contiguous import Contiguous
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.config import EngineConfig
from kvsim.engine.schedulers.faster_transformer import FasterTransformer
from kvsim.engine.schedulers.orca import Orca
from kvsim.engine.schedulers.vllm_v0 import VllmV0
from kvsim.units import GIB
from tests.engine.earlier_reference import Job, PlainOrca, PlainStaticBatches, PlainV0
from tests.engine.harness import BLOCK, LinearCost, request_table, run

SCENARIOS = 60
LONGEST = 96
BLOCK_NS = 320  # on the way to the host, at a tenth of 32 GB/s


def random_crowd(seed):
    """Rows of a request table, and an engine that lacks blocks, slots or budget by turns."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 50))
    arrivals = np.sort(rng.integers(0, count * int(rng.choice([1, 100, 1000])), count))
    prompts = rng.integers(1, int(rng.choice([20, LONGEST])), count)
    answers = rng.integers(1, int(rng.choice([3, 40, 90])), count)
    rows = [(*map(int, row), 0) for row in zip(arrivals, prompts, answers, strict=True)]
    size = int(rng.choice([1, 4, 16]))
    config = EngineConfig(
        max_num_seqs=int(rng.choice([1, 4, 12])),
        max_num_batched_tokens=int(rng.choice([LONGEST, 3 * LONGEST])),
        max_model_len=LONGEST,
        num_gpu_blocks=int(LONGEST * rng.uniform(1.05, 4) / size) + 2,
        block_size=size,
        enable_chunked_prefill=False,
        watermark=float(rng.choice([0.0, 0.01, 0.1])),
    )
    cost = LinearCost(*map(int, rng.integers((1, 0, 0), (50, 5, 3))))
    return rows, config, cost, rng


def compare(seed, rows, config, cost, engine, layout, plain):
    found = run(request_table(rows), config, cost, layout, scheduler=engine).tables
    jobs = [
        Job(number, arrival, prompt, min(answer, LONGEST - prompt))
        for number, (arrival, prompt, answer, _) in enumerate(rows)
    ]
    expected = plain.run(jobs)
    steps, requests = found["steps"], found["requests"]
    owned = steps["kv_held_tokens"] + steps["kv_to_come_tokens"] + steps["kv_inside_tokens"]
    assert len(steps["step"]) == len(expected), seed
    for name in vars(expected[0]):
        column = owned if name == "owned_tokens" else steps[name]
        assert column.tolist() == [getattr(row, name) for row in expected], (seed, name)
    order = requests["request"].argsort()
    for name, values in {
        "admitted_ns": [job.admitted_ns for job in jobs],
        "first_token_ns": [job.times_ns[0] for job in jobs],
        "finish_ns": [job.finish_ns for job in jobs],
        "preemptions": [job.preemptions for job in jobs],
        "recomputed_tokens": [job.recomputed for job in jobs],
    }.items():
        assert requests[name][order].tolist() == values, (seed, name)
    return expected


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "together"])
@pytest.mark.parametrize("preemption", ["auto", "recompute", "swap"])
def test_vllm_v0(preemption, apart):
    swaps = preempted = 0
    for seed in range(SCENARIOS):
        rows, config, cost, rng = random_crowd(seed)
        host_blocks = int(rng.choice([0, 5, 1000]))
        engine = VllmV0(
            preemption=preemption,
            prompts_apart=apart,
            swap_space_gib=host_blocks * BLOCK.size_bytes / GIB,
            link=HostLink(launch_s=0.0, peak_fraction=0.1),
        )
        plain = PlainV0(
            cost,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.num_gpu_blocks - 1,
            config.block_size,
            int(config.watermark * config.num_gpu_blocks),
            (host_blocks, BLOCK_NS) if preemption == "swap" else None,
            apart,
        )
        for row in compare(seed, rows, config, cost, engine, Paged(), plain):
            swaps += row.swap_ns > 0
            preempted += row.preempted_seqs
    assert preempted > 200
    assert (swaps > 50) == (preemption == "swap")


@pytest.mark.parametrize(
    ("engine", "plain"), [(Orca(), PlainOrca), (FasterTransformer(), PlainStaticBatches)]
)
def test_engines_that_reserve(engine, plain):
    for seed in range(SCENARIOS):
        rows, config, cost, _ = random_crowd(seed)
        places = config.num_gpu_blocks * config.block_size // LONGEST
        slow = plain(cost, config.max_num_seqs, config.max_num_batched_tokens, places, LONGEST)
        compare(seed, rows, config, cost, engine, Contiguous(), slow)
