"""KV groups that share one pool of blocks: full attention, sliding windows, or both, as in vLLM.

Each group has a block table for each sequence, and all take their blocks from one pool. A sliding
group gives blocks back when no later token reads them. Rules R20 to R38 are those of
`docs/vllm-rules.md`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvsim.engine.allocators import PoolShape, Shortage
from kvsim.engine.allocators._block_pool import NULL_BLOCK, BlockPool
from kvsim.engine.allocators._books import require_sums
from kvsim.engine.allocators._hybrid_lookup import Hits, Lookup
from kvsim.engine.allocators._slot_runs import (
    BlockTable,
    Filled,
    SlotRuns,
    runs_of_blocks,
)
from kvsim.engine.request import RequestView
from kvsim.errors import require
from kvsim.memory.kv_groups import slots_of


@dataclass(slots=True)
class _Sequence:
    """What a sequence owns: a table for each group, null blocks where a window has passed."""

    length_tokens: int  # asked for
    tables: list[list[int]]
    passed: list[int]  # null blocks at the head of each table
    published: list[int]  # blocks of each table that were offered, or found
    shared_prefix_tokens: int = 0  # found in one group, but not in all; else 0


class HybridPool:
    """Block tables by sequence and group, over one pool of blocks.

    A slot holds one token's keys and values in the layers of one group. Where groups have blocks
    of different sizes, all blocks count the same number of slots, and a token fills several in
    the groups whose blocks are small.
    """

    holes_tokens = rounding_tokens = shared_empty_tokens = resident_tokens = 0

    __slots__ = (
        "_blocks",
        "_groups",
        "_lookup",
        "_max_model_len",
        "_most_blocks",
        "_num_blocks",
        "_retention_tokens",
        "_sequences",
        "_watermark_blocks",
        "block_tokens",
        "capacity_tokens",
        "free_tokens",
        "growth_tokens",
        "most_blocks_at_once",
        "release_offsets",
        "released_tokens",
        "reusable_tokens",
        "shared_tokens",
        "slots_per_token",
        "taken_tokens",
    )

    def __init__(self, shape: PoolShape) -> None:
        groups = self._groups = shape.kv_groups
        self.block_tokens, self.slots_per_token = slots_of(groups)
        windows_tokens = [group.window_tokens for group in groups if group.window_tokens]
        self.growth_tokens = math.gcd(*(group.block_size for group in groups))
        self.most_blocks_at_once = len(groups)
        self.release_offsets = tuple(
            sorted({(window - 1) % self.growth_tokens for window in windows_tokens})
        )
        self._max_model_len = shape.max_model_len_tokens
        self._num_blocks = shape.num_gpu_blocks - 1  # but for the null block (R11)
        self._watermark_blocks = int(shape.watermark * shape.num_gpu_blocks)
        self._most_blocks = [
            group.most_blocks(shape.max_model_len_tokens, shape.max_chunk_tokens)
            for group in groups
        ]
        self._retention_tokens = shape.prefix_cache_retention_interval
        self._blocks = BlockPool(shape.num_gpu_blocks, len(groups))
        self._lookup = Lookup(groups, self._blocks) if shape.enable_prefix_caching else None
        self._sequences: dict[int, _Sequence] = {}
        self.capacity_tokens = self._num_blocks * self.block_tokens
        self.released_tokens = 0
        self._count()

    def can_ever_fit(self, request: RequestView) -> bool:
        """Tell whether an empty pool could serve the request, by the bound of R36."""
        longest = min(request.prompt_tokens + request.max_tokens, self._max_model_len)
        return sum(self._needed(longest - 1)) <= self._num_blocks

    def lookup(self, request: RequestView) -> int:
        """Return how many of the known tokens are cached in all groups; never the last one."""
        return self._hits(request).tokens

    def shortage(
        self, request: RequestView, known_tokens: int, idle: bool, at_once: bool = False
    ) -> Shortage:
        """Tell whether the blocks that are not cached are free (R17, R20, R36)."""
        tokens = min(known_tokens, self._max_model_len)
        hits = self._hits(request)
        needed = self._blocks.idle(hits.blocks())
        for blocks, found in zip(self._needed(tokens, at_once), hits.tables, strict=True):
            needed += max(0, blocks - len(found))
        return Shortage.of(needed, 0 if idle else self._watermark_blocks, self._blocks.free)

    def allocate(self, request: RequestView, seq: int, tokens: int) -> bool:
        """Give a new sequence its cached blocks, and new ones up to its first `tokens`.

        Raises:
            ValueError: The sequence owns slots already.
        """
        if seq in self._sequences:
            raise ValueError(f"sequence {seq} owns slots already")
        tokens = min(tokens, self._max_model_len)
        if self.shortage(request, tokens, idle=True, at_once=True):
            return False
        hits = self._hits(request)
        self._blocks.touch(hits.blocks())
        passed = [table.count(NULL_BLOCK) for table in hits.tables]
        self._sequences[seq] = _Sequence(
            hits.tokens,
            [list(table) for table in hits.tables],
            passed,
            [len(table) for table in hits.tables],
            hits.longest_tokens if hits.longest_tokens > hits.tokens else 0,
        )
        self.released_tokens += sum(passed) * self.block_tokens
        return self.append(seq, tokens - hits.tokens)

    def append(self, seq: int, tokens: int) -> bool:
        """Make room for `tokens` more in each group, group by group."""
        own = self._sequences[seq]
        length_tokens = own.length_tokens + tokens
        missing = [
            max(0, blocks - len(table))
            for blocks, table in zip(
                self._needed(length_tokens, at_once=True), own.tables, strict=True
            )
        ]
        if sum(missing) > self._blocks.free:
            return False
        for table, blocks in zip(own.tables, missing, strict=True):
            table += self._blocks.take(blocks)
        own.length_tokens = length_tokens
        self._count()
        return True

    def release(self, seq: int, computed_tokens: int) -> None:
        """Put null blocks where the windows have passed, the last ones first (R35)."""
        own = self._sequences[seq]
        for index, group in enumerate(self._groups):
            first, end = own.passed[index], group.passed_blocks(computed_tokens)
            if end > first:
                table = own.tables[index]
                self._blocks.release(table[first:end][::-1])
                table[first:end] = [NULL_BLOCK] * (end - first)
                own.passed[index] = end
                self.released_tokens += (end - first) * self.block_tokens
        self._count()

    def fork(self, parent: int, child: int) -> None:
        """Refuse: as in vLLM V1, samples share their prompt by finding it.

        Raises:
            ValueError: Always.
        """
        raise ValueError("with several KV groups a child is allocated by itself")

    def publish(self, request: RequestView, seq: int, tokens: int) -> None:
        """Make full blocks of the first `tokens` findable, up to a multiple of all sizes (R38)."""
        if self._lookup is None:
            return
        own = self._sequences[seq]
        tokens = min(tokens, self._max_model_len)
        tokens -= tokens % self.block_tokens
        for index, group in enumerate(self._groups):
            first, end = own.published[index], tokens // group.block_size
            if end <= first:
                continue
            own.published[index] = end
            keys = request.block_keys(first, end, group.block_size)
            table = own.tables[index]
            for place in self._kept(request, own, index, first, end):
                if table[place] != NULL_BLOCK:
                    self._blocks.register(index, keys[place - first], table[place])

    def free(self, seq: int) -> None:
        """Release the blocks group by group, each tail first (R28, R35)."""
        own = self._sequences.pop(seq)
        for table in own.tables:
            self._blocks.release(table[::-1])
        self.released_tokens -= sum(own.passed) * self.block_tokens
        self._count()

    def slots_tokens(self, seq: int) -> int:
        """Return the slots of a sequence's tables, those included that were taken back."""
        return sum(len(table) for table in self._sequences[seq].tables) * self.block_tokens

    def unused_tokens(self, seq: int, final_tokens: int) -> int:
        """Return the slots of a sequence's tables beyond its final length, in all groups."""
        return sum(
            max(0, len(table) * group.block_size - final_tokens)
            * (self.block_tokens // group.block_size)
            for group, table in zip(self._groups, self._sequences[seq].tables, strict=True)
        )

    def slot(self, seq: int, position: int) -> int:
        """Translate a token position through the first group's block table."""
        size = self._groups[0].block_size
        index, offset = divmod(position, size)
        block = self._sequences[seq].tables[0][index]
        if position < 0 or block == NULL_BLOCK:
            raise IndexError(f"position {position} has no slot")
        return block * size + offset

    def slot_runs(self, filled: Filled) -> SlotRuns:
        """Return the blocks of all tables of all groups, but those that windows have passed."""
        tables = []
        for seq, own in self._sequences.items():
            fill = filled(seq)
            for group, table, passed in zip(self._groups, own.tables, own.passed, strict=True):
                size = group.block_size
                tables.append(BlockTable(table[passed:], seq, passed * size, *fill, size))
        blocks = range(1, 1 + self._num_blocks)
        return runs_of_blocks(tables, self._blocks.findable_free(), blocks, self.block_tokens)

    def take_moved_seqs(self) -> list[int]:
        """Return none: blocks never move."""
        return []

    def block_tables(self, seq: int) -> tuple[tuple[int, ...], ...]:
        """Return the blocks of a sequence by group, head first; 0 where a window has passed."""
        return tuple(tuple(table) for table in self._sequences[seq].tables)

    def cached_keys(self) -> int:
        """Return how many different prefixes can be found, those of each group counted."""
        return self._blocks.cached_keys()

    def free_queue(self) -> tuple[int, ...]:
        """Return the free blocks in the order in which they will be taken."""
        return self._blocks.free_queue()

    def check(self) -> None:
        """Raise AssertionError if blocks, keys, reference counts or sums disagree."""
        sequences = self._sequences.values()
        self._blocks.check([table for own in sequences for table in own.tables])
        for own in sequences:
            nulls = [table.count(NULL_BLOCK) for table in own.tables]
            require(own.passed == nulls, "null blocks are miscounted")
        passed = sum(sum(own.passed) for own in sequences)
        require(self.released_tokens == passed * self.block_tokens, "released is miscounted")
        require_sums(
            self,
            self._blocks.owned * self.block_tokens,
            0,
            len(self.free_queue()) * self.block_tokens,
        )

    def _hits(self, request: RequestView) -> Hits:
        if self._lookup is None:
            return Hits(0, [[]] * len(self._groups))
        return self._lookup.hits(request)

    def _needed(self, tokens: int, at_once: bool = False) -> Iterator[int]:
        """Yield the blocks that each group needs for so many tokens; fewer if windows pass."""
        for group, most in zip(self._groups, self._most_blocks, strict=True):
            blocks = group.blocks(tokens)
            yield blocks if at_once else min(blocks, most)

    def _kept(
        self, request: RequestView, own: _Sequence, index: int, first: int, end: int
    ) -> range | list[int]:
        """Return which blocks from `first` up to `end` a group makes findable (R38).

        Of a window these are the blocks that are read where a later prompt may go on: at the end
        of this one, where full attention found more than the windows, and at each retention
        interval.
        """
        group, interval = self._groups[index], self._retention_tokens
        if not group.window_tokens or interval is None:
            return range(first, end)
        size, window_blocks = group.block_size, group.window_blocks
        last_tokens = request.prompt_tokens - 1
        goals_tokens = {last_tokens - last_tokens % self.block_tokens, own.shared_prefix_tokens}
        if interval:
            until_tokens = (end + window_blocks) * size + self.block_tokens
            goals_tokens |= set(range(first * size // interval * interval, until_tokens, interval))
        kept: set[int] = set()
        for goal_tokens in goals_tokens:
            goal = goal_tokens // self.block_tokens * self.block_tokens // size
            kept |= set(range(max(first, goal - window_blocks), min(end, goal)))
        return sorted(kept)

    def _count(self) -> None:
        blocks, slots = self._blocks, self.block_tokens
        self.taken_tokens = blocks.owned * slots
        self.free_tokens = blocks.free * slots
        self.shared_tokens = blocks.shared * slots
        self.reusable_tokens = blocks.reusable * slots
