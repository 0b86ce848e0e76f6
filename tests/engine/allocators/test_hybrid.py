"""KV groups over one pool: against a naive pool that keeps whole token sequences, worked cases."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.engine.allocators import PoolShape, Shortage
from kvsim.engine.allocators._hybrid import HybridPool
from kvsim.engine.allocators._prefix_cache import PrefixCachingPool
from kvsim.engine.allocators.paged import Paged, PagedPool
from kvsim.engine.content import Paths
from kvsim.engine.request import Request
from kvsim.memory.kv_groups import KVGroup

FULL, SLIDING = KVGroup(4), KVGroup(4, 10)
MODELS = [
    (SLIDING,),
    (FULL, SLIDING),
    (KVGroup(4, 7), FULL),
    (FULL, SLIDING, SLIDING, KVGroup(4, 5)),
    (KVGroup(8), KVGroup(4, 9)),
    (KVGroup(4, 2), KVGroup(12), KVGroup(8, 20)),
]
MAX_MODEL_LEN = 120


def pool_of(groups, blocks=40, caching=True, retention=0, chunk_tokens=16, watermark=0.0):
    shape = PoolShape(
        num_gpu_blocks=blocks,
        block_size_tokens=4,
        max_model_len_tokens=MAX_MODEL_LEN,
        watermark=watermark,
        enable_prefix_caching=caching,
        kv_groups=groups,
        max_chunk_tokens=chunk_tokens,
        prefix_cache_retention_interval=retention,
    )
    return Paged().build(shape)


def request_of(paths, number, segments):
    prompt = sum(tokens for _, tokens in segments)
    return Request(number, number, 0, prompt, 20, paths.chain(segments, 10**6 + number))


class NaiveGroups:
    """Blocks in one list, a text of (seed, offset) for each sequence, and who was keyed when."""

    def __init__(self, groups, blocks, caching, retention, chunk_tokens):
        self.groups, self.caching, self.retention = groups, caching, retention
        self.chunk_tokens = chunk_tokens
        self.lcm = math.lcm(*(group.block_size for group in groups))
        self.queue = list(range(1, blocks))
        self.keyed = []  # (group index, text up to the block's end, block), oldest first
        self.tables, self.computed, self.offered = {}, {}, {}
        self.hits, self.longest_hits = {}, {}  # at admission

    def find(self, index, text):
        return next((b for g, known, b in self.keyed if (g, known) == (index, text)), None)

    def has(self, index, text, tokens):
        """Whether a prefix of so many tokens is there, as far as this group's tokens read it."""
        group = self.groups[index]
        size = group.block_size
        first = 0
        if group.window_tokens:
            first = max(0, tokens - math.ceil((group.window_tokens - 1) / size) * size)
        ends = range(first + size, tokens + 1, size)
        return all(self.find(index, text[:end]) is not None for end in ends)

    def hit(self, text, first_only=False):
        """The longest prefix in all groups, or in the kind of group that is looked up first."""
        first = next((each for each in self.groups if not each.window_tokens), self.groups[0])
        indices = [
            index for index, group in enumerate(self.groups) if group == first or not first_only
        ]
        lengths = range((len(text) - 1) // self.lcm * self.lcm, 0, -self.lcm)
        found = (n for n in lengths if all(self.has(g, text, n) for g in indices))
        return next(found, 0) if self.caching else 0

    def hit_tables(self, text):
        tokens, tables = self.hit(text), []
        for index, group in enumerate(self.groups):
            size, unread = group.block_size, 0
            if group.window_tokens:
                unread = max(0, tokens + 1 - group.window_tokens) // size
            ends = range(size, tokens + 1, size)
            found = [self.find(index, text[:end]) for end in ends]
            tables.append([0] * unread + found[unread:])
        return tables

    def needed(self, text, tokens, at_once):
        """Blocks that leave the queue if so many tokens of a waiting text are admitted."""
        total = 0
        for group, found in zip(self.groups, self.hit_tables(text), strict=True):
            blocks = math.ceil(tokens / group.block_size)
            if group.window_tokens and not at_once:
                longest = min(group.window_tokens - 1 + self.chunk_tokens, MAX_MODEL_LEN)
                blocks = min(blocks, math.ceil(longest / group.block_size) + 1)
            total += max(0, blocks - len(found))
            total += sum(block in self.queue for block in found)
        return total

    def admit(self, seq, text, prompt_tokens, tokens):
        self.longest_hits[seq] = self.hit(text, first_only=True)
        self.offered[seq] = self.hits[seq] = self.hit(text)
        self.tables[seq] = self.hit_tables(text)
        for table in self.tables[seq]:
            self.queue = [block for block in self.queue if block not in table]
        self.grow(seq, tokens)
        self.offer(seq, text, prompt_tokens, tokens)

    def grow(self, seq, tokens):
        for group, table in zip(self.groups, self.tables[seq], strict=True):
            while len(table) * group.block_size < tokens:
                block = self.queue.pop(0)
                table.append(block)
                self.keyed = [entry for entry in self.keyed if entry[2] != block]
        self.computed[seq] = tokens

    def offer(self, seq, text, prompt_tokens, tokens):
        """Key the blocks that end in the tokens of this step, up to a multiple of all sizes."""
        first, end = self.offered[seq], tokens // self.lcm * self.lcm
        self.offered[seq] = max(first, end)
        for index, group in enumerate(self.groups):
            for place, block in enumerate(self.tables[seq][index]):
                last = (place + 1) * group.block_size
                due = self.caching and first < last <= end and block
                if due and self.kept(seq, group, place, prompt_tokens):
                    self.keyed.append((index, text[:last], block))

    def kept(self, seq, group, place, prompt_tokens):
        if not group.window_tokens or self.retention is None:
            return True
        goals = [prompt_tokens - 1]
        if self.longest_hits[seq] > self.hits[seq]:
            goals.append(self.longest_hits[seq])
        if self.retention:
            goals += range(self.retention, 3 * MAX_MODEL_LEN, self.retention)
        size = group.block_size
        ends = [goal // self.lcm * self.lcm // size for goal in goals]
        behind = math.ceil((group.window_tokens - 1) / size)
        return any(end - behind <= place < end for end in ends)

    def slide(self, seq):
        for group, table in zip(self.groups, self.tables[seq], strict=True):
            if group.window_tokens:
                passed = max(0, self.computed[seq] + 1 - group.window_tokens) // group.block_size
                gone = [block for block in reversed(table[:passed]) if block]
                table[:passed] = [0] * passed
                self.give_back(gone)

    def free(self, seq):
        for table in self.tables.pop(seq):
            gone, table[:] = [block for block in reversed(table) if block], []
            self.give_back(gone)

    def give_back(self, blocks):
        in_use = {b for tables in self.tables.values() for table in tables for b in table}
        free = [block for block in blocks if block not in in_use]
        keyed = {block for _, _, block in self.keyed}
        front = [block for block in free if block not in keyed]
        self.queue = front + self.queue + [block for block in free if block in keyed]


class GroupsAgainstNaive(RuleBasedStateMachine):
    """Every call gives the naive pool's answer, block tables and free queue."""

    @initialize(
        groups=st.sampled_from(MODELS),
        blocks=st.integers(12, 60),
        caching=st.sampled_from([True, True, False]),
        retention=st.sampled_from([0, None, 24, 10]),
        chunk_tokens=st.sampled_from([6, 16]),
    )
    def start(self, groups, blocks, caching, retention, chunk_tokens):
        self.pool = pool_of(groups, blocks, caching, retention, chunk_tokens)
        assert isinstance(self.pool, HybridPool)
        self.naive = NaiveGroups(groups, blocks, caching, retention, chunk_tokens)
        self.paths, self.running, self.next_seq = Paths(), {}, 0

    @rule(
        segments=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30)), min_size=1, max_size=3),
        chunk=st.integers(1, 16),
    )
    def admit(self, segments, chunk):
        seq, naive = self.next_seq, self.naive
        self.next_seq += 1
        request = request_of(self.paths, seq, segments)
        text = tuple((seed, offset) for seed, tokens in segments for offset in range(tokens))
        hit = naive.hit(text)
        assert self.pool.lookup(request) == hit
        whole, first = len(text), min(hit + chunk, len(text))
        free = len(naive.queue)
        for tokens, at_once in ((whole, False), (first, True)):
            fits = naive.needed(text, tokens, at_once) <= free
            shortage = self.pool.shortage(request, tokens, idle=True, at_once=at_once)
            assert (shortage == Shortage.NONE) is fits
        assert self.pool.allocate(request, seq, first) is fits
        if fits:
            self.pool.publish(request, seq, first)
            naive.admit(seq, text, whole, first)
            answer = tuple((10**6 + seq, offset) for offset in range(40))
            self.running[seq] = request, text + answer

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.sampled_from([1, 1, 2, 5, 16]))
    def compute(self, data, tokens):
        seq = data.draw(st.sampled_from(sorted(self.running)))
        request, text = self.running[seq]
        naive, end = self.naive, self.naive.computed[seq] + tokens
        if end > len(text):
            return
        self.pool.release(seq, naive.computed[seq])
        naive.slide(seq)
        missing = sum(
            max(0, math.ceil(end / group.block_size) - len(table))
            for group, table in zip(naive.groups, naive.tables[seq], strict=True)
        )
        fits = missing <= len(naive.queue)
        assert self.pool.append(seq, tokens) is fits
        if fits:
            naive.grow(seq, end)
            self.pool.publish(request, seq, end)
            naive.offer(seq, text, request.prompt_tokens, end)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def free(self, data):
        seq = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[seq]
        self.pool.free(seq)
        self.naive.free(seq)

    @invariant()
    def tables_queue_and_sums_agree(self):
        pool, naive = self.pool, self.naive
        for seq, tables in naive.tables.items():
            assert pool.block_tables(seq) == tuple(map(tuple, tables))
            slots = sum(len(table) for table in tables) * naive.lcm
            assert pool.slots_tokens(seq) == slots
        assert pool.free_queue() == tuple(naive.queue)
        assert pool.cached_keys() == len({(group, text) for group, text, _ in naive.keyed})
        listed = [b for tables in naive.tables.values() for table in tables for b in table]
        owned = {block for block in listed if block}
        assert pool.taken_tokens == len(owned) * naive.lcm
        assert pool.released_tokens == listed.count(0) * naive.lcm
        assert pool.shared_tokens == (len(listed) - listed.count(0) - len(owned)) * naive.lcm
        assert pool.free_tokens == len(naive.queue) * naive.lcm
        keyed = {block for _, _, block in naive.keyed}
        assert pool.reusable_tokens == len(keyed & set(naive.queue)) * naive.lcm
        pool.check()


TestGroupsAgainstNaive = GroupsAgainstNaive.TestCase
TestGroupsAgainstNaive.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(("caching", "plain"), [(False, PagedPool), (True, PrefixCachingPool)])
def test_one_group_of_full_attention_is_the_plain_pool(caching, plain):
    assert type(pool_of((FULL,), caching=caching)) is plain
    assert type(pool_of((), caching=caching)) is plain


def test_a_block_returns_when_no_later_token_reads_it():
    """Window 10: the token at position c reads from c - 9; blocks of 4 go at c = 13, 17, ..."""
    pool = pool_of((SLIDING,), caching=False)
    request = request_of(Paths(), 0, [(1, 21)])
    assert pool.allocate(request, 0, 21)
    for computed, left in [(12, 6), (13, 5), (16, 5), (17, 4)]:
        pool.release(0, computed)
        assert sum(block > 0 for block in pool.block_tables(0)[0]) == left
    assert pool.block_tables(0) == ((0, 0, 3, 4, 5, 6),)
    assert pool.free_queue()[:2] == (2, 1)
    with pytest.raises(IndexError, match="position 3 has no slot"):
        pool.slot(0, 3)
    assert pool.slot(0, 8) == 12


def test_all_passed_blocks_return_last_first():
    pool = pool_of((SLIDING,), caching=False)
    assert pool.allocate(request_of(Paths(), 0, [(1, 21)]), 0, 21)
    pool.release(0, 21)
    assert pool.block_tables(0) == ((0, 0, 0, 4, 5, 6),)
    assert pool.free_queue()[:3] == (3, 2, 1)


def test_a_window_needs_blocks_for_itself_and_one_chunk():
    """Window 10 and chunks of 16 tokens: 25 tokens, so 7 blocks and one for where they begin."""
    need = {(FULL,): 25, (SLIDING,): 8, (FULL, SLIDING): 33}
    for groups, blocks in need.items():
        request = request_of(Paths(), 0, [(1, 100)])
        for missing in (0, 1):
            pool = pool_of(groups, blocks=1 + blocks - missing)
            shortage = pool.shortage(request, 100, idle=True)
            assert shortage == (Shortage.MEMORY if missing else Shortage.NONE), groups


def test_a_request_fits_a_pool_that_could_not_hold_it_without_windows():
    """100 prompt and 20 answer tokens: 8 blocks for a window, 30 for full attention."""
    request = request_of(Paths(), 0, [(1, 100)])
    for groups, blocks in (((SLIDING,), 8), ((FULL,), 30), ((FULL, SLIDING), 38)):
        assert pool_of(groups, blocks=1 + blocks).can_ever_fit(request)
        assert not pool_of(groups, blocks=blocks).can_ever_fit(request)


@pytest.mark.parametrize(
    ("retention", "kept"),
    [(0, {6, 7, 8}), (None, set(range(10))), (20, {2, 3, 4, 6, 7, 8, 9})],
)
def test_what_of_a_window_can_be_found(retention, kept):
    """A prompt of 40 tokens ends its last findable prefix at 36; a window reads 3 blocks."""
    pool = pool_of((SLIDING,), retention=retention, chunk_tokens=40)
    request = request_of(Paths(), 0, [(1, 40)])
    assert pool.allocate(request, 0, 40)
    pool.publish(request, 0, 40)
    pool.free(0)
    assert pool.cached_keys() == len(kept)
    assert set(pool.free_queue()[-len(kept) :]) == {place + 1 for place in kept}


def test_where_full_attention_finds_more_the_windows_are_kept_for_the_next():
    """The second prompt parts from the first at 24: only the third one finds that window."""
    pool, paths = pool_of((FULL, SLIDING), blocks=100), Paths()
    hits = []
    for seed in (2, 3, 4):
        request = request_of(paths, seed, [(1, 24), (seed, 20)])
        hits.append(pool.lookup(request))
        assert pool.allocate(request, seed, 44)
        pool.publish(request, seed, 44)
        pool.free(seed)
    assert hits == [0, 0, 24]


def test_a_token_takes_more_slots_in_smaller_blocks():
    """Blocks of 8 and of 4 tokens have equal bytes: a token fills 1 and 2 of a block's 8 slots."""
    pool = pool_of((KVGroup(8), KVGroup(4, 9)))
    assert (pool.block_tokens, pool.growth_tokens, pool.slots_per_token) == (8, 4, 3)
    assert pool.allocate(request_of(Paths(), 0, [(1, 16)]), 0, 16)
    assert pool.taken_tokens == pool.slots_tokens(0) == 16 * 3


def test_sequences_can_not_be_forked():
    pool = pool_of((FULL, SLIDING))
    assert pool.allocate(request_of(Paths(), 0, [(1, 5)]), 0, 5)
    with pytest.raises(ValueError, match="allocated by itself"):
        pool.fork(0, 1)
    with pytest.raises(ValueError, match="owns slots already"):
        pool.allocate(request_of(Paths(), 0, [(1, 5)]), 0, 5)
    assert pool.take_moved_seqs() == []
