"""The blocks that several KV groups share: owners, keys by group, and the free queue of vLLM.

Rules R25 to R28 are those of `docs/vllm-rules.md`.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from kvsim.errors import require

NULL_BLOCK = 0


class BlockPool:
    """Blocks 1 to `num_gpu_blocks` - 1; block 0 is the null block, which nobody owns.

    The free queue has two parts: in front the stack of blocks without a key, behind it the blocks
    with a key, least recently used first. Groups never share a block: a key belongs to one group.
    """

    __slots__ = ("_blocks_of", "_free_blocks", "_key_of", "_lru", "_owners", "changes", "shared")

    def __init__(self, num_gpu_blocks: int, groups: int) -> None:
        # The last one is the front of the queue; at first, blocks are taken in ascending order.
        self._free_blocks = list(range(num_gpu_blocks - 1, NULL_BLOCK, -1))
        self._lru: OrderedDict[int, None] = OrderedDict()
        self._owners: dict[int, int] = {}
        self._key_of: dict[int, tuple[int, int]] = {}  # block: group, key
        # Equal blocks computed twice both stay; the oldest is found (R25).
        self._blocks_of: list[dict[int, deque[int]]] = [{} for _ in range(groups)]
        self.shared = 0  # owners of blocks beyond their first ones
        self.changes = 0  # keys that came and went

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return len(self._free_blocks) + len(self._lru)

    @property
    def reusable(self) -> int:
        """Number of free blocks that can be found."""
        return len(self._lru)

    @property
    def owned(self) -> int:
        """Number of blocks with an owner."""
        return len(self._owners)

    def take(self, blocks: int) -> list[int]:
        """Take blocks from the front; one that had a key is evicted (R27). There are enough."""
        taken = []
        for _ in range(blocks):
            if self._free_blocks:
                block = self._free_blocks.pop()
            else:
                block = self._lru.popitem(last=False)[0]
                self._forget(block)
            self._owners[block] = 1
            taken.append(block)
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """Add an owner to blocks that were found; free ones leave the queue."""
        for block in blocks:
            if block in self._owners:
                self._owners[block] += 1
                self.shared += 1
            elif block != NULL_BLOCK:
                del self._lru[block]
                self._owners[block] = 1

    def release(self, blocks: Sequence[int]) -> None:
        """Take one owner from blocks, given tail first; null blocks stand for released ones.

        Those that nobody owns any more return to the queue: with a key at the back, others at the
        front, so that the last of them is reused first (R28).
        """
        without_key = []
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if self._owners[block] > 1:
                self._owners[block] -= 1
                self.shared -= 1
                continue
            del self._owners[block]
            if block in self._key_of:
                self._lru[block] = None
            else:
                without_key.append(block)
        self._free_blocks += reversed(without_key)

    def register(self, group: int, key: int, block: int) -> None:
        """Let a full block be found by its key."""
        self._key_of[block] = group, key
        self._blocks_of[group].setdefault(key, deque()).append(block)
        self.changes += 1

    def find(self, group: int, key: int) -> int | None:
        """Return the block of a group with this key that was registered first (R25)."""
        blocks = self._blocks_of[group].get(key)
        return blocks[0] if blocks else None

    def idle(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks lie in the free queue (R20)."""
        return sum(1 for block in blocks if block in self._lru)

    def cached_keys(self) -> int:
        """Return how many different keys can be found, those of each group counted."""
        return sum(len(blocks_of) for blocks_of in self._blocks_of)

    def free_queue(self) -> tuple[int, ...]:
        """Return the free blocks in the order in which they will be taken."""
        return (*reversed(self._free_blocks), *self._lru)

    def findable_free(self) -> Iterable[int]:
        """Return the free blocks that can be found."""
        return self._lru

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError if the owners are not those of the tables, or a block is lost."""
        counted: dict[int, int] = {}
        for table in tables:
            for block in table:
                if block != NULL_BLOCK:
                    counted[block] = counted.get(block, 0) + 1
        require(counted == self._owners, "reference counts differ from the tables")
        require(sum(counted.values()) - len(counted) == self.shared, "shared is miscounted")
        fates = sorted([*self.free_queue(), *counted])
        require(fates == list(range(1, len(fates) + 1)), "a block is lost, or both owned and free")
        found = sorted(
            (block, (group, key))
            for group, blocks_of in enumerate(self._blocks_of)
            for key, blocks in blocks_of.items()
            for block in blocks
        )
        require(found == sorted(self._key_of.items()), "keys and blocks disagree")
        require(all(block in self._key_of for block in self._lru), "a block without key is kept")

    def _forget(self, block: int) -> None:
        group, key = self._key_of.pop(block)
        blocks = self._blocks_of[group][key]
        blocks.remove(block)
        if not blocks:
            del self._blocks_of[group][key]
        self.changes += 1
