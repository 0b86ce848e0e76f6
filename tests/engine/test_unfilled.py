"""What is counted from a calendar equals what the block tables say in every step."""

import pytest

from kvsim.engine.allocators import PoolShape
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.request import Request
from kvsim.engine.unfilled import UnfilledSlots


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("may_surpass", [False, True])
@pytest.mark.parametrize("foreseen", [False, True])
def test_the_calendar_agrees_with_the_tables(block_size, may_surpass, foreseen):
    for prompt_tokens in range(1, 20):
        for answer_tokens in (1, 2, 7, 40):
            pool = Paged().build(PoolShape(100, block_size, 1_000))
            last_steps = {}
            unfilled = UnfilledSlots(pool, {0: answer_tokens}, last_steps, may_surpass)
            limit = answer_tokens if foreseen else answer_tokens + 1
            request = Request(0, 0, 0, prompt_tokens, limit)
            pool.allocate(request, 0, prompt_tokens)
            unfilled.own(request)
            last_steps[0] = last = answer_tokens - 1  # step 0 computes the prompt
            unfilled.note_end(request, last, 0)
            surplus = int(may_surpass and not foreseen)
            final_tokens = prompt_tokens + answer_tokens - 1 + surplus
            for step in range(1, last + surplus + 1):
                if (prompt_tokens + step - 1) % block_size == 0:
                    pool.append(0, block_size)
                unfilled.own_last(step)
                assert unfilled.tokens == pool.unused_tokens(0, final_tokens), step
            unfilled.disown(request)
            assert unfilled.tokens == 0


def test_who_left_or_came_back_is_not_counted_twice():
    pool = Paged().build(PoolShape(100, 16, 1_000))
    last_steps = {}
    unfilled = UnfilledSlots(pool, {0: 20}, last_steps, may_surpass=False)
    request = Request(0, 0, 0, 10, 20)
    for last in (25, 25, 30):  # twice with the same end, and with a later one
        last_steps[0] = last
        unfilled.note_end(request, last, 0)
    unfilled.own_last(29)
    assert unfilled.tokens == -(10 + 20 - 1) % 16
    del last_steps[0]
    unfilled.disown(request)
    unfilled.own_last(100)
    assert unfilled.tokens == 0
