"""The examples by which the field explains KV-cache layouts, from the allocators' own books."""

from types import SimpleNamespace

import pytest

from kvsim.engine.allocators import PoolShape
from kvsim.engine.allocators.contiguous import Contiguous
from kvsim.engine.allocators.paged import PagedPool


def paged(num_gpu_blocks, block_size_tokens):
    return PagedPool(PoolShape(num_gpu_blocks, block_size_tokens, 4096), null_block=False)


def request(prompt_tokens=1, max_tokens=1):
    return SimpleNamespace(prompt_tokens=prompt_tokens, max_tokens=max_tokens)


def test_two_of_ten_blocks_are_the_first_two():
    pool = paged(10, 4)
    assert pool.allocate(request(), 0, 8)
    assert pool.block_table(0) == (0, 1)
    assert pool.free_tokens == 8 * 4
    assert pool.free_queue() == tuple(range(2, 10))


def test_the_table_7_3_maps_positions_to_slots():
    pool = paged(10, 4)
    for seq in range(10):
        assert pool.allocate(request(), seq, 4)
    pool.free(3)
    pool.free(7)
    assert pool.allocate(request(), 10, 6)
    assert pool.block_table(10) == (7, 3)
    assert [pool.slot(10, position) for position in range(6)] == [28, 29, 30, 31, 12, 13]


def test_growing_from_5_to_9_tokens_takes_one_more_block():
    pool = paged(10, 4)
    assert pool.allocate(request(), 0, 5)
    free_tokens = pool.free_tokens
    assert pool.append(0, 4)
    assert len(pool.block_table(0)) == 3
    assert free_tokens - pool.free_tokens == 4


def test_eight_requests_use_60_percent_of_reservations_and_94_of_blocks():
    contiguous = Contiguous().build(PoolShape(40, 10, max_model_len_tokens=50))
    blocks = paged(25, 16)
    for seq in range(8):
        assert contiguous.allocate(request(20, 30), seq, 30)
        assert blocks.allocate(request(20, 30), seq, 30)
    assert 8 * 30 / contiguous.taken_tokens == 0.6
    assert 8 * 30 / blocks.taken_tokens == 0.9375
    assert contiguous.free_tokens == 0
    assert not contiguous.allocate(request(20, 30), 8, 30)
    assert blocks.allocate(request(20, 30), 8, 30)


def test_reservations_of_512_for_answers_of_50_use_a_tenth():
    pool = Contiguous().build(PoolShape(128, 16, max_model_len_tokens=512))
    for seq in range(4):
        assert pool.allocate(request(), seq, 50)
    assert 4 * 50 / pool.taken_tokens == pytest.approx(0.098, abs=0.0005)
    assert pool.free_tokens + pool.holes_tokens == 0


def test_a_32_token_prompt_shared_by_three_takes_5_blocks_not_9():
    shared, apart = paged(16, 16), paged(16, 16)
    assert shared.allocate(request(), 0, 32)
    shared.fork(0, 1)
    shared.fork(0, 2)
    for seq in range(3):
        assert shared.append(seq, 1)
        assert apart.allocate(request(), seq, 32)
        assert apart.append(seq, 1)
    assert shared.taken_tokens == 5 * 16
    assert apart.taken_tokens == 9 * 16
    assert [shared.owners(block) for block in shared.block_table(0)] == [3, 3, 1]
    assert 1 - shared.taken_tokens / apart.taken_tokens == pytest.approx(0.44, abs=0.005)


def test_of_three_sharing_a_40_token_prompt_two_copy_and_the_last_writes_in_place():
    pool = paged(16, 16)
    assert pool.allocate(request(), 0, 40)
    pool.fork(0, 1)
    pool.fork(0, 2)
    partial = pool.block_table(0)[2]
    writers = [1, 0, 2]
    for seq, owners_left in zip(writers[:2], (2, 1), strict=True):
        assert pool.append(seq, 1)
        assert pool.block_table(seq)[2] != partial
        assert pool.owners(partial) == owners_left
    assert pool.append(writers[2], 1)
    assert pool.block_table(writers[2])[2] == partial
    assert pool.taken_tokens == 5 * 16
    pool.check()
