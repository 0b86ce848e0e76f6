"""The paged pool with vLLM's prefix cache: full blocks stay findable until they are reused.

Rules R20 to R28 are those of `docs/vllm-rules.md`.
"""

from collections import OrderedDict, deque

from kvsim.engine.allocators import PoolShape, Shortage
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.request import RequestView
from kvsim.errors import require

NOTHING_FOUND: tuple[int, int, list[int]] = (-1, -1, [])  # request, known tokens, blocks


class PrefixCachingPool(PagedPool):
    """Blocks with a key are found by it, in use or free.

    The free queue has two parts: in front the stack of blocks without a key, behind it the blocks
    with a key, least recently used first (R27, R28).
    """

    __slots__ = ("_blocks_of", "_found", "_key_of", "_lru", "_published")

    def __init__(self, shape: PoolShape, null_block: bool = True) -> None:
        super().__init__(shape, null_block)
        self._key_of: dict[int, int] = {}
        # Equal blocks computed twice both stay; the oldest is found (R25).
        self._blocks_of: dict[int, int | deque[int]] = {}
        self._lru: OrderedDict[int, None] = OrderedDict()
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
        needed += self._idle_blocks(hits)  # they leave the queue when touched
        return self._shortage(needed, idle)

    def allocate(self, request: RequestView, seq: int, tokens: int) -> bool:
        """Give a new sequence its cached blocks, and new ones up to its first `tokens`."""
        if seq in self._tables:
            raise ValueError(f"sequence {seq} owns slots already")
        hits = self._hits(request)
        tokens = min(tokens, self._max_model_len)
        blocks = -(-tokens // self._block_size)
        missing = blocks - len(hits)
        if (missing + self._idle_blocks(hits)) * self._block_size > self.free_tokens:
            return False
        self._touch(hits)
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
        self._found = NOTHING_FOUND
        keys = request.block_keys(first, end, self._block_size)
        blocks = self._tables[seq][first:end]
        self._key_of.update(zip(blocks, keys, strict=True))
        blocks_of = self._blocks_of
        if blocks_of.keys().isdisjoint(keys):
            blocks_of.update(zip(keys, blocks, strict=True))
        else:
            for key, block in zip(keys, blocks, strict=True):
                self._register(key, block)

    def free(self, seq: int) -> None:
        """Release the blocks tail first: keyed ones to the back, others to the front (R28)."""
        released = self._tables.pop(seq)
        del self._spare[seq]
        del self._published[seq]
        if self._co_owners and not self._co_owners.keys().isdisjoint(released):
            released = [block for block in released if not self._disown(block)]
        key_of, lru = self._key_of, self._lru
        lru.update(dict.fromkeys([block for block in reversed(released) if block in key_of]))
        self._free_blocks += [block for block in released if block not in key_of]
        self.reusable_tokens = len(lru) * self._block_size
        self._count_taken(-len(released))

    def cached_keys(self) -> int:
        """Return how many different prefixes can be found."""
        return len(self._blocks_of)

    def free_queue(self) -> tuple[int, ...]:
        """Return the free blocks in the order in which they will be taken."""
        return (*reversed(self._free_blocks), *self._lru)

    def check(self) -> None:
        """Raise AssertionError if blocks, keys and reference counts disagree."""
        super().check()
        found = sorted(
            (block, key)
            for key, blocks in self._blocks_of.items()
            for block in ([blocks] if isinstance(blocks, int) else blocks)
        )
        require(found == sorted(self._key_of.items()), "keys and blocks disagree")
        require(all(block in self._key_of for block in self._lru), "a block without key is kept")

    def _idle_blocks(self, hits: list[int]) -> int:
        lru = self._lru
        return sum(1 for block in hits if block in lru)

    def _hits(self, request: RequestView) -> list[int]:
        """Return the leading blocks found, which are remembered until a key comes or goes."""
        known_tokens = request.known_tokens
        number, tokens, hits = self._found
        if number == request.number and tokens == known_tokens:
            return hits
        hits = []
        blocks_of = self._blocks_of
        for key in request.block_keys(0, (known_tokens - 1) // self._block_size, self._block_size):
            blocks = blocks_of.get(key)
            if blocks is None:
                break
            hits.append(blocks if isinstance(blocks, int) else blocks[0])
        self._found = (request.number, known_tokens, hits)
        return hits

    def _touch(self, hits: list[int]) -> None:
        lru, co_owners = self._lru, self._co_owners
        revived = 0
        for block in hits:
            if block in lru:
                del lru[block]
                revived += 1
            else:
                co_owners[block] = co_owners.get(block, 0) + 1
                self.shared_tokens += self._block_size
        self._count_taken(revived)
        self.reusable_tokens = len(lru) * self._block_size

    def _take(self, blocks: int) -> list[int]:
        """Return blocks from the front of the queue; one that had a key is evicted (R27)."""
        free_blocks = self._free_blocks
        if blocks <= len(free_blocks):
            return super()._take(blocks)
        evicted = blocks - len(free_blocks)
        taken = super()._take(len(free_blocks)) if free_blocks else []
        pop_oldest = self._lru.popitem
        oldest = [pop_oldest(False)[0] for _ in range(evicted)]
        self._forget(oldest)
        self._count_taken(evicted)
        self.reusable_tokens = len(self._lru) * self._block_size
        self._found = NOTHING_FOUND
        return taken + oldest

    def _register(self, key: int, block: int) -> None:
        others = self._blocks_of.get(key)
        if others is None:
            self._blocks_of[key] = block
        elif isinstance(others, int):
            self._blocks_of[key] = deque((others, block))
        else:
            others.append(block)

    def _forget(self, evicted: list[int]) -> None:
        pop_key, pop_blocks = self._key_of.pop, self._blocks_of.pop
        for block in evicted:
            key = pop_key(block)
            blocks = pop_blocks(key)
            if not isinstance(blocks, int):  # others have the same tokens
                blocks.remove(block)
                self._blocks_of[key] = blocks if len(blocks) > 1 else blocks[0]
