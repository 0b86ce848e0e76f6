"""The paged pool with vLLM's prefix cache: full blocks stay findable until they are reused.

Rules R20 to R28 are those of `docs/vllm-rules.md`.
"""

from collections import deque
from collections.abc import Container, Iterable
from operator import eq

from kvsim.engine.allocators import PoolShape, Shortage
from kvsim.engine.allocators._lru import LruQueue
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.request import RequestView
from kvsim.errors import require

NOTHING_FOUND: tuple[int, int, list[int]] = (-1, -1, [])  # request, known tokens, blocks


class PrefixCachingPool(PagedPool):
    """Blocks with a key are found by it, in use or free.

    The free queue has two parts: in front the stack of blocks without a key, behind it the blocks
    with a key, least recently used first (R27, R28). A long prompt has hundreds of blocks, so
    what is done for each of them is left to dicts and lists as a whole.
    """

    __slots__ = ("_block_of", "_found", "_key_of", "_lru", "_published", "_twins")

    def __init__(self, shape: PoolShape, null_block: bool = True) -> None:
        super().__init__(shape, null_block)
        self._key_of: dict[int, int] = {}
        # Equal blocks computed twice both stay; the oldest is found (R25), the others wait.
        self._block_of: dict[int, int] = {}
        self._twins: dict[int, deque[int]] = {}
        self._lru = LruQueue()
        self._published: dict[int, int] = {}  # blocks of a sequence that were given keys, or hit
        self._found = NOTHING_FOUND

    def lookup(self, request: RequestView) -> int:
        """Return how many of the known tokens are cached; the last one never counts (R22)."""
        return len(self._hits(request)) * self._block_size

    def shortage(
        self, request: RequestView, known_tokens: int, idle: bool, at_once: bool = False
    ) -> Shortage:
        """Tell whether the blocks that are not cached are free, beside the watermark (R17, R20)."""
        hits = self._hits(request)
        needed = -(-min(known_tokens, self._max_model_len) // self._block_size) - len(hits)
        needed += len(self._lru.among(hits))  # they leave the queue when touched
        return self.shortage_of(needed, idle)

    def allocate(self, request: RequestView, seq: int, tokens: int) -> bool:
        """Give a new sequence its cached blocks, and new ones up to its first `tokens`."""
        if seq in self._tables:
            raise ValueError(f"sequence {seq} owns slots already")
        hits = self._hits(request)
        tokens = min(tokens, self._max_model_len)
        blocks = -(-tokens // self._block_size)
        missing = blocks - len(hits)
        idle = self._lru.among(hits)
        if (missing + len(idle)) * self._block_size > self.free_tokens:
            return False
        self._touch(hits, idle)
        self._tables[seq] = hits + self._take(missing)
        self._spare[seq] = blocks * self._block_size - tokens
        self._published[seq] = len(hits)
        return True

    def append(self, seq: int, tokens: int) -> bool:
        """Make room for `tokens` more; shared blocks are full, so none is ever written to."""
        return self._extend(seq, tokens)

    def fork(self, parent: int, child: int) -> None:
        """Refuse: as in vLLM V1, samples share their prompt by finding it.

        Raises:
            ValueError: Always.
        """
        raise ValueError("with prefix caching a child is allocated, and finds its parent's blocks")

    def publish(self, request: RequestView, seq: int, tokens: int) -> None:
        """Make the full blocks of the first `tokens` findable, as they are scheduled (R23, R24)."""
        tokens = min(tokens, self._max_model_len)
        first, end = self._published[seq], tokens // self._block_size
        if end <= first:
            return
        self._published[seq] = end
        keys = request.block_keys(first, end, self._block_size)
        blocks = self._tables[seq][first:end]
        self._key_of.update(zip(blocks, keys, strict=True))
        oldest = list(map(self._block_of.setdefault, keys, blocks))
        if oldest != blocks:
            for key, block, first_block in zip(keys, blocks, oldest, strict=True):
                if block != first_block:
                    self._add_twin(key, block)

    def free(self, seq: int) -> None:
        """Release the blocks tail first: keyed ones to the back, others to the front (R28)."""
        table = self._tables.pop(seq)
        del self._spare[seq]
        published = self._published.pop(seq)
        keyed, plain = table[:published], table[published:]
        if self._co_owners:  # only blocks with a key are shared
            keyed = self._disowned(keyed)
        keyed.reverse()
        self._lru.extend(keyed)
        self._free_blocks += plain
        self.reusable_tokens = len(self._lru) * self._block_size
        self._count_taken(-len(keyed) - len(plain))

    def cached_keys(self) -> int:
        """Return how many different prefixes can be found."""
        return len(self._block_of)

    def free_queue(self) -> tuple[int, ...]:
        """Return the free blocks in the order in which they will be taken."""
        return (*super().free_queue(), *self._lru)

    def check(self) -> None:
        """Raise AssertionError if blocks, keys and reference counts disagree."""
        super().check()
        key_of, block_of, twins = self._key_of, self._block_of, self._twins
        agree = all(map(eq, map(key_of.get, block_of.values()), block_of))
        for key, others in twins.items():
            equal = {block_of.get(key), *others}
            agree &= len(equal) == 1 + len(others) > 1
            agree &= all(block is not None and key_of.get(block) == key for block in equal)
        findable = len(block_of) + sum(map(len, twins.values()))
        require(agree and findable == len(key_of), "keys and blocks disagree")
        require(all(map(key_of.__contains__, self._lru)), "a block without key is kept")

    def _hits(self, request: RequestView) -> list[int]:
        """Return the leading blocks found, which are remembered until a block is evicted.

        When a key comes the search goes on where it ended: what was found stays the oldest.
        """
        known_tokens = request.known_tokens
        number, tokens, hits = self._found
        if number != request.number or tokens != known_tokens:
            hits = []
            self._found = (request.number, known_tokens, hits)
        size, find = self._block_size, self._block_of.get
        first, end = len(hits), (known_tokens - 1) // size
        if first < end and find(request.block_keys(first, first + 1, size)[0]) is not None:
            keys = request.block_keys(first, end, size)
            hits += iter(map(find, keys).__next__, None)  # up to the first that isn't found
        return hits

    def _empty_tokens_of(self, shared: Container[int]) -> int:
        return 0  # only full blocks are found, and nobody forks

    def _used_free_blocks(self) -> list[int]:
        return [*self._free_blocks, *self._lru]

    def _findable_free_blocks(self) -> Iterable[int]:
        return self._lru

    def _touch(self, hits: list[int], idle: list[int]) -> None:
        """Add an owner to blocks that were found; the idle ones of them leave the queue."""
        self._lru.remove(idle)
        if len(idle) < len(hits):
            revived, co_owners = set(idle), self._co_owners
            for block in hits:
                if block not in revived:
                    co_owners[block] = co_owners.get(block, 0) + 1
            self.shared_tokens += (len(hits) - len(idle)) * self._block_size
        self._count_taken(len(idle))
        self.reusable_tokens = len(self._lru) * self._block_size

    def _take(self, blocks: int) -> list[int]:
        """Return blocks from the front of the queue; one that had a key is evicted (R27)."""
        without_key = len(self._free_blocks) + len(self._unused)
        if blocks <= without_key:
            return super()._take(blocks)
        evicted = blocks - without_key
        taken = super()._take(without_key) if without_key else []
        oldest = self._lru.take(evicted)
        self._forget(oldest)
        self._count_taken(evicted)
        self.reusable_tokens = len(self._lru) * self._block_size
        self._found = NOTHING_FOUND
        return taken + oldest

    def _add_twin(self, key: int, block: int) -> None:
        self._twins.setdefault(key, deque()).append(block)

    def _forget(self, evicted: list[int]) -> None:
        key_of, block_of, twins = self._key_of, self._block_of, self._twins
        for block in evicted:
            key = key_of.pop(block)
            oldest = block_of.pop(key)
            if key in twins:  # others have the same tokens
                others = twins[key]
                if oldest != block:
                    others.remove(block)
                    block_of[key] = oldest
                else:
                    block_of[key] = others.popleft()
                if not others:
                    del twins[key]
