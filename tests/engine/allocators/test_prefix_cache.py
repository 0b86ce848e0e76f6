"""The prefix cache against a naive one that keeps whole token sequences, and its worked cases."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvsim.engine.allocators import PoolShape, Shortage
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.content import Paths
from kvsim.engine.request import Request

BLOCK = 4
BLOCKS = 14


def pool_of(blocks=BLOCKS, watermark=0.0):
    return Paged().build(PoolShape(blocks, BLOCK, 100, watermark, enable_prefix_caching=True))


def request_of(paths, number, segments, answer_seed=10**6, max_tokens=20):
    prompt = sum(tokens for _, tokens in segments)
    content = paths.chain(segments, answer_seed + number)
    return Request(number, number, 0, prompt, max_tokens, content)


def admit(pool, request, tokens=None):
    tokens = request.known_tokens if tokens is None else tokens
    assert pool.allocate(request, request.number, tokens)
    pool.publish(request, request.number, tokens)


@pytest.mark.parametrize(("prompt", "hit"), [(47, 32), (48, 32), (49, 48), (64, 48)])
def test_the_last_token_is_always_recomputed(prompt, hit):
    """The hits recorded from vLLM for prompts of 47, 48, 49 and 64 tokens in blocks of 16."""
    paths = Paths()
    pool = Paged().build(PoolShape(40, 16, 1000, enable_prefix_caching=True))
    first, second = (request_of(paths, number, [(7, prompt)]) for number in (0, 1))
    admit(pool, first)
    assert pool.lookup(second) == hit


@pytest.mark.parametrize(("answer", "hit"), [(16, 16), (17, 32)])
def test_the_next_turn_finds_what_was_computed_of_the_answer(answer, hit):
    """The last output token is never computed: 16 + 16 gives 16 tokens, 16 + 17 gives 32."""
    paths = Paths()
    pool = Paged().build(PoolShape(40, 16, 1000, enable_prefix_caching=True))
    first = Request(0, 0, 0, 16, 40, paths.chain([(7, 16)], 9))
    admit(pool, first)
    assert pool.append(0, 16)
    pool.publish(first, 0, 16 + answer - 1)
    pool.free(0)
    second = Request(1, 1, 0, 40, 40, paths.chain([(7, 16), (9, answer), (8, 24 - answer)], 10))
    assert pool.lookup(second) == hit


def test_samples_of_a_prompt_share_its_full_blocks():
    """Four samples of 40 tokens: 10 blocks for the first, 9 shared, one each for the others."""
    paths = Paths()
    pool = pool_of(60)
    samples = [Request(n, 0, 0, 40, 20, paths.unique(0, n, 40)) for n in range(4)]
    for sample in samples:
        admit(pool, sample)
    assert pool.taken_tokens == (10 + 3) * BLOCK
    assert pool.shared_tokens == 3 * 9 * BLOCK
    for sample in samples:
        pool.free(sample.number)
    pool.check()
    assert pool.taken_tokens == pool.shared_tokens == 0
    assert pool.reusable_tokens == (10 + 3) * BLOCK


def test_hits_in_the_free_queue_need_room_and_hits_in_use_do_not():
    paths = Paths()
    pool = pool_of(7)  # six blocks beside the null block
    first, second = (request_of(paths, number, [(7, 16)]) for number in (0, 1))
    admit(pool, first)  # 4 blocks
    assert pool.shortage(second, 16, idle=False) == Shortage.NONE  # 3 hits in use, 1 new
    pool.free(0)
    other = request_of(paths, 2, [(5, 12)])
    admit(pool, other)  # the two unused blocks, then the least recently used of the others
    assert pool.lookup(second) == 12
    assert pool.shortage(second, 16, idle=False) == Shortage.MEMORY or pool.free_tokens >= 16


def test_a_child_is_allocated_and_not_forked():
    pool = pool_of()
    with pytest.raises(ValueError, match="finds its parent's blocks"):
        pool.fork(0, 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool._key_of.popitem(),
        lambda pool: pool._block_of.popitem(),
        lambda pool: pool._block_of.update({next(iter(pool._block_of)): 9}),
        lambda pool: pool._twins.clear(),
        lambda pool: next(iter(pool._twins.values())).append(9),
        lambda pool: next(iter(pool._twins.values())).clear(),
        lambda pool: next(iter(pool._twins.values())).append(pool._twins.copy().popitem()[1][0]),
        lambda pool: pool._twins.update({-1: pool._twins.popitem()[1]}),
    ],
)
def test_check_notices_keys_and_blocks_that_disagree(damage):
    """Two prompts are computed side by side, so that their equal blocks stay both."""
    paths = Paths()
    pool = pool_of()
    requests = [request_of(paths, number, [(7, 12)]) for number in (0, 1)]
    for request in requests:
        assert pool.allocate(request, request.number, 12)
    for request in requests:
        pool.publish(request, request.number, 12)
    pool.check()
    damage(pool)
    with pytest.raises(AssertionError, match="keys and blocks disagree"):
        pool.check()


def test_the_older_of_equal_blocks_is_found_until_it_is_evicted():
    paths = Paths()
    pool = pool_of(8)  # seven blocks beside the null block
    requests = [request_of(paths, number, [(7, 12)]) for number in range(3)]
    for request in requests[:2]:
        assert pool.allocate(request, request.number, 12)
    for request in requests[:2]:
        pool.publish(request, request.number, 12)
    pool.free(0)
    assert pool.lookup(requests[2]) == 8
    evicting = request_of(paths, 3, [(5, 16)])
    admit(pool, evicting)  # the unused block, then those of the first request
    pool.check()
    assert pool.lookup(requests[2]) == 8
    assert pool.allocate(requests[2], 2, 8)
    assert pool.block_table(2) == pool.block_table(1)[:2] == (4, 5)


class AgainstWholeSequences(RuleBasedStateMachine):
    """Each block of the naive pool carries the tuple of all tokens up to its end, or None."""

    def __init__(self):
        super().__init__()
        self.paths = Paths()
        self.pool = pool_of()
        self.queue = list(range(1, BLOCKS))
        self.prefixes: dict[int, tuple] = {}  # by block
        self.order: list[int] = []  # blocks in order of registration
        self.tables: dict[int, list[int]] = {}
        self.requests: dict[int, Request] = {}
        self.tokens: dict[int, list] = {}
        self.published: dict[int, int] = {}
        self.number = 0

    def naive_hits(self, tokens):
        hits = []
        for end in range(BLOCK, len(tokens), BLOCK):
            prefix = tuple(tokens[:end])
            found = [block for block in self.order if self.prefixes.get(block) == prefix]
            if not found:
                break
            hits.append(found[0])
        return hits

    def naive_take(self, count):
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            if self.prefixes.pop(block, None):
                self.order.remove(block)
        return taken

    @rule(
        seeds=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 9)), min_size=1, max_size=3),
        data=st.data(),
    )
    def admit(self, seeds, data):
        number = self.number
        self.number += 1
        request = request_of(self.paths, number, seeds)
        tokens = [(seed, offset) for seed, length in seeds for offset in range(length)]
        hits = self.naive_hits(tokens)
        assert self.pool.lookup(request) == len(hits) * BLOCK
        first = len(hits) * BLOCK + data.draw(st.integers(1, len(tokens) - len(hits) * BLOCK))
        missing = -(-first // BLOCK) - len(hits)
        fits = missing <= len([block for block in self.queue if block not in hits])
        assert (self.pool.shortage(request, first, idle=True) == Shortage.NONE) == fits
        assert self.pool.allocate(request, number, first) == fits
        if fits:
            self.queue = [block for block in self.queue if block not in hits]
            self.tables[number] = hits + self.naive_take(missing)
            self.requests[number], self.tokens[number] = request, tokens
            self.published[number] = len(hits)
            self.publish(number, first)

    def publish(self, number, count):
        self.pool.publish(self.requests[number], number, count)
        for index in range(self.published[number], count // BLOCK):
            block = self.tables[number][index]
            self.prefixes[block] = tuple(self.tokens[number][: (index + 1) * BLOCK])
            self.order.append(block)
        self.published[number] = max(self.published[number], count // BLOCK)
        self.requests[number].computed_tokens = count

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def grow(self, data):
        number = data.draw(st.sampled_from(sorted(self.tables)))
        request, tokens = self.requests[number], self.tokens[number]
        computed = request.computed_tokens
        count = data.draw(st.integers(1, 6))
        while len(tokens) < computed + count:
            tokens.append((10**6 + number, len(tokens) - request.prompt_tokens))
        missing = -(-(computed + count) // BLOCK) - len(self.tables[number])
        fits = missing <= len(self.queue)
        assert self.pool.append(number, count) == fits
        if fits:
            self.tables[number] += self.naive_take(missing)
            self.publish(number, computed + count)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data):
        number = data.draw(st.sampled_from(sorted(self.tables)))
        self.pool.free(number)
        used = {block for other, table in self.tables.items() if other != number for block in table}
        released = [block for block in reversed(self.tables.pop(number)) if block not in used]
        plain = [block for block in released if block not in self.prefixes]
        self.queue = plain + self.queue + [block for block in released if block in self.prefixes]

    @invariant()
    def agrees(self):
        pool = self.pool
        pool.check()
        assert list(pool.free_queue()) == self.queue
        assert pool.cached_keys() == len(set(self.prefixes.values()))
        for number, table in self.tables.items():
            assert list(pool.block_table(number)) == table
        assert pool.reusable_tokens == BLOCK * sum(block in self.prefixes for block in self.queue)


AgainstWholeSequences.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
TestAgainstWholeSequences = AgainstWholeSequences.TestCase
