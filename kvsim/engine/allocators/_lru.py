"""The part of vLLM's free queue that holds blocks with a key: least recently used first (R27)."""

from collections.abc import Iterable, Iterator
from itertools import chain


class LruQueue:
    """Blocks in order of their release; they enter in runs, and any may leave from the middle.

    Two plain dicts, which keep the order of insertion and work in C on whole runs. One alone
    would search its emptied front at each eviction; so the oldest blocks stand in the second one,
    in reverse, and leave from its end. It is filled from the first whenever it is empty: a block
    moves once at most.
    """

    __slots__ = ("_newer", "_older")

    def __init__(self) -> None:
        self._newer: dict[int, None] = {}
        self._older: dict[int, None] = {}  # the last one is the least recently used

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._newer) + len(self._older)

    def __iter__(self) -> Iterator[int]:
        """Return the blocks, least recently used first."""
        return chain(reversed(self._older), self._newer)

    def among(self, blocks: Iterable[int]) -> list[int]:
        """Return those of these blocks that are in the queue."""
        newer, older = self._newer, self._older
        if older:
            return [block for block in blocks if block in newer or block in older]
        return [block for block in blocks if block in newer]

    def extend(self, blocks: Iterable[int]) -> None:
        """Put blocks at the back, none of which is in the queue."""
        self._newer.update(dict.fromkeys(blocks))

    def remove(self, blocks: Iterable[int]) -> None:
        """Take out blocks that are in the queue."""
        newer, older = self._newer, self._older
        for block in blocks:
            if block in newer:
                del newer[block]
            else:
                del older[block]

    def take(self, blocks: int) -> list[int]:
        """Take so many blocks from the front; there are enough."""
        taken: list[int] = []
        while len(taken) < blocks:
            if not self._older:
                self._older = dict.fromkeys(reversed(self._newer))
                self._newer = {}
            pop = self._older.popitem
            taken += [pop()[0] for _ in range(min(blocks - len(taken), len(self._older)))]
        return taken
