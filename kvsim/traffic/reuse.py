"""What a prefix cache can find in a log, for every cache size at once.

The cache is the engine's, seen without its timing: blocks of full tokens, found by all that
precedes them, the least recently used evicted first and of one request its last blocks first
(as vLLM does). Requests use it one after another: each looks up its prompt, then leaves prompt
and answer behind, the last token excepted, whose keys and values nobody has computed.

LRU caches of all sizes are one stack (Mattson et al., Evaluation techniques for storage
hierarchies, IBM Systems Journal 9(2), 1970): a cache of C blocks holds the C uppermost. What
requests share are beginnings, so the blocks that a request used last of all lie together in the
stack, and a Fenwick tree over requests tells how deep, without one entry a block.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.requests import Segments
from kvsim.workload.traces import Trace

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, eq=False)
class HitCurve:
    """How much of the prompts is found, by cache size.

    Run i of blocks lies `depth[i]` blocks below the top of the stack and is `length[i]` blocks
    long; int64, shape (runs,).
    """

    depth: NDArray[np.int64]
    length: NDArray[np.int64]
    prompt_tokens: int
    distinct_blocks: int
    block_tokens: int = BLOCK_TOKENS

    @property
    def unbounded(self) -> float:
        """Share of the prompt tokens found in a cache that forgets nothing."""
        return float(self.length.sum()) * self.block_tokens / self.prompt_tokens

    @property
    def enough_tokens(self) -> int:
        """Smallest cache that finds as much, in tokens."""
        return int((self.depth + self.length).max(initial=0)) * self.block_tokens

    def hit_rates(self, cache_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of prompt tokens found by caches of these sizes, exactly."""
        blocks = np.asarray(cache_tokens) // self.block_tokens
        found = _above(blocks, self.depth) - _above(blocks, self.depth + self.length)
        return found * (self.block_tokens / self.prompt_tokens)

    def smallest_for(self, share_of_unbounded: float) -> int:
        """Return the smallest cache, in tokens, that finds this share of what is to be found."""
        wanted = share_of_unbounded * self.unbounded
        low, high = 0, self.enough_tokens // self.block_tokens
        while low < high:
            middle = (low + high) // 2
            sizes = np.array([middle * self.block_tokens])
            if self.hit_rates(sizes)[0] >= wanted - 1e-12:
                high = middle
            else:
                low = middle + 1
        return low * self.block_tokens


def hit_curve(trace: Trace, block_tokens: int = BLOCK_TOKENS) -> HitCurve | None:
    """Replay a log's prompts through caches of all sizes; None if it doesn't say what they hold."""
    if trace.segments is None:
        return None
    stack = _Stack(len(trace), block_tokens)
    rows = zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    for request, (prompt, output) in enumerate(rows):
        stack.serve(request, _chain(trace.segments, request, output), prompt, prompt + output)
    runs = np.array(stack.hits, dtype=np.int64).reshape(-1, 2)
    total = int(trace.prompt_tokens.sum())
    return HitCurve(runs[:, 0], runs[:, 1], total, stack.used.upto(len(trace)), block_tokens)


def _chain(segments: Segments, request: int, output_tokens: int) -> list[tuple[int, int]]:
    prompt, answer_seed = segments.of(request)
    chain = [segment for segment in prompt if segment[1]]
    if chain and chain[-1][0] == answer_seed:
        output_tokens += chain.pop()[1]
    return [*chain, (answer_seed, output_tokens)]


def _above(levels: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return for each level C the sum over starts s of max(C - s, 0)."""
    ordered = np.sort(starts)
    sums = np.concatenate([[0], np.cumsum(ordered)])
    below = np.searchsorted(ordered, levels)
    return np.asarray(below * levels - sums[below], dtype=np.float64)


class _Stack:
    """The blocks ever used, by who used them last; `hits` gathers (depth, length) of runs found."""

    def __init__(self, requests: int, block_tokens: int) -> None:
        self.hits: list[tuple[int, int]] = []
        self.used = _Fenwick(requests)  # blocks that each request was the last to use
        self._block_tokens = block_tokens
        self._paths: dict[tuple[int, int, int], int] = {}
        # Of a path (a chain of segments): up to which block whom, the last user first.
        self._users: dict[int, tuple[tuple[int, int], ...]] = {}

    def serve(
        self, request: int, chain: list[tuple[int, int]], prompt_tokens: int, all_tokens: int
    ) -> None:
        """Look up a prompt, then put its blocks and those of the answer on top."""
        sought = (prompt_tokens - 1) // self._block_tokens
        kept = (all_tokens - 1) // self._block_tokens
        runs = self._touch(request, chain, kept)
        on_stack = self.used.upto(request)
        depths = [on_stack - self.used.upto(user + 1) for user, _, _ in runs]
        for depth, (user, first, end) in zip(depths, runs, strict=True):
            if first < sought:
                self.hits.append((depth, min(end, sought) - first))
            self.used.add(user, first - end)
        self.used.add(request, kept)

    def _touch(
        self, request: int, chain: list[tuple[int, int]], kept: int
    ) -> list[tuple[int, int, int]]:
        """Make the request the last user of its blocks; return who was: (user, first, end)."""
        runs: list[tuple[int, int, int]] = []
        path = end_tokens = first = 0
        for seed, tokens in chain:
            path = self._paths.setdefault((path, end_tokens, seed), len(self._paths) + 1)
            end_tokens += tokens
            stop = min(end_tokens // self._block_tokens, kept)
            if stop <= first:
                continue
            users = self._users.get(path, ())
            for upto, user in users:
                end = min(upto, stop)
                if end > first and runs and runs[-1][0] == user:
                    runs[-1] = (user, runs[-1][1], end)
                elif end > first:
                    runs.append((user, first, end))
                first = max(first, end)
            self._users[path] = ((stop, request), *[entry for entry in users if entry[0] > stop])
            first = stop
        return runs


class _Fenwick:
    """Sums over the first so many of a list of numbers that change (Fenwick, 1994)."""

    def __init__(self, size: int) -> None:
        self._sums = [0] * (size + 1)

    def add(self, place: int, amount: int) -> None:
        """Add to the number at a place from 0."""
        place += 1
        while place < len(self._sums):
            self._sums[place] += amount
            place += place & -place

    def upto(self, end: int) -> int:
        """Return the sum of the numbers before `end`."""
        total = 0
        while end:
            total += self._sums[end]
            end &= end - 1
        return total
