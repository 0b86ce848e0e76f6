"""A contiguous range of slots with holes: where a chunk is placed, and how holes grow together."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

from kvsim.errors import require


class AddressSpace(Protocol):
    """Hands out chunks of neighboring slots; an address is the number of a chunk's first slot."""

    free_tokens: int  # in all holes
    largest_tokens: int  # the largest hole

    def chunk_tokens(self, tokens: int) -> int:
        """Return the slots that a chunk for `tokens` really takes: more, if sizes are rounded."""
        ...

    def take(self, tokens: int) -> int:
        """Take a chunk for `tokens` and return its address, or -1 if no hole is large enough."""
        ...

    def give(self, start: int, tokens: int) -> None:
        """Give back the chunk that was taken for `tokens` at this address."""
        ...

    def too_small_tokens(self, tokens: int) -> int:
        """Return the slots in holes of fewer than `tokens`."""
        ...

    def holes(self) -> Sequence[tuple[int, int]]:
        """Return the holes as (address, size in tokens), by address."""
        ...

    def check(self) -> None:
        """Raise AssertionError if holes that belong together are apart."""
        ...


def first_fit(sizes_tokens: Sequence[int], tokens: int) -> int:
    """Return the index of the first hole that is large enough; there must be one."""
    return next(index for index, size in enumerate(sizes_tokens) if size >= tokens)


def best_fit(sizes_tokens: Sequence[int], tokens: int) -> int:
    """Return the index of the smallest hole that is large enough, the first of several."""
    return min((size, index) for index, size in enumerate(sizes_tokens) if size >= tokens)[1]


class Holes:
    """Chunks of exactly the size asked for; neighboring holes coalesce at once."""

    __slots__ = ("_choose", "_sizes", "_starts", "free_tokens", "largest_tokens")

    def __init__(self, capacity: int, choose: Callable[[Sequence[int], int], int]) -> None:
        """Begin with one hole of `capacity` slots; `choose` is `first_fit` or `best_fit`."""
        self._choose = choose
        self._starts = [0]
        self._sizes = [capacity]
        self.free_tokens = self.largest_tokens = capacity

    def chunk_tokens(self, tokens: int) -> int:
        """Return `tokens`: nothing is rounded."""
        return tokens

    def take(self, tokens: int) -> int:
        """Take the front of the chosen hole, or return -1."""
        if tokens > self.largest_tokens:
            return -1
        index = self._choose(self._sizes, tokens)
        start = self._starts[index]
        if self._sizes[index] == tokens:
            del self._starts[index], self._sizes[index]
        else:
            self._starts[index] += tokens
            self._sizes[index] -= tokens
        self.free_tokens -= tokens
        self.largest_tokens = max(self._sizes, default=0)
        return start

    def give(self, start: int, tokens: int) -> None:
        """Open a hole, or widen the ones next to it."""
        starts, sizes = self._starts, self._sizes
        self.free_tokens += tokens
        index = bisect_left(starts, start)
        if index < len(starts) and start + tokens == starts[index]:
            tokens += sizes[index]
            del starts[index], sizes[index]
        if index and starts[index - 1] + sizes[index - 1] == start:
            index -= 1
            sizes[index] += tokens
        else:
            starts.insert(index, start)
            sizes.insert(index, tokens)
        self.largest_tokens = max(self.largest_tokens, sizes[index])

    def too_small_tokens(self, tokens: int) -> int:
        """Return the slots in holes of fewer than `tokens`."""
        return sum([size for size in self._sizes if size < tokens])

    def holes(self) -> Sequence[tuple[int, int]]:
        """Return the holes as (address, size in tokens), by address."""
        return list(zip(self._starts, self._sizes, strict=True))

    def check(self) -> None:
        """Raise AssertionError if two holes touch."""
        for (start, size), (after, _) in pairwise(self.holes()):
            require(start + size < after, f"holes at {start} and {after} touch")
