"""vLLM V0 shares blocks: samples, beams and declared prefixes, step by step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cost.front_end import FrontEnd
from kvsim.cost.pcie import HostLink
from kvsim.engine.allocators import PoolShape
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.config import EngineConfig
from kvsim.engine.request import Request
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.engine.routers.shared_queue import SharedQueue
from kvsim.engine.schedulers._kinship import Kinship
from kvsim.engine.schedulers.vllm_v0 import VllmV0
from kvsim.errors import InputError
from kvsim.tables import EVENT_KINDS, OUTCOMES
from kvsim.units import GIB
from kvsim.workload.requests import Beams
from tests.engine.harness import BLOCK, LinearCost, request_table, run, segments_of
from tests.engine.plain_v0 import COMPARED, Group, PlainV0

FINISHED, REJECTED = (OUTCOMES.index(name) for name in ("finished", "rejected"))
COST = LinearCost(7, 2, 1)
BLOCK_SIZE = 4
CONFIG = EngineConfig(
    max_num_seqs=16,
    max_num_batched_tokens=128,
    max_model_len=128,
    num_gpu_blocks=200,
    block_size=BLOCK_SIZE,
    watermark=0.01,
    enable_chunked_prefill=False,
)
# Any group drawn below fits alone, beside the prefixes of two others.
TIGHT = replace(CONFIG, num_gpu_blocks=40, watermark=0.05)


def table_of(groups):
    """The request table of plain groups: a row a sequence."""
    rows = [(g.arrival, g.prompt, answer, 0) for g in groups for answer in g.answers]
    numbers = [number for number, g in enumerate(groups) for _ in g.answers]
    table = replace(request_table(rows), group=np.array(numbers))
    if groups[0].parents is not None:
        first = np.cumsum([0, *(len(g.parents) for g in groups)])
        parents = [choice for g in groups for choice in g.parents]
        width = len(groups[0].answers)
        shaped = np.array(parents, dtype=np.uint8).reshape(-1, width)
        table = replace(table, beams=Beams(width, first, shaped))
    if any(g.prefix for g in groups):
        prefixes = [g.prefix or (0, 0) for g in groups for _ in g.answers]
        prompts = [
            [(seed, tokens), (1000 + row, prompt - tokens)]
            for row, ((seed, tokens), (_, prompt, _, _)) in enumerate(
                zip(prefixes, rows, strict=True)
            )
        ]
        table = replace(
            table,
            segments=segments_of(prompts, list(range(-len(rows), 0))),
            prefix_tokens=np.array([tokens for _, tokens in prefixes]),
        )
    return table


def both(groups, config, policy):
    """The steps of the engine and of the plain one, as lists of tuples."""
    trace = run(table_of(groups), config, COST, scheduler=policy)
    steps = {name: column.tolist() for name, column in trace.tables["steps"].items()}
    steps["held"] = steps["kv_held_tokens"]
    parts = (steps[f"kv_{part}_tokens"] for part in ("held", "to_come", "inside"))
    steps["owned"] = [sum(row) for row in zip(*parts, strict=True)]
    steps["shared"] = steps["shared_kv_tokens"]
    swap_blocks = int(policy.swap_space_gib * GIB) // BLOCK.size_bytes
    swap_ns = HostLink().copy_ns(BLOCK.size_bytes, BLOCK.tensors, BLOCK.link_bytes_per_s)
    plain = PlainV0(groups, config, COST, swap_blocks, swap_ns, policy).run()
    rows = zip(*(steps[name] for name in COMPARED), strict=True)
    found = [dict(zip(COMPARED, row, strict=True)) for row in rows]
    return found, plain, trace


arrivals = st.integers(0, 600)


@st.composite
def sampled(draw):
    samples = draw(st.integers(1, 4))
    answers = st.lists(st.integers(1, 16), min_size=samples, max_size=samples)
    group = st.builds(Group, arrivals, st.integers(1, 24), answers)
    return sorted(draw(st.lists(group, min_size=1, max_size=10)), key=lambda g: g.arrival)


@st.composite
def searched(draw):
    width = draw(st.integers(2, 4))
    choice = st.lists(st.integers(0, width - 1), min_size=width, max_size=width)
    groups = []
    for _ in range(draw(st.integers(1, 8))):
        answer = draw(st.integers(1, 16))
        choices = max(0, answer - 2)
        parents = draw(st.lists(choice, min_size=choices, max_size=choices))
        group = Group(draw(arrivals), draw(st.integers(1, 24)), [answer] * width, parents)
        groups.append(group)
    return sorted(groups, key=lambda g: g.arrival)


@st.composite
def prefixed(draw):
    lengths = draw(st.lists(st.integers(1, 18), min_size=1, max_size=2))
    groups = draw(sampled())
    for group in groups:
        number = draw(st.integers(0, len(lengths)))
        if number < len(lengths):
            group.prefix = (1 + number, lengths[number])
            group.prompt += lengths[number]
    return groups


@pytest.mark.parametrize("config", [CONFIG, TIGHT], ids=["ample", "tight"])
@pytest.mark.parametrize("preemption", ["auto", "swap"])
@settings(max_examples=100)
@given(groups=sampled() | searched() | prefixed(), declared=st.booleans(), apart=st.booleans())
def test_the_engine_does_as_the_plain_one(config, preemption, groups, declared, apart):
    policy = VllmV0(preemption=preemption, declared_prefixes=declared, prompts_apart=apart)
    found, plain, _ = both(groups, config, policy)
    assert found == plain


# Closed forms


def steps_of(groups, policy=None, config=CONFIG, **options):
    trace = run(table_of(groups), config, COST, scheduler=policy or VllmV0(), **options)
    return {name: column.tolist() for name, column in trace.tables["steps"].items()}, trace


@settings(max_examples=25)
@given(samples=st.integers(1, 6), prompt=st.integers(1, 40), answer=st.integers(1, 30))
def test_equal_samples_share_the_full_blocks_of_their_prompt(samples, prompt, answer):
    """In decode step j each has ceil((prompt + j) / B) blocks, of which floor(prompt / B) are
    shared; in the step of the prompt, all are."""
    steps, trace = steps_of([Group(0, prompt, [answer] * samples)])
    blocks = [-(-prompt // BLOCK_SIZE)]
    shared = [(samples - 1) * blocks[0]]
    for written in range(1, answer):
        blocks.append(-(-(prompt + written) // BLOCK_SIZE))
        shared.append((samples - 1) * (prompt // BLOCK_SIZE))
    assert steps["shared_kv_tokens"] == [BLOCK_SIZE * each for each in shared]
    taken = [capacity_taken(steps, step) for step in range(answer)]
    assert taken == [
        BLOCK_SIZE * (samples * own - both) for own, both in zip(blocks, shared, strict=True)
    ]
    assert steps["prefill_tokens"] == [prompt] + [0] * (answer - 1)
    rows = trace.tables["requests"]
    assert sorted(rows["cached_tokens"].tolist()) == sorted([0] + [prompt] * (samples - 1))


def capacity_taken(steps, step):
    return sum(steps[f"kv_{part}_tokens"][step] for part in ("held", "to_come", "inside"))


def test_two_beams_share_all_but_what_came_since_their_last_common_parent():
    """By hand, blocks of 4, a prompt of 6: B dies at the second choice, A forks; both go on."""
    own, all_from_a = [0, 1], [0, 0]
    groups = [Group(0, 6, [9, 9], [own, all_from_a, own, own, own, own, own])]
    steps, _ = steps_of(groups)
    # written: 0 (prompt), 1, 2, 3, ... tokens of the answer; the fork is before the third.
    assert steps["shared_kv_tokens"] == [8, 4, 4, 8, 8, 8, 8, 8, 8]
    # 6 tokens: 2 blocks. 7, 8: one shared, 2 own last ones. 9: two shared, the third own.
    assert [capacity_taken(steps, step) for step in range(9)] == [8, 12, 12, 16, 16, 16, 16, 24, 24]


def test_beams_that_always_come_from_one_differ_in_their_last_block_alone():
    width, prompt, answer = 5, 11, 40
    groups = [Group(0, prompt, [answer] * width, [[0] * width] * (answer - 2))]
    steps, _ = steps_of(groups)
    for written in range(2, answer):
        full = (prompt + written - 1) // BLOCK_SIZE  # before the last token
        assert steps["shared_kv_tokens"][written] == (width - 1) * full * BLOCK_SIZE


def test_beams_that_never_die_are_samples():
    width = 4
    beams = [Group(0, 9, [20] * width, [list(range(width))] * 18)]
    searched, _ = steps_of(beams)
    samples, _ = steps_of([Group(0, 9, [20] * width)])
    assert searched == samples


# Declared prefixes


def with_prefix(count, prefix, own, answer, gap):
    return [
        Group(number * gap, prefix + own, [answer], prefix=(1, prefix)) for number in range(count)
    ]


def test_a_declared_prefix_is_computed_once_and_stays():
    groups = with_prefix(count=7, prefix=18, own=5, answer=6, gap=10_000)  # one after the other
    steps, trace = steps_of(groups, VllmV0(declared_prefixes=True))
    assert sum(steps["prefill_tokens"]) == 18 + 7 * 5
    assert sorted(trace.tables["requests"]["cached_tokens"].tolist()) == [0] + [18] * 6
    # 5 blocks stay, the fifth partly filled: each request shares 4 and copies that one.
    first = steps["prefill_tokens"].index(5)
    assert capacity_taken(steps, first) == (5 + 2) * BLOCK_SIZE
    assert steps["shared_kv_tokens"][first] == (6 - 7) * BLOCK_SIZE  # alone it needs 6 blocks
    plainly, _ = steps_of(groups, VllmV0())
    assert sum(plainly["prefill_tokens"]) == 7 * 23
    assert max(plainly["shared_kv_tokens"]) == 0


def test_many_at_once_share_a_declared_prefix():
    """Ten requests: nine times the 4 full blocks, less the copy of the fifth, which stays."""
    groups = with_prefix(count=10, prefix=18, own=2, answer=8, gap=0)
    config = replace(CONFIG, max_num_batched_tokens=256)
    steps, _ = steps_of(groups, VllmV0(declared_prefixes=True), config)
    together = steps["running_seqs"].index(10)
    assert steps["shared_kv_tokens"][together] == (9 * 4 - 1) * BLOCK_SIZE


def test_prefixes_that_fill_the_cache_are_told_of():
    groups = [Group(number * 10_000, 60, [5], prefix=(number, 50)) for number in range(3)]
    with pytest.raises(InputError, match="declared prefixes"):
        steps_of(groups, VllmV0(declared_prefixes=True), TIGHT)


# Groups as one request


def test_a_group_that_gives_way_is_swapped_whole_and_comes_back_sharing():
    groups = [Group(0, 40, [32] * 3), Group(1, 40, [32] * 3)]
    steps, trace = steps_of(groups, config=TIGHT)
    events = trace.tables["events"]
    kinds = [EVENT_KINDS[kind] for kind in events["event"].tolist()]
    assert kinds.count("swapped_out") == kinds.count("swapped_in") == 3
    assert "preempted" not in kinds
    assert set(steps["swapped_seqs"]) == {0, 3}
    # 10 full blocks of the prompt are shared by three, before and after.
    alone = steps["swapped_seqs"].index(3)
    assert steps["shared_kv_tokens"][alone - 1] == 2 * 2 * 10 * BLOCK_SIZE
    assert steps["shared_kv_tokens"][alone] == 2 * 10 * BLOCK_SIZE
    assert trace.tables["requests"]["recomputed_tokens"].sum() == 0


def test_the_last_sample_of_a_group_is_alone_and_recomputed():
    groups = [Group(0, 40, [60]), Group(1, 40, [2, 2, 60])]
    _, trace = steps_of(groups, config=TIGHT)
    kinds = [EVENT_KINDS[kind] for kind in trace.tables["events"]["event"].tolist()]
    assert [kind for kind in kinds if kind != "delayed"] == ["preempted", "resumed"]
    assert trace.tables["requests"]["recomputed_tokens"].sum() > 0


def test_a_group_that_can_never_go_on_is_told_of():
    with pytest.raises(InputError, match="too small for a group"):
        steps_of([Group(0, 10, [80] * 4)], config=TIGHT)


def test_a_group_without_room_on_the_host_is_told_of():
    groups = [Group(0, 40, [32] * 3), Group(1, 40, [32] * 3)]
    with pytest.raises(InputError, match="swap space is full"):
        steps_of(groups, VllmV0(swap_space_gib=0), TIGHT)


@settings(max_examples=40)
@given(groups=sampled() | searched(), replicas=st.integers(1, 3), patience=st.integers(20, 3_000))
@pytest.mark.parametrize("routing", [RoundRobin(), SharedQueue()], ids=["apart", "one_queue"])
def test_clients_may_leave_at_any_time(routing, groups, replicas, patience):
    """Whatever groups hold when their clients go comes back: the laws of the run say so."""
    table = table_of(groups)
    table = replace(table, timeout_ns=np.full(len(table), patience))
    trace = run(table, TIGHT, COST, replicas=replicas, routing=routing, scheduler=VllmV0())
    rows = trace.tables["requests"]
    assert len(rows["request"]) == len(table)
    if routing.kind != "shared_queue":  # there, the last of a group may move
        for group in range(len(groups)):
            assert len(set(rows["replica"][rows["group"] == group].tolist())) == 1


def test_a_front_end_takes_a_group_for_one_request():
    front_end = FrontEnd(request_s=1e-6, busy_s=5e-7, per_prompt_token_s=1e-8)
    groups = [Group(0, 10, [4] * 3), Group(0, 20, [4] * 3)]
    _, trace = steps_of(groups, front_end=front_end)
    rows = trace.tables["requests"]
    queued = {group: set(rows["queued_ns"][rows["group"] == group].tolist()) for group in range(2)}
    assert all(len(instants) == 1 for instants in queued.values())
    assert queued[1].pop() > queued[0].pop()


def test_a_group_is_rejected_as_a_whole():
    """One answer may be too long for an empty cache; then the prompt isn't answered at all."""
    table = table_of([Group(0, 20, [5, 5]), Group(0, 20, [5, 5])])
    table = replace(table, max_tokens=np.array([5, 108, 5, 5]))
    trace = run(table, replace(TIGHT, num_gpu_blocks=12), COST, scheduler=VllmV0())
    rows = trace.tables["requests"]
    outcomes = dict(zip(rows["request"].tolist(), rows["outcome"].tolist(), strict=True))
    assert outcomes == {0: REJECTED, 1: REJECTED, 2: FINISHED, 3: FINISHED}


@settings(max_examples=60)
@given(
    prefix=st.integers(1, 20),
    owns=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    samples=st.integers(1, 3),
)
def test_a_start_takes_the_blocks_that_it_was_said_to_take(prefix, owns, samples):
    pool = PagedPool(PoolShape(200, BLOCK_SIZE, 128))
    kinship = Kinship(pool, declared_prefixes=True)
    for number, own in enumerate(owns):
        group = [Request(10 * number + at, number, 0, prefix + own, 5) for at in range(samples)]
        for request in group:
            request.prefix, request.prefix_tokens = 7, prefix
            request.samples, request.kin = samples, group
        blocks, before = kinship.blocks_to_start(group[0]), pool.free_tokens
        assert kinship.start(group[0]) == (prefix if number else 0)
        assert before - pool.free_tokens == blocks * BLOCK_SIZE
        pool.check()


def test_beams_that_pause_near_their_end_keep_their_accounts():
    """They share a last block, of which the slots that stay empty are counted once at most."""
    beams = Group(0, 5, [7] * 4, [[0] * 4] * 5)
    others = [Group(30 * number, 3, [1] * 4, []) for number in range(1, 30)]
    steps, _ = steps_of([beams, *others])
    assert sum(paused > 0 for paused in steps["paused_seqs"]) >= 5
    assert min(steps["kv_to_come_tokens"]) >= 0
