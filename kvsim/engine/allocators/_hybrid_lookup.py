"""What several KV groups have cached of a request: the longest prefix found in all (R37)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvsim.engine.allocators._block_pool import NULL_BLOCK, BlockPool
from kvsim.engine.request import RequestView
from kvsim.memory.kv_groups import KVGroup


@dataclass(frozen=True, slots=True)
class Hits:
    """What was found: leading blocks of each group, null blocks where a window needs none."""

    tokens: int
    tables: list[list[int]]
    longest_tokens: int = 0  # the most that any group has, whatever the others lack

    def blocks(self) -> Iterator[int]:
        """Yield the blocks of all groups."""
        for table in self.tables:
            yield from table


class Lookup:
    """Finds the blocks of waiting requests; the last answer is kept until a key comes or goes.

    Equal groups are looked up together: a block counts if each of them has it.
    """

    __slots__ = ("_aligned_tokens", "_alike", "_blocks", "_count", "_last", "_last_of")

    def __init__(self, groups: Sequence[KVGroup], blocks: BlockPool) -> None:
        self._blocks = blocks
        self._count = len(groups)
        self._aligned_tokens = math.lcm(*(group.block_size for group in groups))
        alike: dict[KVGroup, list[int]] = {}
        for index, group in enumerate(groups):
            alike.setdefault(group, []).append(index)
        # Full attention first: what it lacks no window can make up for.
        self._alike = sorted(alike.items(), key=lambda item: item[0].window_tokens > 0)
        self._last_of = (-1, -1, -1)  # request, known tokens, changes of keys
        self._last = Hits(0, [])

    def hits(self, request: RequestView) -> Hits:
        """Return the longest prefix that all groups have; never the last known token (R22)."""
        asked = (request.number, request.known_tokens, self._blocks.changes)
        if asked != self._last_of:
            self._last_of, self._last = asked, self._search(request)
        return self._last

    def _search(self, request: RequestView) -> Hits:
        """Shorten the prefix until all groups agree on it."""
        limit_tokens = request.known_tokens - 1
        longest_tokens = 0
        tables: list[list[int]] = [[] for _ in range(self._count)]
        agreed = 0
        while agreed < len(self._alike):
            agreed = 0
            for group, members in self._alike:
                found = self._leading(request, group, members, limit_tokens)
                for member, table in zip(members, found, strict=True):
                    tables[member] = table
                tokens = len(found[0]) * group.block_size
                longest_tokens = max(longest_tokens, tokens)
                agreed = agreed + 1 if tokens == limit_tokens else 1
                limit_tokens = tokens
        return Hits(limit_tokens, tables, longest_tokens)

    def _leading(
        self, request: RequestView, group: KVGroup, members: list[int], limit_tokens: int
    ) -> list[list[int]]:
        """Return the blocks of equal groups up to the limit, for each of them."""
        end = limit_tokens // self._aligned_tokens * self._aligned_tokens // group.block_size
        keys = request.block_keys(0, end, group.block_size)
        find = self._leading_window if group.window_tokens else self._leading_full
        return find(keys, group, members)

    def _leading_full(self, keys: list[int], group: KVGroup, members: list[int]) -> list[list[int]]:
        rows: list[list[int]] = []
        for key in keys:
            row = self._row(key, members)
            if row is None:
                break
            rows.append(row)
        return _columns(self._whole(rows, group), members)

    def _leading_window(
        self, keys: list[int], group: KVGroup, members: list[int]
    ) -> list[list[int]]:
        """Return the rightmost run of blocks that fills the window, else the one at the front.

        Runs end at a multiple of all block sizes.
        """
        run: list[list[int]] = []  # from its last block to its first
        for place in range(len(keys) - 1, -1, -1):
            row = self._row(keys[place], members)
            if row is None:
                run.clear()
            elif run or (place + 1) * group.block_size % self._aligned_tokens == 0:
                run.append(row)
                if len(run) >= group.window_blocks:
                    unread = [[NULL_BLOCK] * len(members)] * place
                    return _columns(unread + run[::-1], members)
        return _columns(run[::-1], members)

    def _row(self, key: int, members: list[int]) -> list[int] | None:
        """Return the block of each group with this key, None if one of them has none."""
        row = []
        for member in members:
            block = self._blocks.find(member, key)
            if block is None:
                return None
            row.append(block)
        return row

    def _whole(self, rows: list[list[int]], group: KVGroup) -> list[list[int]]:
        tokens = len(rows) * group.block_size
        return rows[: tokens // self._aligned_tokens * self._aligned_tokens // group.block_size]


def _columns(rows: list[list[int]], members: list[int]) -> list[list[int]]:
    if not rows:
        return [[] for _ in members]
    return [list(column) for column in zip(*rows, strict=True)]
