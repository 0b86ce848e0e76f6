"""Gaps between tokens where decodes pause while prompts are computed, as in vLLM V0."""

import numpy as np
from numpy.typing import NDArray

from kvsim.tables import Columns

Counts = NDArray[np.int64]


def pauses(steps: Columns, tokens: Counts) -> tuple[Counts, Counts, Counts]:
    """Return the gaps of those who paused: their length in ns, how many, and the step that ends it.

    All sequences that decode pause together, and a step that computes prompts adds those that it
    completes. So in the step that ends a pause the oldest sequences have waited longest, and those
    of the last prompts have not paused at all. If somebody gave way meanwhile, it was the latest.

    Args:
        steps: The steps table.
        tokens: Tokens that the decoding sequences of each step get.
    """
    found: list[tuple[int, int, int]] = []
    if steps["paused_seqs"].any():
        for replica in np.unique(steps["replica"]):
            found += _of_one_replica(steps, tokens, np.flatnonzero(steps["replica"] == replica))
    gap_ns, count, row = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return gap_ns, count, row


def _of_one_replica(steps: Columns, tokens: Counts, rows: Counts) -> list[tuple[int, int, int]]:
    """Walk backwards over the steps of a replica in which somebody pauses."""
    found = []
    paused = steps["paused_seqs"][rows].tolist()
    start_ns = steps["start_ns"][rows]
    end_ns = start_ns + steps["duration_ns"][rows]
    last = len(rows) - 1
    ends, bound = last, 0  # the step that ends this pause, and how many of its tokens are left
    for place in np.flatnonzero(steps["paused_seqs"][rows])[::-1].tolist():
        if place == last or not paused[place + 1]:
            ends = min(place + 1, last)
            bound = 0 if place == last else int(tokens[rows[ends]])
        bound = min(bound, paused[place])
        longer = min(bound, paused[place - 1]) if place else 0
        if bound > longer:
            found.append((int(end_ns[ends] - start_ns[place]), bound - longer, int(rows[ends])))
    return found
