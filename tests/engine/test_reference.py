"""The step loop that touches only what changes equals the plain one, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from kvsim.cost.affine import AffineCost
from kvsim.engine.allocators import PoolShape
from kvsim.engine.allocators.contiguous import Contiguous
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.config import EngineConfig
from kvsim.engine.content import Paths
from kvsim.memory.kv_groups import KVGroup
from kvsim.tables import EVENT_KINDS, HEAD_LACKS, OUTCOMES
from tests.engine.harness import request_table, run
from tests.engine.reference import Job, ReferenceEngine

SCENARIOS = 400
RESUMED = EVENT_KINDS.index("resumed")
FINISHED = OUTCOMES.index("finished")
CHUNK_COLUMNS = (
    "prefill_seqs",
    "prefill_tokens",
    "prefill_kv_tokens",
    "prefill_pairs",
    "prefill_attention_ns",
)
LAYOUTS = [
    Paged(),
    Paged(null_block=False),
    Contiguous(),
    Contiguous(reservation="max_tokens", placement="best_fit"),
    Contiguous(reservation="oracle_pow2", placement="buddy"),
    Contiguous(reservation="oracle", placement="first_fit"),
    Contiguous(reservation="oracle", placement="best_fit", compaction=True),
]


def random_scenario(seed):
    """Return (requests, config, cost, layout): small, short of memory, slots, budget by turns."""
    rng = np.random.default_rng(seed)
    layout = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    block_size = int(rng.choice([1, 4, 16]))
    max_model_len = int(rng.integers(40, 200))
    enable_chunked_prefill = bool(rng.random() < 0.85)
    max_num_seqs = int(rng.choice([1, 3, 8, 24]))
    budget = int(rng.integers(max_num_seqs, 80)) if enable_chunked_prefill else max_model_len
    config = EngineConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(budget, max_num_seqs),
        max_model_len=max_model_len,
        num_gpu_blocks=int(max_model_len * rng.uniform(1.2, 4) / block_size) + 2,
        block_size=block_size,
        enable_chunked_prefill=enable_chunked_prefill,
        long_prefill_token_threshold=int(rng.choice([0, 0, 7, 20])),
        scheduler_reserve_full_isl=bool(rng.random() < 0.7),
        watermark=float(rng.choice([0.0, 0.0, 0.05])),
    )
    count = int(rng.integers(5, 60))
    arrivals = np.sort(rng.integers(0, count * int(rng.choice([1, 200, 2000, 20000])), count))
    prompts = rng.integers(1, max_model_len, count)
    prompts[rng.random(count) < rng.choice([0, 0.4])] = 1  # admitted even among throttled steps
    outputs = rng.integers(1, int(rng.choice([3, 60, 150])), count)
    limits = np.where(rng.random(count) < 0.5, 0, outputs + rng.integers(-2, 20, count).clip(0))
    rows = np.stack([arrivals, prompts, outputs, limits], axis=1)
    if rng.random() < 0.5:
        whole = rng.integers((1, 0, 0), (50, 5, 3)).tolist()
        cost = AffineCost(whole[0], whole[1], 0, whole[2])
    else:  # sums of fractions, in the same order
        cost = AffineCost(*rng.uniform(0.1, 9.9, 4).tolist())
    requests = request_table([tuple(map(int, row)) for row in rows])
    groups = rng.integers(0, 9, count)
    priorities = rng.integers(-1, int(rng.choice([0, 2, 9])), count)
    config = replace(
        config,
        scheduling_policy=str(rng.choice(["fcfs", "priority"])),
        max_num_scheduled_tokens=_tighter(rng, config.max_num_batched_tokens)
        if enable_chunked_prefill
        else None,
        max_num_active_seqs=_tighter(rng, max_num_seqs),
        long_prefill_token_threshold_adaptive=bool(rng.random() < 0.4),
        prefill_schedule_interval=int(rng.choice([1, 1, 1, 2, 5])),
    )
    if seed % 5 == 0:
        config = starving(config, rng)
    config = replace(
        config,
        enable_prefix_caching=isinstance(layout, Paged) and bool(rng.random() < 0.5),
        async_scheduling=bool(rng.random() < 0.5),
    )
    if seed % 7 == 0 and seed % 5:
        config = crowded(config)
    if isinstance(layout, Paged) and seed % 2:
        config = with_windows(config, rng)
    return replace(requests, group=groups, priority=priorities), config, cost, layout


def crowded(config):
    """Return the settings changed so that many are preempted, some with their last token."""
    return replace(
        config,
        num_gpu_blocks=-(-config.max_model_len // config.block_size) + 2,
        scheduler_reserve_full_isl=False,
        scheduling_policy="fcfs",
        async_scheduling=True,
        enable_prefix_caching=False,
    )


def with_windows(config, rng):
    """Return the settings with several KV groups, or one whose layers all have a window."""
    size = config.block_size
    sliding, other = (KVGroup(size, int(rng.integers(2, 70))) for _ in range(2))
    groups = [
        (sliding,),
        (KVGroup(size), sliding),
        (sliding, KVGroup(size), other),
        (KVGroup(2 * size), sliding),
        (replace(sliding, block_size=3 * size), replace(other, block_size=2 * size)),
    ][int(rng.integers(5))]
    return replace(
        config, kv_groups=groups, num_gpu_blocks=config.num_gpu_blocks * len(groups) * 3 // 4
    )


def starving(config, rng):
    """Return the settings changed so that prompts which grow leave no budget to decodes behind."""
    return replace(
        config,
        max_num_seqs=8,
        max_num_batched_tokens=48,
        max_num_scheduled_tokens=int(rng.integers(4, 16)),
        max_num_active_seqs=None,
        enable_chunked_prefill=True,
        scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=2,
        long_prefill_token_threshold_adaptive=True,
    )


def _tighter(rng, most):
    """Return a limit below `most`, now and then, else None."""
    return int(rng.integers(1, most + 1)) if rng.random() < 0.4 else None


def reference(requests, config, cost, layout):
    jobs, answers, paths = [], {}, Paths()
    for number, (arrival, prompt, output, limit, priority, group) in enumerate(
        zip(
            requests.arrival_ns.tolist(),
            requests.prompt_tokens.tolist(),
            requests.output_tokens.tolist(),
            requests.max_tokens.tolist(),
            requests.priority.tolist(),
            requests.group.tolist(),
            strict=True,
        )
    ):
        room = config.max_model_len - prompt
        max_tokens = min(limit or room, room)
        answers[number] = min(output, max_tokens)
        job = Job(number, arrival, prompt, max_tokens, answers[number], priority)
        job.content = paths.unique(group, number, prompt)
        jobs.append(job)
    shape = PoolShape.of(config, lambda job: answers[job.number])
    pool = layout.build(shape)
    served = [job for job in jobs if pool.can_ever_fit(job)]
    engine = ReferenceEngine(config, pool, cost)
    return engine.run(served), jobs, engine


def gaps_from_tables(trace):
    """Expand the gaps between tokens as the metrics define them, sorted."""
    steps, events = trace.tables["steps"], trace.tables["events"]
    tokens = steps["decode_seqs"] - steps["discarded_seqs"]
    gaps = np.repeat(steps["duration_ns"], tokens).tolist()
    return sorted(gaps + events["gap_ns"][events["event"] == RESUMED].tolist())


@pytest.mark.parametrize("group", range(20))
def test_production_equals_reference(group):
    for seed in range(group * SCENARIOS // 20, (group + 1) * SCENARIOS // 20):
        compare(seed)


def compare(seed):
    requests, config, cost, layout = random_scenario(seed)
    trace = run(requests, config, cost, layout, spy=True)
    expected, jobs, engine = reference(requests, config, cost, layout)
    steps = trace.tables["steps"]
    rows = trace.tables["requests"]
    assert rows["request"][rows["outcome"] == FINISHED].tolist() == engine.left, seed

    notes = [note for note in trace.plans if note.scheduled]
    assert len(notes) == len(expected), seed
    for index, step in enumerate(expected):
        row = {name: int(column[index]) for name, column in steps.items()}
        assert notes[index].scheduled == step.scheduled, (seed, index)
        assert notes[index].preempted == step.preempted, (seed, index)
        assert (row["start_ns"], row["duration_ns"]) == (step.start_ns, step.duration_ns), seed
        assert (row["running_seqs"], row["waiting_seqs"]) == (step.running, step.waiting), seed
        assert HEAD_LACKS[row["head_lacks"]] == step.head_lacks, (seed, index)
        assert row["kv_held_tokens"] == step.held, (seed, index)
        assert row["kv_inside_tokens"] == step.inside, (seed, index)
        assert row["kv_to_come_tokens"] == step.taken - step.held - step.inside, (seed, index)
        assert tuple(row[name] for name in CHUNK_COLUMNS) == step.chunks, (seed, index)
        assert (row["decode_seqs"], row["decode_kv_tokens"]) == step.decodes, (seed, index)
        assert row["discarded_seqs"] == step.discarded, (seed, index)
        pool = (row["kv_rounding_tokens"], row["kv_holes_tokens"], row["kv_free_tokens"])
        assert pool == (step.rounding, step.holes, step.free), (seed, index)

    order = rows["request"].argsort()
    for job in jobs:
        row = {name: int(column[order[job.number]]) for name, column in rows.items()}
        assert row["output_tokens"] == job.generated_tokens, seed
        assert row["group"] == requests.group[job.number], seed
        if job.token_times_ns:
            times = (job.admitted_ns, job.token_times_ns[0], job.token_times_ns[-1])
            assert (row["admitted_ns"], row["first_token_ns"], row["finish_ns"]) == times, seed
            assert row["preemptions"] == job.preemptions, seed
            assert row["recomputed_tokens"] == job.recomputed, seed
            assert row["cached_tokens"] == job.cached, seed
    gaps = [gap for job in jobs for gap in np.diff(job.token_times_ns).tolist()]
    assert gaps_from_tables(trace) == sorted(gaps), seed


def test_the_scenarios_cover_what_can_go_wrong():
    seen = dict.fromkeys(EVENT_KINDS, 0)
    lacks = set()
    withdrawn = stalls = ended_waiting = discarded = cached = preempted_with_windows = 0
    for seed in range(SCENARIOS):
        requests, config, cost, layout = random_scenario(seed)
        trace = run(requests, config, cost, layout)
        for kind in trace.tables["events"]["event"]:
            seen[EVENT_KINDS[kind]] += 1
        if config.kv_groups and trace.tables["steps"]["preempted_seqs"].any():
            preempted_with_windows += 1
        plain = reference(requests, config, cost, layout)[2]
        withdrawn += plain.withdrawn
        stalls += plain.stalls
        ended_waiting += plain.ended_waiting
        discarded += int(trace.tables["steps"]["discarded_seqs"].sum())
        cached += int(trace.tables["requests"]["cached_tokens"].sum())
        lacks |= set(trace.tables["steps"]["head_lacks"].tolist())
    assert all(seen[kind] >= 20 for kind in ("preempted", "resumed", "rejected")), seen
    assert withdrawn >= 5
    assert stalls >= 20
    assert ended_waiting >= 2
    assert discarded >= 1000
    assert cached >= 1000
    assert preempted_with_windows >= 10
    of_earlier_engines = {"swapped", "batch_end"}
    assert {HEAD_LACKS[code] for code in lacks} == set(HEAD_LACKS) - of_earlier_engines
