"""Prompts as segments, from the hashes of their blocks."""

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.requests import Segments, sums_before

Column = NDArray[np.int64]


def block_segments(prompt: Column, blocks: Column, hashes: Column, block_tokens: int) -> Segments:
    """Return prompts as segments of one hashed block each; equal hashes mean equal prefixes.

    What a prompt has beyond its hashed blocks, and every answer, is unlike all else.

    Args:
        prompt: Prompt lengths, shape (requests,).
        blocks: Hashed blocks of each prompt, shape (requests,).
        hashes: Hashes of all blocks, prompt after prompt.
        block_tokens: Tokens of a block; the last of a prompt may have fewer.
    """
    beyond = (prompt > blocks * block_tokens).astype(np.int64)
    counts = blocks + beyond
    first = sums_before(counts)
    known, numbers = np.unique(hashes, return_inverse=True)
    seed = np.empty(first[-1], dtype=np.int64)
    tokens = np.full(first[-1], block_tokens, dtype=np.int64)
    last = first[1:] - 1
    alone = np.zeros(first[-1], dtype=np.bool_)
    alone[last] = beyond > 0
    seed[~alone] = numbers
    seed[alone] = len(known) + np.arange(alone.sum())
    tokens[last] = prompt - (counts - 1) * block_tokens
    answers = len(known) + int(alone.sum()) + np.arange(len(prompt), dtype=np.int64)
    return Segments(first, seed, tokens, answers)
