"""Where the time of requests goes: known answers, oracles that walk step by step, exact sums."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from kvsim.cost.affine import AffineCost
from kvsim.engine.config import EngineConfig
from kvsim.engine.schedulers.vllm_v0 import VllmV0
from kvsim.metrics import StepCosts
from kvsim.metrics.phases import BAND, PHASES, QUANTILES, lengthened_ns, phase_times_ns, phases
from kvsim.simulate import step_shape
from kvsim.table_files import StoredTable, TableWriter
from kvsim.tables import EVENT_KINDS, OUTCOMES, STEPS
from tests.engine.harness import request_table, run

COST = AffineCost(fixed_ns=50, per_token_ns=3, per_seq_ns=7, per_context_token_ns=1)
FINISHED = OUTCOMES.index("finished")
STAMPS = ("arrival_ns", "queued_ns", "admitted_ns", "first_token_ns", "finish_ns")


def affine(steps) -> StepCosts:
    shape = step_shape(steps)
    return StepCosts(tuple(COST.parts_ns(shape).items()), *COST.work(shape))


def tenth_a_sequence(steps) -> StepCosts:
    """Price a step as 10 ns for each sequence."""
    price_ns = 10.0 * (steps["prefill_seqs"] + steps["decode_seqs"])
    return StepCosts([(SimpleNamespace(), price_ns)], price_ns, price_ns)


def finished(requests):
    """Return the finished requests in the order of their numbers."""
    rows = np.flatnonzero(requests["outcome"] == FINISHED)
    rows = rows[np.argsort(requests["request"][rows])]
    return {name: column[rows] for name, column in requests.items()}


@pytest.fixture
def by_hand(table):
    """Two replicas. On the first, request 0 decodes through prompts, and is preempted in between.

    Request 1 loses its cache during its prompt, request 2 when its first token is on its way.
    """
    stamps = [
        (0, 5, 10, 30, 200),
        (0, 0, 20, 90, 90),
        (10, 10, 20, 40, 75),
    ]
    requests = [
        {"request": number, "prompt_tokens": 50, "output_tokens": 5, "replica": number // 2}
        | dict(zip(STAMPS, times, strict=True))
        for number, times in enumerate(stamps)
    ]
    # replica, start, duration, prefill_seqs, decode_seqs, swap
    rows = [
        (0, 10, 20, 1, 0, 0),
        (0, 30, 25, 1, 1, 0),  # 15 beyond 10 for one decoding sequence
        (0, 55, 10, 0, 1, 0),
        (0, 65, 80, 1, 0, 0),  # request 0 is out: the gap ends at 165
        (0, 145, 20, 1, 0, 0),
        (0, 165, 12, 1, 1, 2),  # 2 are a copy, so nothing beyond 10
        (0, 177, 23, 2, 1, 0),  # 13
        (1, 20, 20, 1, 0, 0),
        (1, 40, 35, 3, 2, 0),  # 15 beyond 20
    ]
    names = ("replica", "start_ns", "duration_ns", "prefill_seqs", "decode_seqs", "swap_ns")
    events = [
        {"request": 1, "time_ns": 25, "event": "preempted", "tokens": 20},
        {"request": 1, "time_ns": 60, "event": "preempted", "tokens": 10},
        {"request": 0, "time_ns": 65, "event": "preempted", "tokens": 52},
        {"request": 2, "time_ns": 35, "event": "preempted", "tokens": 50},
        {"request": 0, "time_ns": 165, "event": "resumed", "tokens": 52, "gap_ns": 100},
        {"request": 7, "time_ns": 100, "event": "resumed", "tokens": 52, "gap_ns": 70},
    ]
    steps = [dict(zip(names, row, strict=True)) for row in rows]
    return table("requests", requests), table("steps", steps), table("events", events)


def test_a_run_by_hand(by_hand):
    requests, steps, events = by_hand
    times_ns = phase_times_ns(requests, steps, events, tenth_a_sequence)
    assert {name: times_ns[name].tolist() for name in PHASES} == {
        "front_end": [5, 0, 0],
        "queue": [5, 20, 10],
        "prefill": [20, 5, 20],
        "decode": [42, 0, 20],
        "stalled": [28, 0, 15],
        "preempted": [100, 65, 0],
    }


def test_without_costs_stalls_are_unknown_and_in_the_decoding(by_hand, context):
    requests, steps, events = by_hand
    times_ns = phase_times_ns(requests, steps, events, None)
    assert times_ns["stalled"] is None
    assert times_ns["decode"].tolist() == [70, 0, 35]
    found = phases(requests, steps, events, context())
    assert found["p50"]["stalled_s"] is None
    known = [found["p50"][f"{name}_s"] or 0 for name in PHASES]
    assert sum(known) == pytest.approx(found["p50"]["e2e_s"], rel=1e-12)


def test_prompts_never_shorten_a_step(table):
    rows = [{"duration_ns": 5, "decode_seqs": 1, "prefill_seqs": 1}]
    assert lengthened_ns(table("steps", rows), tenth_a_sequence).tolist() == [0]


def many(table, latencies_ns, **changes):
    """Requests that are nothing but queued, each for its latency."""
    rows = [
        {"request": number, "queued_ns": 0, "admitted_ns": latency, "first_token_ns": latency,
         "finish_ns": latency, "output_tokens": 1} | changes
        for number, latency in enumerate(latencies_ns)
    ]  # fmt: skip
    return table("requests", rows), table("steps", []), table("events", [])


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11, 41, 1000])
def test_the_mean_is_over_a_small_band_of_ranks(table, context, count):
    latencies_ns = np.random.default_rng(count).permutation(count) * 1_000
    found = phases(*many(table, latencies_ns.tolist()), context())
    for name, quantile in QUANTILES.items():
        reach, middle = max(BAND * count, 0.5), quantile * (count - 1)
        band = [rank for rank in range(count) if abs(rank - middle) <= reach]
        assert found[name]["requests"] == len(band) >= 1
        assert found[name]["queue_s"] == pytest.approx(np.mean(band) * 1e-6, rel=1e-12)
    assert found["p50"]["e2e_s"] == pytest.approx(np.median(latencies_ns) / 1e9, rel=1e-12)


def test_only_finished_requests_after_the_warm_up_count(table, context):
    for outcome in ("rejected", "timed_out", "unfinished"):
        assert phases(*many(table, [1, 2], outcome=outcome), context()) == {}
    assert phases(*many(table, [1, 2], arrival_ns=0), context(warmup_ns=1)) == {}
    assert phases(*many(table, []), context()) == {}


def crowd(seed: int, async_scheduling: bool = False, prompts: int = 60):
    """Requests for a pool so small that they are preempted, also in the midst of a prompt."""
    rng = np.random.default_rng(seed)
    count = 60
    rows = np.stack(
        [
            np.sort(rng.integers(0, 20_000, count)),
            rng.integers(1, prompts, count),
            rng.integers(1, 35, count),
            np.zeros(count, dtype=np.int64),
        ],
        axis=1,
    )
    config = EngineConfig(
        max_num_seqs=8,
        max_num_batched_tokens=int(rng.choice([24, 96])),
        max_model_len=96,
        num_gpu_blocks=int(rng.integers(25, 60)),
        block_size=4,
        enable_chunked_prefill=True,
        scheduler_reserve_full_isl=bool(rng.random() < 0.5),
        async_scheduling=async_scheduling,
    )
    return request_table(rows.tolist(), 20_000), config


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_stalls_are_those_of_the_plans(seed, async_scheduling):
    """The oracle knows from each plan who decodes beside which chunks; the tables don't tell."""
    requests, config = crowd(seed, async_scheduling)
    trace = run(requests, config, COST, spy=True)
    answers, prompts = requests.output_tokens.tolist(), requests.prompt_tokens.tolist()
    known_tokens, decoding = dict(enumerate(prompts)), set()
    stalled_ns: Counter[int] = Counter()
    for note in trace.plans:
        decoding -= set(note.preempted)
        chunks = [entry for entry in note.scheduled if entry[0] not in decoding]
        more_ns = sum(COST.per_seq_ns + COST.per_token_ns * new for _, new, _ in chunks)
        more_ns += sum(COST.per_context_token_ns * (new + before) for _, new, before in chunks)
        for number, new, before in note.scheduled:
            if known_tokens[number] >= prompts[number] + answers[number]:
                continue  # its answer is complete, but the scheduler doesn't know yet
            if number in decoding:
                stalled_ns[number] += more_ns
            if before + new == known_tokens[number]:
                known_tokens[number] += 1
                decoding.add(number)
    ended = finished(trace.tables["requests"])
    times_ns = phase_times_ns(ended, trace.tables["steps"], trace.tables["events"], affine)
    assert times_ns["stalled"].tolist() == [stalled_ns[each] for each in ended["request"].tolist()]
    assert times_ns["stalled"].sum() > 0


def walked(requests, steps, events, row: int) -> int:
    """Return for how long a request was stalled, looking at each step by itself."""
    total_ns, first_ns, finish_ns = 0, requests["first_token_ns"][row], requests["finish_ns"][row]
    back = [EVENT_KINDS.index(kind) for kind in ("resumed", "swapped_in")]
    mine = np.isin(events["event"], back) & (events["request"] == requests["request"][row])
    gaps = [(end - gap, end) for end, gap in
            zip(events["time_ns"][mine], events["gap_ns"][mine], strict=True)]  # fmt: skip
    for place in np.flatnonzero(steps["replica"] == requests["replica"][row]):
        end_ns = steps["start_ns"][place] + steps["duration_ns"][place]
        inside = first_ns < end_ns <= finish_ns
        if not inside or any(begin < end_ns <= end for begin, end in gaps):
            continue
        if steps["prefill_seqs"][place]:
            step = {name: column[place : place + 1] for name, column in steps.items()}
            total_ns += int(lengthened_ns(step, affine)[0])
    return total_ns


@pytest.mark.parametrize(
    "engine", [None, VllmV0(), VllmV0(preemption="swap"), VllmV0(prompts_apart=False)]
)
def test_phases_add_up_whatever_the_engine(engine):
    requests, config = crowd(3)
    if engine is not None:
        config = EngineConfig(8, 96, 96, 40, 4, enable_chunked_prefill=False)
    trace = run(requests, config, COST, replicas=2, scheduler=engine)
    steps, events = trace.tables["steps"], trace.tables["events"]
    ended = finished(trace.tables["requests"])
    times_ns = phase_times_ns(ended, steps, events, affine)
    assert len(ended["request"]) == 60
    assert (sum(times_ns.values()) == ended["finish_ns"] - ended["arrival_ns"]).all()
    assert all((values >= 0).all() for values in times_ns.values())
    assert times_ns["preempted"].sum() > 0
    expected = [walked(ended, steps, events, row) for row in range(60)]
    assert times_ns["stalled"].tolist() == expected
    assert sum(expected) > 0


def test_a_prompt_that_is_preempted_counts_until_its_first_token():
    requests, config = crowd(1)
    trace = run(requests, config, COST)
    events = trace.tables["events"]
    ended = finished(trace.tables["requests"])
    lost = events["event"] == EVENT_KINDS.index("preempted")
    first_ns = dict(zip(ended["request"].tolist(), ended["first_token_ns"].tolist(), strict=True))
    losses = (events[name][lost].tolist() for name in ("request", "tokens", "time_ns"))
    early = {
        number
        for number, tokens, time_ns in zip(*losses, strict=True)
        if tokens < requests.prompt_tokens[number] and time_ns < first_ns[number]
    }
    assert early
    times_ns = phase_times_ns(ended, trace.tables["steps"], events, affine)
    whole_ns = ended["first_token_ns"] - ended["admitted_ns"]
    cut = set(ended["request"][times_ns["prefill"] < whole_ns].tolist())
    assert cut == early


@pytest.mark.parametrize("until_ns", [0, 1, 900, 9_000])
def test_a_run_that_is_cut(until_ns, context):
    requests, config = crowd(2)
    trace = run(requests, config, COST, until_ns=until_ns)
    tables = [trace.tables[name] for name in ("requests", "steps", "events")]
    found = phases(*tables, context(end_ns=until_ns, costs_of=affine))
    assert bool(found) == bool((tables[0]["outcome"] == FINISHED).any())
    for part in found.values():
        assert sum(part[f"{name}_s"] for name in PHASES) == pytest.approx(part["e2e_s"], rel=1e-12)


@pytest.mark.parametrize("rows_in_a_chunk", [1, 7, 100])
def test_steps_may_come_in_any_order_and_any_chunks(rows_in_a_chunk):
    requests, config = crowd(4)
    tables = run(requests, config, COST, replicas=3).tables
    rows = np.stack(list(tables["steps"].values()), axis=1)
    rows = np.random.default_rng(rows_in_a_chunk).permutation(rows)

    class Chunked(StoredTable):
        def __init__(self) -> None:
            """Hold nothing: chunks come from memory."""

        def chunks(self, names):
            for start in range(0, len(rows), rows_in_a_chunk):
                part = rows[start : start + rows_in_a_chunk]
                yield {column.name: part[:, at] for at, column in enumerate(STEPS)}

    ended, events = finished(tables["requests"]), tables["events"]
    expected = phase_times_ns(ended, tables["steps"], events, affine)
    found = phase_times_ns(ended, Chunked(), events, affine)
    for name in PHASES:
        np.testing.assert_array_equal(found[name], expected[name])


def test_tables_on_disk_tell_the_same(tmp_path, context):
    requests, config = crowd(5)
    tables = run(requests, config, COST, replicas=2).tables
    writer = TableWriter(tmp_path / "steps.parquet", STEPS)
    rows = np.stack([tables["steps"][column.name] for column in STEPS], axis=1)
    for start in range(0, len(rows), 500):
        writer.write("base", rows[start : start + 500])
    writer.close()
    stored = StoredTable(tmp_path / "steps.parquet", STEPS, "base")
    settings = context(costs_of=affine)
    expected = phases(tables["requests"], tables["steps"], tables["events"], settings)
    assert phases(tables["requests"], stored, tables["events"], settings) == expected
