"""Paged KV cache: fixed-size blocks anywhere in memory, a block table per sequence, as in vLLM.

Rules R10 to R28 in comments are those of the recorded schedules of vLLM 0.33.0: what its V1
block pool does, seen from outside.
"""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvsim.engine.allocators import KVAllocator, Layout, PoolShape, Shortage
from kvsim.engine.allocators._books import require_sums
from kvsim.engine.allocators._slot_runs import (
    NOBODY,
    BlockTable,
    Filled,
    SlotRuns,
    runs_of_blocks,
)
from kvsim.engine.request import RequestView
from kvsim.errors import require

UNUSED_AT_ONCE = 4096  # blocks that are brought up together, for those who take a few
MANY_BLOCKS = 64  # that are taken from the unused ones themselves


class Paged(Layout):
    """Blocks of `block_size` tokens; `null_block` sets block 0 aside, as vLLM V1 does."""

    kind: Literal["paged"] = "paged"
    null_block: bool = True

    def build(self, shape: PoolShape) -> KVAllocator:
        """Return an empty pool of this shape."""
        if any(group.window_tokens for group in shape.kv_groups) or len(shape.kv_groups) > 1:
            from kvsim.engine.allocators._hybrid import HybridPool

            return HybridPool(shape)
        if shape.enable_prefix_caching:
            from kvsim.engine.allocators._prefix_cache import PrefixCachingPool

            return PrefixCachingPool(shape, self.null_block)
        return PagedPool(shape, self.null_block)


@dataclass(frozen=True, slots=True)
class SwappedTables:
    """Block tables of sequences whose blocks were copied to the host.

    Attributes:
        tables: Sequence, where each of its blocks is, and its slots beyond its length. Copies are
            numbered from 0; `~block` is a resident's block, which stayed in the pool.
        blocks: Number of copies.
    """

    tables: Sequence[tuple[int, list[int], int]]
    blocks: int

    @property
    def owner(self) -> int:
        """The first of the sequences, which stands for all."""
        return self.tables[0][0]


class PagedPool:
    """Block tables, owners and free blocks of one replica.

    A sequence's *length* is the sum of the tokens asked for it; its table covers that length
    rounded up to whole blocks. Whoever asks for a block's worth each time the table is full gets
    exactly one block each time. Copy-on-write goes by the length too, so sequences that are to
    be forked ask for exactly the tokens they write.

    The free queue is a stack. Blocks without a cache key are released to the front of vLLM's
    queue and taken from the front (R27, R28), and blocks with a key lie behind all others; so
    the part without keys is last in, first out. Blocks that nobody has used yet lie behind the
    stack as a mere range: the memory of a large pool grows with its use.

    Beyond what all allocators do, it has residents, and swaps; `copied_blocks` counts what
    copy-on-write has copied.
    """

    slots_per_token = 1
    most_blocks_at_once = 1
    released_tokens = 0
    release_offsets: tuple[int, ...] = ()

    __slots__ = (
        "_block_size",
        "_co_owners",
        "_first_block",
        "_free_blocks",
        "_max_model_len",
        "_num_blocks",
        "_resident",
        "_resident_blocks",
        "_spare",
        "_tables",
        "_unused",
        "_watermark_blocks",
        "block_tokens",
        "capacity_tokens",
        "copied_blocks",
        "free_tokens",
        "growth_tokens",
        "holes_tokens",
        "owed_blocks",
        "resident_tokens",
        "reusable_tokens",
        "rounding_tokens",
        "shared_empty_tokens",
        "shared_tokens",
        "taken_tokens",
    )

    def __init__(self, shape: PoolShape, null_block: bool = True) -> None:
        self._block_size = shape.block_size_tokens
        self._max_model_len = shape.max_model_len_tokens
        self._first_block = int(null_block)
        self._num_blocks = shape.num_gpu_blocks - self._first_block
        # The watermark is a share of all blocks, the null block included (R11).
        self._watermark_blocks = int(shape.watermark * shape.num_gpu_blocks)
        self._free_blocks: list[int] = []  # the last one is the front of the queue
        self._unused = range(self._first_block, shape.num_gpu_blocks)  # taken in ascending order
        self._tables: dict[int, list[int]] = {}
        self.owed_blocks = 0  # taken, but in nobody's table yet
        self._spare: dict[int, int] = {}  # slots beyond the length: less than a block
        # Owners of a block beyond its first; a block with one owner has no entry.
        self._co_owners: dict[int, int] = {}
        self.capacity_tokens = self.free_tokens = self._num_blocks * self._block_size
        self.growth_tokens = self.block_tokens = self._block_size
        self.taken_tokens = self.rounding_tokens = self.holes_tokens = 0
        self.shared_tokens = self.shared_empty_tokens = self.reusable_tokens = 0
        self.resident_tokens = 0
        self._resident: list[int] = []  # sequences that stay
        self._resident_blocks: set[int] = set()
        self.copied_blocks = 0

    def can_ever_fit(self, request: RequestView) -> bool:
        """Tell whether an empty pool could serve the request to its `max_tokens`.

        The last output token never gets a slot: nothing is computed from it (R10).
        """
        longest = min(request.prompt_tokens + request.max_tokens, self._max_model_len)
        return -(-(longest - 1) // self._block_size) <= self._num_blocks

    def shortage(
        self, request: RequestView, known_tokens: int, idle: bool, at_once: bool = False
    ) -> Shortage:
        """Tell whether blocks for all `known_tokens` are free, beside the watermark (R17, R19)."""
        needed = -(-min(known_tokens, self._max_model_len) // self._block_size)
        return self.shortage_of(needed, idle)

    def shortage_of(self, blocks: int, idle: bool) -> Shortage:
        """Tell whether so many blocks are free, beside the watermark unless the engine is idle."""
        kept_back = 0 if idle else self._watermark_blocks
        return Shortage.of(blocks, kept_back, self.free_tokens // self._block_size)

    def allocate(self, request: RequestView, seq: int, tokens: int) -> bool:
        """Give a new sequence blocks for `tokens`; False if there are too few free ones.

        Raises:
            ValueError: The sequence owns slots already.
        """
        if seq in self._tables:
            raise ValueError(f"sequence {seq} owns slots already")
        tokens = min(tokens, self._max_model_len)
        missing = -(-tokens // self._block_size)
        if missing * self._block_size > self.free_tokens:
            return False
        self._tables[seq] = self._take(missing)
        self._spare[seq] = missing * self._block_size - tokens
        return True

    def append(self, seq: int, tokens: int) -> bool:
        """Make room for `tokens` more; copy the block that they begin in if others share it."""
        # Only the last block can be partly filled: a write begins there or in a new block.
        co_owners = self._co_owners
        if co_owners and self._spare[seq] and self._tables[seq][-1] in co_owners:
            return self._append_copying(seq, tokens)
        return self._extend(seq, tokens)

    def owe(self, blocks: int) -> None:
        """Count blocks as taken, of which `settle` will say whose they are; there are enough."""
        self._count_taken(blocks)
        self.owed_blocks += blocks

    def settle(self, seq: int, tokens: int) -> None:
        """Give a sequence of so many tokens the blocks that it is still owed."""
        table = self._tables[seq]
        missing = -(-min(tokens, self._max_model_len) // self._block_size) - len(table)
        if missing > 0:
            self.owed_blocks -= missing
            self._count_taken(-missing)
            table += self._take(missing)

    def release(self, seq: int, computed_tokens: int) -> None:
        """Do nothing: full attention reads all tokens."""

    def fork(self, parent: int, child: int) -> None:
        """Let a new sequence share all blocks of another one.

        Raises:
            KeyError: The parent owns no slots.
            ValueError: The child owns slots already.
        """
        if child in self._tables:
            raise ValueError(f"sequence {child} owns slots already")
        table = self._tables[parent].copy()
        self._share(table)
        self._tables[child] = table
        self._spare[child] = spare = self._spare[parent]
        self.shared_empty_tokens += spare

    def keep_resident(self, seq: int) -> None:
        """Let a sequence stay for ever: what it holds is there for others to fork from.

        It isn't one that uses memory of its own: slots are shared if there are several others, and
        if there is none, fewer than none are.
        """
        slots_tokens = self.slots_tokens(seq)
        self.resident_tokens += slots_tokens
        self.shared_tokens -= slots_tokens
        self._resident.append(seq)
        self._resident_blocks.update(self._tables[seq])
        self.shared_empty_tokens -= self._spare[seq]

    def free(self, seq: int) -> None:
        """Take back the blocks that nobody else owns, so that the last is reused first (R28)."""
        released = self._tables.pop(seq)
        spare = self._spare.pop(seq)
        if self._co_owners:
            if spare and released[-1] in self._co_owners:
                self.shared_empty_tokens -= spare
            released = self._disowned(released)
        self._free_blocks += released
        self._count_taken(-len(released))

    def distinct_blocks(self, seqs: Iterable[int]) -> int:
        """Return how many blocks sequences own together, residents' blocks not counted."""
        return len(set().union(*(self._tables[seq] for seq in seqs)) - self._resident_blocks)

    def swap_out(self, seqs: Iterable[int]) -> SwappedTables:
        """Free the blocks of sequences; residents' blocks stay where they are.

        What they share with others than one another is copied, as they won't share it any more.
        """
        copies: dict[int, int] = {}
        tables = []
        for seq in seqs:
            places = [
                ~block if block in self._resident_blocks else copies.setdefault(block, len(copies))
                for block in self._tables[seq]
            ]
            tables.append((seq, places, self._spare[seq]))
            self.free(seq)
        return SwappedTables(tables, len(copies))

    def swap_in(self, swapped: SwappedTables) -> bool:
        """Give sequences blocks again, shared as before; False if there are too few free ones."""
        if swapped.blocks * self._block_size > self.free_tokens:
            return False
        copies = self._take(swapped.blocks)
        owned = self._resident_blocks.copy()
        for seq, places, spare in swapped.tables:
            table = [copies[place] if place >= 0 else ~place for place in places]
            self._share([block for block in table if block in owned])
            if spare and table[-1] in owned:
                self.shared_empty_tokens += spare
            owned.update(table)
            self._tables[seq] = table
            self._spare[seq] = spare
        return True

    def slots_tokens(self, seq: int) -> int:
        """Return the slots of a sequence's blocks."""
        return len(self._tables[seq]) * self._block_size

    def unused_tokens(self, seq: int, final_tokens: int) -> int:
        """Return the slots of a sequence's blocks beyond its final length."""
        return max(0, len(self._tables[seq]) * self._block_size - final_tokens)

    def slot(self, seq: int, position: int) -> int:
        """Translate a token position through the block table."""
        index, offset = divmod(position, self._block_size)
        if position < 0:
            raise IndexError(f"negative position {position}")
        return self._tables[seq][index] * self._block_size + offset

    def slot_runs(self, filled: Filled) -> SlotRuns:
        """Return the blocks of all tables.

        Of those that are owed nobody knows whose they are, or how full: the next free ones count
        as held, by nobody.
        """
        size = self._block_size
        tables = [
            BlockTable(table, seq, 0, *filled(seq), size) for seq, table in self._tables.items()
        ]
        if owed := self.owed_blocks:
            tables.append(BlockTable(self.free_queue()[:owed], NOBODY, 0, owed * size, 0, size))
        blocks = range(self._first_block, self._first_block + self._num_blocks)
        return runs_of_blocks(tables, self._findable_free_blocks(), blocks, size)

    def lookup(self, request: RequestView) -> int:
        """Return 0: nothing outlives its sequence."""
        return 0

    def publish(self, request: RequestView, seq: int, tokens: int) -> None:
        """Do nothing: nothing outlives its sequence."""

    def take_moved_seqs(self) -> list[int]:
        """Return none: blocks never move, and a copy-on-write rides on the step that writes."""
        return []

    def block_table(self, seq: int) -> tuple[int, ...]:
        """Return the blocks of a sequence, head first."""
        return tuple(self._tables[seq])

    def block_tables(self, seq: int) -> tuple[tuple[int, ...], ...]:
        """Return the block table of the only KV group."""
        return (self.block_table(seq),)

    def owners(self, block: int) -> int:
        """Return the reference count of a block that is not free."""
        return 1 + self._co_owners.get(block, 0)

    def free_queue(self) -> tuple[int, ...]:
        """Return the free blocks in the order in which they will be taken."""
        return (*reversed(self._free_blocks), *self._unused)

    def check(self) -> None:
        """Raise AssertionError if a block has two fates, none, or a wrong reference count."""
        counted = Counter(block for table in self._tables.values() for block in table)
        shared = {block: owners - 1 for block, owners in counted.items() if owners > 1}
        require(shared == self._co_owners, "reference counts differ from the tables")
        free = self._used_free_blocks()
        used = range(self._first_block, self._unused.start)
        owned_or_free = np.array([*free, *counted], dtype=np.int64)
        fates = np.bincount(owned_or_free, minlength=used.stop)
        one_each = fates.sum() == len(used) and bool((fates[used.start :] == 1).all())
        require(one_each, "a block is lost, or both owned and free")
        spares_fit = all(0 <= spare < self._block_size for spare in self._spare.values())
        require(spares_fit, "a table is longer or shorter than its sequence")
        taken = (len(counted) + self.owed_blocks) * self._block_size
        free_blocks = len(free) + len(self._unused) - self.owed_blocks
        require_sums(self, taken, 0, free_blocks * self._block_size)
        shared_tokens = (sum(counted.values()) - len(counted)) * self._block_size
        shared_tokens -= self.resident_tokens
        require(self.shared_tokens == shared_tokens, "shared slots are miscounted")
        empty_tokens = self._empty_tokens_of(shared)
        require(self.shared_empty_tokens == empty_tokens, "empty shared slots are miscounted")

    def _empty_tokens_of(self, shared: Container[int]) -> int:
        """Count the empty slots of shared last blocks, once for each owner but the first.

        Residents are no owners.
        """
        spare_of, tables = self._spare, self._tables
        ends = {seq: table[-1] for seq, table in tables.items() if table and table[-1] in shared}
        empty_tokens = sum(spare_of[seq] for seq in ends)
        empty_tokens -= sum({block: spare_of[seq] for seq, block in ends.items()}.values())
        return empty_tokens - sum(spare_of[seq] for seq in self._resident)

    def _share(self, blocks: Sequence[int]) -> None:
        """Add an owner to blocks that have one."""
        co_owners = self._co_owners
        for block in blocks:
            co_owners[block] = co_owners.get(block, 0) + 1
        self.shared_tokens += len(blocks) * self._block_size

    def _extend(self, seq: int, tokens: int) -> bool:
        """Append to a sequence that may write to its last block."""
        spare = self._spare[seq] - tokens
        if spare < 0:
            missing = -(spare // self._block_size)
            if missing * self._block_size > self.free_tokens:
                return False
            self._tables[seq] += self._take(missing)
            spare += missing * self._block_size
        self._spare[seq] = spare
        return True

    def _take(self, blocks: int) -> list[int]:
        """Take blocks from the front of the queue; the caller knows that there are enough."""
        free_blocks = self._free_blocks
        self._count_taken(blocks)
        if blocks > len(free_blocks):
            if blocks >= MANY_BLOCKS:
                return self._take_unused(blocks)
            self._bring_up(blocks - len(free_blocks))
        if blocks == 1:
            return [free_blocks.pop()]
        taken = free_blocks[: -blocks - 1 : -1]
        del free_blocks[len(free_blocks) - blocks :]
        return taken

    def _take_unused(self, blocks: int) -> list[int]:
        """Return all free blocks that were used before, and unused ones."""
        taken = self._free_blocks[::-1]
        self._free_blocks.clear()
        missing = blocks - len(taken)
        taken += self._unused[:missing]
        self._unused = self._unused[missing:]
        return taken

    def _bring_up(self, missing: int) -> None:
        """Put unused blocks behind the free ones, at least as many as are missing."""
        more = max(missing, UNUSED_AT_ONCE)
        self._free_blocks[:0] = reversed(self._unused[:more])
        self._unused = self._unused[more:]

    def _used_free_blocks(self) -> list[int]:
        """Return the free blocks that somebody has used or that were brought up."""
        return self._free_blocks

    def _findable_free_blocks(self) -> Iterable[int]:
        """Return the free blocks whose prefix can be found."""
        return ()

    def _count_taken(self, blocks: int) -> None:
        tokens = blocks * self._block_size
        self.taken_tokens += tokens
        self.free_tokens -= tokens

    def _append_copying(self, seq: int, tokens: int) -> bool:
        """Append to a sequence whose last block is partly filled and shared: it gets its own."""
        spare = self._spare[seq] - tokens
        missing = -(spare // self._block_size)
        if (missing + 1) * self._block_size > self.free_tokens:
            return False
        table = self._tables[seq]
        self._disown(table.pop())
        self.copied_blocks += 1
        self.shared_empty_tokens -= self._spare[seq]
        table += self._take(missing + 1)
        self._spare[seq] = spare + missing * self._block_size
        return True

    def _disowned(self, blocks: list[int]) -> list[int]:
        """Take one owner from each block; return those that nobody owns any more."""
        co_owners = self._co_owners
        if co_owners.keys().isdisjoint(blocks):
            return blocks
        return [block for block in blocks if block not in co_owners or not self._disown(block)]

    def _disown(self, block: int) -> bool:
        """Take one owner from a block; False if that was its only one."""
        others = self._co_owners.get(block, 0)
        if others > 1:
            self._co_owners[block] = others - 1
        elif others == 1:
            del self._co_owners[block]
        else:
            return False
        self.shared_tokens -= self._block_size
        return True
