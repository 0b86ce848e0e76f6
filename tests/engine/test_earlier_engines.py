"""What every scheduler owes the engine, tested unasked; closed forms of those before vLLM V1."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cost.pcie import HostLink
from kvsim.engine import schedulers
from kvsim.engine.allocators.contiguous import Contiguous
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.config import EngineConfig
from kvsim.engine.schedulers.faster_transformer import FasterTransformer
from kvsim.engine.schedulers.orca import Orca
from kvsim.engine.schedulers.sarathi import Sarathi
from kvsim.engine.schedulers.vllm_v0 import VllmV0
from kvsim.engine.swap_space import SwapSpace
from kvsim.errors import BrokenLawError
from kvsim.metrics.gaps import event_gaps, step_gaps
from kvsim.policy import policies_in
from kvsim.tables import EVENT_KINDS, HEAD_LACKS, OUTCOMES
from tests.engine.harness import BLOCK, LinearCost, request_table, run

CONFIG = EngineConfig(
    max_num_seqs=8,
    max_num_batched_tokens=96,
    max_model_len=96,
    num_gpu_blocks=20,
    enable_chunked_prefill=False,
    watermark=0.01,
)
COST = LinearCost(50, 3, 1)
SMALL_HOST = VllmV0(preemption="swap", swap_space_gib=8 * BLOCK.size_bytes / 2**30)
KINDS = [kind() for kind in policies_in(schedulers)]
MORE = [
    VllmV0(preemption="swap"),
    SMALL_HOST,
    VllmV0(prompts_apart=False),
    SMALL_HOST.model_copy(update={"prompts_apart": False}),
    Sarathi(chunk_size_tokens=32),
]
LAYOUTS = [
    Paged(),
    Contiguous(),
    Contiguous(reservation="oracle", placement="buddy"),
    Contiguous(reservation="oracle_pow2", placement="buddy"),
]
ENGINES = [
    (engine, layout)
    for engine in [*KINDS, *MORE]
    for layout in LAYOUTS
    if layout.kind in engine.layouts
]
SWAPPED_OUT, SWAPPED_IN = EVENT_KINDS.index("swapped_out"), EVENT_KINDS.index("swapped_in")
TIMED_OUT = OUTCOMES.index("timed_out")

every_engine = pytest.mark.parametrize(("engine", "layout"), ENGINES)


def test_the_package_has_these_schedulers():
    assert [policy.model_fields["kind"].default for policy in policies_in(schedulers)] == [
        "faster_transformer",
        "orca",
        "sarathi",
        "vllm",
        "vllm_v0",
    ]


@st.composite
def crowds(draw):
    """Requests that come close together, and how many of them fit at a time."""
    spread_ns = draw(st.sampled_from([0, 100, 3_000]))
    row = st.tuples(st.integers(0, spread_ns), st.integers(1, 95), st.integers(1, 60))
    rows = draw(st.lists(row, min_size=1, max_size=40))
    config = replace(
        CONFIG,
        num_gpu_blocks=draw(st.integers(7, 30)),
        max_num_seqs=draw(st.sampled_from([1, 3, 20])),
    )
    limits = [draw(st.sampled_from([0, 0, 30])) for _ in rows]
    return [(*row, limit) for row, limit in zip(sorted(rows), limits, strict=True)], config


@every_engine
@settings(max_examples=25, deadline=None)
@given(crowd=crowds())
def test_it_serves_whatever_comes_under_all_laws(engine, layout, crowd):
    rows, config = crowd
    if isinstance(layout, Contiguous):  # a buddy chunk of 128 slots is to take the longest
        config = replace(config, num_gpu_blocks=max(8, config.num_gpu_blocks))
    found = run(request_table(rows), config, COST, layout, scheduler=engine).tables
    requests = found["requests"]
    order = requests["request"].argsort()
    asked = [min(answer, limit or 96, 96 - prompt) for _, prompt, answer, limit in rows]
    assert requests["output_tokens"][order].tolist() == asked
    gaps_ns, counts = token_gaps(found["steps"], found["events"])
    assert (counts >= 0).all()
    assert counts.sum() == sum(asked) - len(asked)
    if engine.kind != "faster_transformer":  # its answers are kept back
        decoding_ns = (requests["finish_ns"] - requests["first_token_ns"]).sum()
        assert (gaps_ns * counts).sum() == decoding_ns
    if engine.kind in {"orca", "faster_transformer"}:
        assert not requests["preemptions"].any()


@every_engine
@settings(max_examples=15, deadline=None)
@given(crowd=crowds(), patience_ns=st.integers(1, 5_000))
def test_clients_may_give_up_at_any_time(engine, layout, crowd, patience_ns):
    rows, config = crowd
    patience = np.full(len(rows), patience_ns, dtype=np.int64)
    requests = replace(request_table(rows), timeout_ns=patience)
    found = run(requests, config, COST, layout, scheduler=engine).tables["requests"]
    late = found["outcome"] == TIMED_OUT
    assert (found["finish_ns"] - found["arrival_ns"] <= patience_ns).all()
    assert len(found["request"]) == len(rows)
    assert (found["finish_ns"][late] - found["arrival_ns"][late] == patience_ns).all()


def tables_of(rows, engine, layout=None, cost=COST, **changes):
    """Tables of a run with the usual settings but for the changes."""
    config = replace(CONFIG, **changes)
    return run(request_table(rows), config, cost, layout, scheduler=engine).tables


@every_engine
@settings(max_examples=20, deadline=None)
@given(crowd=crowds(), timeout_ns=st.sampled_from([0, 2_000]))
def test_what_it_plans_ahead_is_what_it_does_step_by_step(engine, layout, crowd, timeout_ns):
    rows, config = crowd
    timeouts = np.full(len(rows), timeout_ns, dtype=np.int64)
    requests = replace(request_table(rows), timeout_ns=timeouts)
    ahead, stepwise = (
        run(requests, config, COST, layout, scheduler=engine, plans_ahead=plans).tables
        for plans in (True, False)
    )
    for table, columns in ahead.items():
        for name, column in columns.items():
            np.testing.assert_array_equal(column, stepwise[table][name], f"{table}.{name}")


def token_gaps(steps, events):
    """All gaps between tokens in ns, and how many there are of each."""
    pairs = zip(step_gaps(steps, 0), event_gaps(events, 0), strict=True)
    return [np.concatenate(pair) for pair in pairs]


# Closed forms


def test_a_static_batch_of_equal_answers_lasts_as_long_as_its_steps():
    """Four prompts of 10 in one step, then 19 steps of four tokens with contexts 11 to 29."""
    rows = [(0, 10, 20, 0)] * 8
    found = tables_of(rows, FasterTransformer(), Contiguous(), num_gpu_blocks=4 * 96 // 16)
    prompts_ns = 50 + 40 * 3 + 40
    decodes_ns = sum(50 + 4 * 3 + 4 * context for context in range(11, 30))
    batch_ns = prompts_ns + decodes_ns
    assert found["requests"]["finish_ns"].tolist() == [batch_ns] * 4 + [2 * batch_ns] * 4
    assert len(found["steps"]["step"]) == 2 * 20


def test_in_a_static_batch_answers_are_returned_together_and_ended_rows_are_computed_on():
    """Answers of 2 and 30: 28 times a row of the first is computed, without attention."""
    found = tables_of([(0, 10, 2, 0), (0, 10, 30, 0)], FasterTransformer(), Contiguous())
    requests, steps = found["requests"], found["steps"]
    assert len(set(requests["finish_ns"].tolist())) == 1
    assert steps["discarded_seqs"].tolist() == [0, 0] + [1] * 28
    assert steps["decode_seqs"].tolist() == [0] + [2] * 29
    assert steps["decode_kv_tokens"].tolist() == [0, 22, *range(12, 40)]
    durations_ns = [50 + 60 + 20, 50 + 6 + 22, *(50 + 6 + context for context in range(12, 40))]
    assert steps["duration_ns"].tolist() == durations_ns


def test_a_static_batch_takes_nobody_in_until_it_ends():
    rows = [(0, 10, 30, 0), (1, 10, 1, 0)]
    found = tables_of(rows, FasterTransformer(), Contiguous())
    ends_ns = found["requests"]["finish_ns"]
    assert found["requests"]["admitted_ns"][1] == ends_ns[0]
    lacks = {HEAD_LACKS[code] for code in found["steps"]["head_lacks"][1:-1]}
    assert lacks == {"batch_end"}


@pytest.mark.parametrize("blocks", [18, 40, 55])
def test_orca_batches_as_many_as_reservations_of_the_longest_context_fit(blocks):
    rows = [(0, 20, 40, 0)] * 30
    found = tables_of(rows, Orca(), Contiguous(), num_gpu_blocks=blocks, max_num_seqs=30)
    assert found["steps"]["running_seqs"].max() == blocks * 16 // 96
    assert {HEAD_LACKS[code] for code in found["steps"]["head_lacks"]} >= {"kv_blocks"}


def test_orca_computes_whole_prompts_beside_decodes():
    found = tables_of([(0, 30, 9, 0), (200, 40, 5, 0)], Orca(), Contiguous())
    steps = found["steps"]
    mixed = (steps["prefill_seqs"] > 0) & (steps["decode_seqs"] > 0)
    assert steps["prefill_tokens"][mixed].tolist() == [40]
    assert not steps["paused_seqs"].any()


def test_in_v0_prompts_come_first_and_decodes_pause():
    """The gap of the first request around the prompt of the second is both steps together."""
    found = tables_of([(0, 30, 9, 0), (200, 40, 5, 0)], VllmV0())
    steps = found["steps"]
    assert not ((steps["prefill_seqs"] > 0) & (steps["decode_seqs"] > 0)).any()
    assert steps["paused_seqs"].tolist().count(1) == 1
    gaps_ns, counts = token_gaps(steps, found["events"])
    place = steps["paused_seqs"].tolist().index(1)
    longest_ns = steps["duration_ns"][place] + steps["duration_ns"][place + 1]
    assert max(gaps_ns[counts > 0]) == longest_ns


def test_prompts_may_run_beside_decodes_in_v0_as_in_orca():
    """Where memory never lacks, the two differ in nothing but the pool."""
    rows = [(50 * number, 10 + 7 * number % 31, 5 + number % 9, 0) for number in range(40)]
    together = tables_of(rows, VllmV0(prompts_apart=False), num_gpu_blocks=500)["steps"]
    orca = tables_of(rows, Orca(), Contiguous(), num_gpu_blocks=500)["steps"]
    assert ((together["prefill_seqs"] > 0) & (together["decode_seqs"] > 0)).any()
    assert not together["paused_seqs"].any()
    for name in ("start_ns", "duration_ns", "prefill_tokens", "decode_seqs", "decode_kv_tokens"):
        assert together[name].tolist() == orca[name].tolist()


def test_what_is_swapped_out_comes_back_and_its_copies_lengthen_the_steps():
    rows = [(0, 40, 50, 0)] * 4
    engine = VllmV0(preemption="swap", link=HostLink(launch_s=0, peak_fraction=0.1))
    found = tables_of(rows, engine, num_gpu_blocks=16)
    steps, events, requests = found["steps"], found["events"], found["requests"]
    out, back = (events["event"] == kind for kind in (SWAPPED_OUT, SWAPPED_IN))
    assert out.sum() == back.sum() == requests["preemptions"].sum() > 0
    assert sorted(events["tokens"][out]) == sorted(events["tokens"][back])
    assert not requests["recomputed_tokens"].any()
    copied_blocks = 2 * sum(-(-tokens // 16) for tokens in events["tokens"][out].tolist())
    assert steps["swap_ns"].sum() == 320 * copied_blocks
    computed_ns = 50 * len(steps["step"]) + 3 * (160 + 4 * 49)
    contexts = steps["decode_kv_tokens"].sum() + steps["prefill_kv_tokens"].sum()
    assert steps["duration_ns"].sum() == computed_ns + contexts + steps["swap_ns"].sum()
    waits = steps["swapped_seqs"] > 0
    assert (steps["prefill_seqs"][waits] == 0).all()


def test_with_room_for_nobody_on_the_host_it_recomputes():
    crowd = [(0, 40, 50, 0)] * 4
    nowhere, recomputing = (
        tables_of(crowd, engine, num_gpu_blocks=16)
        for engine in (VllmV0(preemption="swap", swap_space_gib=0), VllmV0())
    )
    for table, columns in nowhere.items():
        for name, column in columns.items():
            np.testing.assert_array_equal(column, recomputing[table][name], f"{table}.{name}")
    assert nowhere["requests"]["recomputed_tokens"].any()


@settings(max_examples=30, deadline=None)
@given(crowd=crowds())
def test_with_memory_to_spare_sarathi_is_what_v1_made_of_it(crowd):
    """Then neither watermark nor blocks taken ahead matter, and budgets are shared alike."""
    rows, config = crowd
    config = replace(config, num_gpu_blocks=5000, enable_chunked_prefill=True)
    budget = replace(config, max_num_scheduled_tokens=40)
    stall_free = run(
        request_table(rows), config, COST, scheduler=Sarathi(chunk_size_tokens=40)
    ).tables
    v1 = run(request_table(rows), budget, COST).tables
    for name in ("start_ns", "duration_ns", "prefill_tokens", "decode_seqs", "decode_kv_tokens"):
        assert stall_free["steps"][name].tolist() == v1["steps"][name].tolist()


def test_sarathi_never_stalls_a_decode():
    found = tables_of([(0, 30, 40, 0), (300, 90, 5, 0)], Sarathi(chunk_size_tokens=16))
    steps = found["steps"]
    assert (steps["decode_seqs"] + steps["prefill_tokens"]).max() == 30 - 14
    assert (steps["decode_seqs"][3:41] >= 1).all()
    assert not steps["paused_seqs"].any()


# The host's memory


def test_a_cpu_block_that_never_comes_back(monkeypatch):
    monkeypatch.setattr(SwapSpace, "take", lambda space, owner: space._owned.get(owner, 0))
    engine = VllmV0(preemption="swap")
    with pytest.raises(BrokenLawError, match="all CPU blocks come back"):
        tables_of([(0, 40, 50, 0)] * 4, engine, num_gpu_blocks=16)


def test_a_cpu_block_that_is_lost(monkeypatch):
    take = SwapSpace.take

    def lossy(space, owner):
        blocks = take(space, owner)
        space.free_blocks -= 1
        return blocks

    monkeypatch.setattr(SwapSpace, "take", lossy)
    with pytest.raises(BrokenLawError, match="a CPU block is lost"):
        tables_of([(0, 40, 50, 0)] * 4, VllmV0(preemption="swap"), num_gpu_blocks=16)


def test_the_swap_space_refuses_what_it_has_no_room_for():
    space = SwapSpace(5, 10.0)
    assert space.put(1, 3)
    assert not space.put(2, 3)
    with pytest.raises(ValueError, match="swapped out already"):
        space.put(1, 1)
    assert space.free_blocks == 2
    assert space.take(1) == 3
    with pytest.raises(KeyError):
        space.take(1)
    assert (space.free_blocks, space.copy_ns(3)) == (5, 30)
    space.check()
