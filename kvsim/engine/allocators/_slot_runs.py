"""What lies where in a pool: runs of neighboring slots that are used alike, for who draws them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.tables import FREE, HELD, INSIDE, REUSABLE, SLOT_USES, TO_COME

Ints = NDArray[np.int64]

NOBODY = -1

# Of a sequence: how many of its tokens are computed, and how many will get slots in the end.
Filled = Callable[[int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SlotRuns:
    """The slots of a pool in physical order, from 0; one entry a run, all arrays int64.

    Attributes:
        start: Its first slot.
        length: Its slots, at least one.
        use: Index into `kvsim.tables.SLOT_USES`.
        owner: The sequence that has it, the first of several; or `NOBODY`.
    """

    start: Ints
    length: Ints
    use: Ints
    owner: Ints

    @classmethod
    def of(cls, length: Ints, use: Ints, owner: Ints) -> "SlotRuns":
        """Return runs that follow one another; those of no length are left out."""
        there = length > 0
        length, use, owner = length[there], use[there], owner[there]
        return cls(np.cumsum(length) - length, length, use, owner)

    def merged(self) -> "SlotRuns":
        """Return fewer runs: neighbors that are alike are one."""
        changes = (np.diff(self.use) != 0) | (np.diff(self.owner) != 0)
        first = np.concatenate([np.ones(min(1, len(self.use)), dtype=np.bool_), changes])
        length = np.add.reduceat(self.length, np.flatnonzero(first)) if first.any() else self.length
        return SlotRuns(self.start[first], length, self.use[first], self.owner[first])

    def sums(self) -> Ints:
        """Return the slots of each use, shape (uses,)."""
        sums = np.zeros(len(SLOT_USES), dtype=np.int64)
        np.add.at(sums, self.use, self.length)
        return sums


def runs_of(pieces: Iterable[tuple[int, int, int]]) -> SlotRuns:
    """Return the runs of pieces that follow one another: length, use, owner."""
    length, use, owner = np.array([*pieces], dtype=np.int64).reshape(-1, 3).T
    return SlotRuns.of(length, use, owner)


class BlockTable(NamedTuple):
    """Blocks of a sequence, head first, and what of them is filled."""

    blocks: Sequence[int]
    owner: int
    first_tokens: int  # position of the first token of the first block
    computed_tokens: int  # of the sequence
    final_tokens: int
    block_tokens: int  # that a block holds


def runs_of_blocks(
    tables: Sequence[BlockTable], reusable: Iterable[int], blocks: range, block_slots: int
) -> SlotRuns:
    """Return the runs of a pool of these blocks, of so many slots each.

    Blocks in no table are free, some of them with a `reusable` prefix. A block in several tables
    is filled as far as by the one that fills it most.
    """
    block, held, filled, owner = _filled(tables, block_slots)
    last = np.lexsort((-owner, filled, held))  # of what is assigned twice the last one counts
    block, held, filled, owner = (each[last] for each in (block, held, filled, owner))
    block -= blocks.start
    findable = np.fromiter(reusable, np.int64) - blocks.start
    used = 1 + max(block.max(initial=-1), findable.max(initial=-1))
    length = np.zeros((used + 1, 3), dtype=np.int64)
    length[:used, 0] = block_slots
    length[used, 0] = (len(blocks) - used) * block_slots  # all behind the last one in use
    use, owners = np.full(length.shape, FREE), np.full(length.shape, NOBODY)
    use[findable, 0] = REUSABLE
    length[block] = np.stack([held, filled - held, block_slots - filled], axis=1)
    use[block] = HELD, TO_COME, INSIDE
    owners[block] = owner[:, None]
    return SlotRuns.of(length.ravel(), use.ravel(), owners.ravel()).merged()


def _filled(tables: Sequence[BlockTable], block_slots: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return of each block: its number, slots that are filled, or will be, and its owner."""
    counts = np.array([len(table.blocks) for table in tables], dtype=np.int64)
    block = np.fromiter(chain.from_iterable(table.blocks for table in tables), np.int64)
    about = np.array([table[1:] for table in tables], dtype=np.int64).reshape(-1, 5)
    owner, first, computed, final, size = np.repeat(about, counts, axis=0).T
    place = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = first + size * place
    slots_each = block_slots // size
    held = np.clip(computed - first, 0, size) * slots_each
    filled = np.clip(np.maximum(computed, final) - first, 0, size) * slots_each
    return block, held, filled, owner
