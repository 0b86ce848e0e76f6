"""Which tokens a request consists of, without the tokens: chains of segments, numbered.

A prompt is a list of segments; a segment's tokens are told by its seed and an offset, so two
positions hold equal tokens exactly if seed and offset are equal. An answer continues the prompt's
last segment if it has its seed, or is a segment of its own. A *path* is a chain of segments up to
and including one of them: equal path numbers and equal positions mean equal prefixes. So a full KV
block is identified by the path of its last token and its index, at the cost of one number for a
segment and one addition for a block.
"""

from bisect import bisect_left
from collections.abc import Sequence

# Block indices stay below this: a key is path x BLOCKS_OF_A_PATH + index. A prime number: a power
# of two would send all blocks with the same index to the same place of a hash table.
BLOCKS_OF_A_PATH = (1 << 24) + 43


class Content:
    """The paths of one request: where each ends (exclusive), and its number; the last is open.

    The last one holds the answer.
    """

    __slots__ = ("_ends_tokens", "_paths")

    def __init__(self, ends_tokens: list[int], paths: list[int]) -> None:
        """Take the ends of all paths but the last, and the numbers of all."""
        self._ends_tokens = ends_tokens
        self._paths = paths

    def block_keys(self, first: int, end: int, block_size: int) -> list[int]:
        """Return the keys of the blocks from `first` up to `end` (exclusive), in order."""
        ends_tokens = self._ends_tokens
        keys: list[int] = []
        place = bisect_left(ends_tokens, (first + 1) * block_size)  # where the first one ends
        while first < end:
            stop = end
            if place < len(ends_tokens):
                stop = min(end, ends_tokens[place] // block_size)
            if stop > first:
                base = self._paths[place] * BLOCKS_OF_A_PATH
                keys += range(base + first, base + stop)
                first = stop
            place += 1
        return keys


class Paths:
    """Numbers the chains of segments of all requests of a run."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, int], int] = {}

    def unique(self, group: int, request: int, prompt_tokens: int) -> Content:
        """Return the content of a prompt that only the samples of its group share."""
        return Content([prompt_tokens], [-1 - 2 * group, -2 - 2 * request])

    def chain(self, segments: Sequence[tuple[int, int]], answer_seed: int) -> Content:
        """Return the content of a prompt of segments (seed, tokens) and of its answer."""
        ends_tokens: list[int] = []
        paths: list[int] = []
        path = end = 0
        last_seed = None
        for seed, tokens in segments:
            if tokens:
                path = self._number(path, end, seed)
                end += tokens
                ends_tokens.append(end)
                paths.append(path)
                last_seed = seed
        if answer_seed == last_seed:
            ends_tokens.pop()
        else:
            paths.append(self._number(path, end, answer_seed))
        return Content(ends_tokens, paths)

    def _number(self, parent: int, start_tokens: int, seed: int) -> int:
        numbers = self._numbers
        return numbers.setdefault((parent, start_tokens, seed), len(numbers) + 1)
