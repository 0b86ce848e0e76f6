import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.allocators import PoolShape, Shortage
from kvsim.engine.allocators.paged import Paged, PagedPool

RUNS = json.loads((Path(__file__).parent / "vllm_block_ids.json").read_text())["runs"]
ANY = SimpleNamespace(prompt_tokens=1, max_tokens=1)


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_block_ids_and_free_queue_are_those_of_vllm_after_every_step(run):
    pool = PagedPool(PoolShape(run["num_gpu_blocks"], run["block_size"], 1024))
    running = set()
    for scheduled, preempted, finished, block_tables, free_queue in run["steps"]:
        victims = list(preempted)
        for seq, tokens in scheduled:
            if seq not in running:
                assert pool.allocate(ANY, seq, tokens)
                running.add(seq)
                continue
            while not pool.append(seq, tokens):
                pool.free(victims[0])
                running.remove(victims.pop(0))
        for seq in victims:  # its own victim: not scheduled
            pool.free(seq)
            running.remove(seq)
        assert {str(seq): list(pool.block_table(seq)) for seq in running} == block_tables
        for seq in finished:
            pool.free(seq)
            running.remove(seq)
        assert list(pool.free_queue()) == free_queue
    pool.check()


def test_the_recorded_runs_preempt():
    assert sum(len(step[1]) for run in RUNS for step in run["steps"]) > 0


def test_a_sequence_of_nine_blocks_is_reused_from_its_tail():
    pool = PagedPool(PoolShape(20, 16, 4096))
    pool.allocate(ANY, 0, 9 * 16)
    pool.free(0)
    assert pool.free_queue()[:10] == (9, 8, 7, 6, 5, 4, 3, 2, 1, 10)


def test_null_block_is_never_handed_out():
    with_null = Paged().build(PoolShape(4, 16, 4096))
    without = Paged(null_block=False).build(PoolShape(4, 16, 4096))
    assert (with_null.capacity_tokens, without.capacity_tokens) == (48, 64)
    assert with_null.allocate(ANY, 0, 48)
    assert [with_null.slot(0, position) for position in (0, 47)] == [16, 63]
    assert not with_null.allocate(ANY, 1, 1)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "fits"),
    [(32, 33, True), (32, 34, False), (64, 1, True), (65, 1, False), (1, 4000, False)],
)
def test_the_last_output_token_needs_no_slot(prompt_tokens, max_tokens, fits):
    pool = PagedPool(PoolShape(5, 16, 4096))  # 4 blocks beside the null block: 64 slots
    request = SimpleNamespace(prompt_tokens=prompt_tokens, max_tokens=max_tokens)
    assert pool.can_ever_fit(request) is fits


def test_the_context_length_caps_what_a_request_can_need():
    pool = PagedPool(PoolShape(5, 16, max_model_len_tokens=65))
    assert pool.can_ever_fit(SimpleNamespace(prompt_tokens=60, max_tokens=4000))
    assert pool.shortage(ANY, 1000, idle=True) == Shortage.MEMORY  # 65 tokens: 5 blocks
    pool = PagedPool(PoolShape(6, 16, max_model_len_tokens=65))
    assert pool.shortage(ANY, 1000, idle=True) == Shortage.NONE


def test_the_watermark_is_kept_back_unless_idle_and_only_at_admission():
    pool = PagedPool(
        PoolShape(num_gpu_blocks=20, block_size_tokens=16, max_model_len_tokens=4096, watermark=0.2)
    )  # int(0.2 * 20) = 4 of 19 usable blocks
    assert pool.shortage(ANY, 15 * 16, idle=False) == Shortage.NONE
    assert pool.shortage(ANY, 16 * 16, idle=False) == Shortage.WATERMARK
    assert pool.shortage(ANY, 20 * 16, idle=False) == Shortage.MEMORY
    assert pool.shortage(ANY, 19 * 16, idle=True) == Shortage.NONE
    assert pool.allocate(ANY, 0, 18 * 16)
    assert pool.append(0, 16)
    assert not pool.append(0, 16)


@given(st.integers(1, 200), st.integers(0, 200), st.integers(1, 32))
def test_asking_for_a_block_when_the_table_is_full_equals_asking_token_by_token(
    first, more, block_size
):
    shape = PoolShape(500, block_size, 4096)
    plain, sparing = PagedPool(shape), PagedPool(shape)
    plain.allocate(ANY, 0, first)
    sparing.allocate(ANY, 0, first)
    for written in range(first, first + more):
        assert plain.append(0, 1)
        if written == sparing.slots_tokens(0):
            assert sparing.append(0, sparing.growth_tokens)
        assert sparing.block_table(0) == plain.block_table(0)
    sparing.check()


def test_mistakes_of_the_caller_are_refused():
    pool = PagedPool(PoolShape(20, 16, 4096))
    pool.allocate(ANY, 0, 20)
    with pytest.raises(ValueError, match="owns slots already"):
        pool.allocate(ANY, 0, 20)
    with pytest.raises(ValueError, match="owns slots already"):
        pool.fork(0, 0)
    with pytest.raises(KeyError):
        pool.fork(7, 8)
    with pytest.raises(KeyError):
        pool.free(7)
    for position in (-1, 32):
        with pytest.raises(IndexError):
            pool.slot(0, position)


@pytest.mark.parametrize(
    ("damage", "law"),
    [
        (lambda pool: pool._free_blocks.append(1), "owned and free"),
        (lambda pool: pool._free_blocks.pop(), "lost"),
        (lambda pool: pool._co_owners.update({1: 1}), "reference counts"),
        (lambda pool: pool._spare.update({0: 16}), "longer or shorter"),
        (lambda pool: setattr(pool, "taken_tokens", 0), "taken"),
        (lambda pool: setattr(pool, "free_tokens", 0), "free"),
    ],
)
def test_check_notices_damage(damage, law):
    pool = PagedPool(PoolShape(20, 16, 4096))
    pool.allocate(ANY, 0, 20)
    pool.check()
    damage(pool)
    with pytest.raises(AssertionError, match=law):
        pool.check()
