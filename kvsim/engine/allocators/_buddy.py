"""Buddy allocation (Knowlton 1965): chunks of powers of two, split in halves and merged again.

The PagedAttention paper (Kwon et al., SOSP 2023, section 6.1) gives its contiguous baselines a
buddy allocator to place their reservations.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from kvsim.errors import require


class BuddyForest:
    """An address space of buddy trees, one for each binary digit of the capacity, largest first.

    So each chunk lies at a multiple of its size, and a chunk's buddy differs from it in one bit
    of the address. The buddy of a whole tree lies in smaller trees or beyond the end, where no
    chunk of that size exists: trees need no bookkeeping of their own.
    """

    __slots__ = ("_free_starts", "free_tokens", "largest_tokens")

    def __init__(self, capacity: int) -> None:
        # Free chunks by the logarithm of their size, each list by address.
        self._free_starts: list[list[int]] = [[] for _ in range(capacity.bit_length())]
        start = 0
        for order in reversed(range(capacity.bit_length())):
            if capacity >> order & 1:
                self._free_starts[order].append(start)
                start += 1 << order
        self.free_tokens = capacity
        self._find_largest()

    def chunk_tokens(self, tokens: int) -> int:
        """Return `tokens` rounded up to a power of two."""
        return 1 << _order_of(tokens)

    def take(self, tokens: int) -> int:
        """Take the first of the smallest chunks that suffice and split off what is too much."""
        if tokens > self.largest_tokens:
            return -1
        order = wanted = _order_of(tokens)
        while not self._free_starts[order]:
            order += 1
        start = self._free_starts[order].pop(0)
        while order > wanted:
            order -= 1
            self._free_starts[order].append(start + (1 << order))  # there were none of this size
        self.free_tokens -= 1 << wanted
        self._find_largest()
        return start

    def give(self, start: int, tokens: int) -> None:
        """Free a chunk and merge it with its buddy, as long as that is free too."""
        order = _order_of(tokens)
        self.free_tokens += 1 << order
        while self._remove(order, start ^ (1 << order)):
            start &= ~(1 << order)
            order += 1
        insort(self._free_starts[order], start)
        self._find_largest()

    def too_small_tokens(self, tokens: int) -> int:
        """Return the slots in free chunks of fewer than `tokens`."""
        smaller = self._free_starts[: _order_of(tokens)]
        return sum([len(starts) << order for order, starts in enumerate(smaller)])

    def holes(self) -> Sequence[tuple[int, int]]:
        """Return the free chunks as (address, size in tokens), by address."""
        return sorted(
            (start, 1 << order)
            for order, starts in enumerate(self._free_starts)
            for start in starts
        )

    def check(self) -> None:
        """Raise AssertionError if a free chunk is misplaced or apart from its free buddy."""
        for order, starts in enumerate(self._free_starts):
            size = 1 << order
            require(all(start % size == 0 for start in starts), f"a chunk of {size} is misplaced")
            pairs = {start ^ size for start in starts} & set(starts)
            require(not pairs, f"free buddies of {size} are apart")

    def _remove(self, order: int, start: int) -> bool:
        """Take one chunk out of the free ones; False if it is not among them."""
        starts = self._free_starts[order]
        index = bisect_left(starts, start)
        if index == len(starts) or starts[index] != start:
            return False
        del starts[index]
        return True

    def _find_largest(self) -> None:
        order = len(self._free_starts) - 1
        while order >= 0 and not self._free_starts[order]:
            order -= 1
        self.largest_tokens = 1 << order if order >= 0 else 0


def _order_of(tokens: int) -> int:
    """Return the exponent of the smallest power of two that is not below `tokens`."""
    return (tokens - 1).bit_length()
