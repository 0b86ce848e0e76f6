from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from kvsim.engine.allocators import PoolShape, Shortage
from kvsim.engine.allocators.contiguous import Contiguous


def request(prompt_tokens, max_tokens=1, number=0):
    return SimpleNamespace(prompt_tokens=prompt_tokens, max_tokens=max_tokens, number=number)


def pool_of(capacity, max_model_len_tokens=4096, outputs=(), **options):
    shape = PoolShape(
        num_gpu_blocks=capacity,
        block_size_tokens=1,
        max_model_len_tokens=max_model_len_tokens,
        watermark=0.5,
        oracle_output_tokens=lambda request: outputs[request.number],
    )
    return Contiguous(**options).build(shape)


def fill(pool, *sizes):
    """Reserve the sizes, one sequence each from 0, by their `max_tokens`."""
    for seq, size in enumerate(sizes):
        assert pool.allocate(request(1, size - 1), seq, 1)


@pytest.mark.parametrize(
    ("reservation", "prompt_tokens", "max_tokens", "output_tokens", "reserved"),
    [
        ("max_model_len", 10, 20, 5, 1000),
        ("max_tokens", 10, 20, 5, 30),
        ("max_tokens", 990, 20, 5, 1000),
        ("oracle_pow2", 10, 100, 25, 42),  # the paper's example: 25 tokens of output take 32
        ("oracle_pow2", 10, 100, 32, 42),
        ("oracle_pow2", 10, 100, 33, 74),
        ("oracle_pow2", 10, 100, 1, 11),
        ("oracle_pow2", 500, 500, 300, 1000),
        ("oracle", 10, 100, 25, 35),
        ("oracle", 990, 100, 25, 1000),
    ],
)
def test_reservation(reservation, prompt_tokens, max_tokens, output_tokens, reserved):
    pool = pool_of(2000, 1000, [output_tokens], reservation=reservation)
    assert pool.allocate(request(prompt_tokens, max_tokens), 3, prompt_tokens)
    assert pool.slots_tokens(3) == pool.taken_tokens == reserved
    assert pool.append(3, reserved - prompt_tokens)
    assert not pool.append(3, 1)


def test_an_oracle_that_knows_nothing_is_refused():
    shape = PoolShape(100, 16, 4096)
    with pytest.raises(ValueError, match="needs an oracle"):
        Contiguous(reservation="oracle").build(shape)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compaction": True, "placement": "buddy"}, "can't slide"),
        ({"compaction_bytes_per_s": 1e12}, "no effect"),
        ({"compaction": True, "compaction_bytes_per_s": 0.0}, "greater than 0"),
        ({"placement": "worst_fit"}, "first_fit"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        Contiguous(**options)


def test_first_and_best_fit_choose_different_holes():
    for placement, address in (("first_fit", 0), ("best_fit", 50)):
        pool = pool_of(100, reservation="max_tokens", placement=placement)
        fill(pool, 40, 10, 20, 30)
        pool.free(0)
        pool.free(2)
        assert pool.allocate(request(1, 14), 9, 1)
        assert pool.slot(9, 0) == address


def test_memory_or_hole_is_what_lacks():
    pool = pool_of(100, reservation="max_tokens")
    fill(pool, 30, 10, 30, 10, 20)
    pool.free(0)
    pool.free(2)
    assert pool.shortage(request(1, 29), 1, idle=False) == Shortage.NONE
    assert pool.shortage(request(1, 30), 1, idle=False) == Shortage.HOLE
    assert pool.shortage(request(1, 59), 1, idle=False) == Shortage.HOLE
    assert pool.shortage(request(1, 60), 1, idle=False) == Shortage.MEMORY


def test_holes_are_those_too_small_for_the_reservation_last_asked_for():
    pool = pool_of(100, reservation="max_tokens")
    fill(pool, 30, 10, 20, 10, 30)
    pool.free(0)
    pool.free(2)
    seen = []
    for size in (20, 21, 30, 31):
        pool.shortage(request(1, size - 1), 1, idle=False)
        seen.append((pool.holes_tokens, pool.free_tokens))
    assert seen == [(0, 50), (20, 30), (20, 30), (50, 0)]
    pool.free(1)  # the three holes become one of 60, large enough for 31
    assert (pool.holes_tokens, pool.free_tokens) == (0, 60)


def test_can_ever_fit_asks_for_the_largest_possible_hole():
    plain = pool_of(100, reservation="max_tokens")
    buddy = pool_of(100, reservation="max_tokens", placement="buddy")  # 64 + 32 + 4
    assert plain.can_ever_fit(request(1, 99))
    assert not plain.can_ever_fit(request(1, 100))
    assert buddy.can_ever_fit(request(1, 63))
    assert not buddy.can_ever_fit(request(1, 64))


def test_compaction_slides_sequences_together_and_names_those_it_copied():
    pool = pool_of(100, reservation="max_tokens", compaction=True)
    fill(pool, 20, 20, 20, 20, 20)
    pool.free(1)
    pool.free(3)
    assert pool.shortage(request(1, 39), 1, idle=False) == Shortage.NONE
    assert pool.take_moved_seqs() == []  # asking moves nothing
    assert pool.slot(2, 0) == 40
    assert pool.allocate(request(1, 39), 9, 1)
    assert [pool.slot(seq, 0) for seq in (0, 2, 4, 9)] == [0, 20, 40, 60]
    assert pool.take_moved_seqs() == [2, 4]
    assert pool.take_moved_seqs() == []
    assert pool.compactions == 1
    pool.check()


def test_compaction_keeps_the_order_of_addresses_not_of_arrival():
    pool = pool_of(100, reservation="max_tokens", compaction=True)
    fill(pool, 20, 20, 20, 20, 20)
    pool.free(0)
    assert pool.allocate(request(1, 9), 7, 1)  # the youngest lies in front now
    pool.free(2)
    assert pool.allocate(request(1, 24), 8, 1)
    assert [pool.slot(seq, 0) for seq in (7, 1, 3, 4, 8)] == [0, 10, 30, 50, 70]
    assert pool.take_moved_seqs() == [1, 3, 4]
    pool.check()


def test_compaction_does_nothing_where_it_is_not_needed_or_would_not_help():
    pool = pool_of(100, reservation="max_tokens", compaction=True)
    fill(pool, 20, 20, 20, 20, 20)
    pool.free(1)
    pool.free(3)
    assert pool.allocate(request(1, 19), 9, 1)
    assert not pool.allocate(request(1, 20), 10, 1)
    assert pool.compactions == 0
    assert pool.take_moved_seqs() == []


def test_buddy_rounds_chunks_up_and_counts_what_that_costs():
    pool = pool_of(128, reservation="max_tokens", placement="buddy")
    fill(pool, 33, 5)
    assert pool.taken_tokens == 38
    assert pool.rounding_tokens == (64 - 33) + (8 - 5)
    assert pool.slots_tokens(0) == 33
    assert [pool.slot(seq, 0) for seq in (0, 1)] == [0, 64]
    pool.free(0)
    assert pool.rounding_tokens == 3
    pool.free(1)
    assert pool.shortage(request(1, 127), 1, idle=True) == Shortage.NONE  # merged to the top


def test_a_chunk_that_rounding_makes_too_large_waits_for_a_hole():
    pool = pool_of(100, reservation="max_tokens", placement="buddy")
    assert pool.allocate(request(1, 39), 0, 1)
    assert pool.shortage(request(1, 35), 1, idle=False) == Shortage.HOLE  # 36 free, in 32 + 4


def test_sequences_cannot_share_neighbors():
    pool = pool_of(100, reservation="max_tokens")
    fill(pool, 20)
    with pytest.raises(ValueError, match="can't share"):
        pool.fork(0, 1)


def test_mistakes_of_the_caller_are_refused():
    pool = pool_of(100, reservation="max_tokens")
    fill(pool, 20)
    with pytest.raises(ValueError, match="owns slots already"):
        pool.allocate(request(1, 1), 0, 1)
    with pytest.raises(KeyError):
        pool.free(7)
    for position in (-1, 20):
        with pytest.raises(IndexError):
            pool.slot(0, position)


@pytest.mark.parametrize(
    ("damage", "law"),
    [
        (lambda pool: setattr(pool._reservations[1], "start", 10), "owned twice"),
        (lambda pool: setattr(pool._reservations[0], "tokens", 10), "lost"),
        (lambda pool: setattr(pool._space, "largest_tokens", 1), "largest"),
        (lambda pool: setattr(pool, "taken_tokens", 1), "taken"),
        (lambda pool: setattr(pool, "holes_tokens", 1), "free"),
    ],
)
@pytest.mark.parametrize("placement", ["first_fit", "buddy"])
def test_check_notices_damage(placement, damage, law):
    pool = pool_of(128, reservation="max_tokens", placement=placement)
    fill(pool, 32, 32)
    pool.check()
    damage(pool)
    with pytest.raises(AssertionError, match=law):
        pool.check()


def test_check_notices_holes_that_are_not_coalesced():
    pool = pool_of(100, reservation="max_tokens")
    pool._space._starts, pool._space._sizes = [0, 50], [50, 50]
    with pytest.raises(AssertionError, match="touch"):
        pool.check()
    buddy = pool_of(64, reservation="max_tokens", placement="buddy")
    buddy._space._free_starts[6], buddy._space._free_starts[5] = [], [0, 32]
    with pytest.raises(AssertionError, match="apart"):
        buddy.check()
