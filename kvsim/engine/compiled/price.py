"""The cost of a step on arrays: `KernelCost` and `AffineCost`, operation for operation."""

import numpy as np

from kvsim.cost import StepCost
from kvsim.cost.affine import AffineCost
from kvsim.cost.step import KernelCost
from kvsim.engine.compiled.jit import jit
from kvsim.engine.compiled.layout import (
    BASE,
    CALL_NS,
    CHUNK_BASE,
    CONTEXT_NS,
    FIXED_NS,
    FLOOR_NS,
    IS_AFFINE,
    KEY,
    KEYS_BEYOND,
    MIXED_BASE,
    MIXED_SLOPE,
    PAIR,
    SEQ_NS,
    SHARE,
    SLOPE,
    TAIL_NS,
    TOKEN_NS,
    WINDOW_TOKENS,
    Cost,
    Ints,
)


def cost_arrays(cost: StepCost) -> Cost | None:
    """Return a law of costs as arrays; None if there is no such form of it."""
    if type(cost) is KernelCost:
        return Cost(*cost.arrays())
    if type(cost) is AffineCost:
        law = (
            *(1.0, 0.0, cost.fixed_ns, cost.per_token_ns, cost.per_seq_ns),
            *(cost.per_context_token_ns, cost.context_floor_ns),
        )
        none, tables = np.zeros(1), np.zeros((4, 1, 1))
        places = np.zeros(1, dtype=np.int64)
        return Cost(np.array(law), none, none, places, tables, tables, np.zeros((3, 1)))
    return None


@jit
def chunks_ns(cost: Cost, chunks: Ints, count: int) -> float:
    """Return what `StepCost.chunks_ns` does of the first `count` chunks (new, prefix)."""
    total_ns = 0.0
    if cost.law[IS_AFFINE]:
        context = 0
        for place in range(count):
            context += chunks[place, 0] + chunks[place, 1]
        return float(cost.law[CONTEXT_NS] * context)
    for group in range(cost.group.shape[1]):
        longest_ns = shares_ns = 0.0
        for place in range(count):
            new, prefix = chunks[place, 0], chunks[place, 1]
            half = new / 2
            keys = prefix + half
            if keys >= cost.group[WINDOW_TOKENS, group]:
                keys = cost.group[KEYS_BEYOND, group]
            by_flops = cost.chunk[PAIR, group, new] * keys
            tail = half if half < keys else keys
            by_loop = cost.chunk[KEY, group, new] * keys + cost.group[TAIL_NS, group] * tail
            longer_ns = by_flops if by_flops > by_loop else by_loop
            alone_ns = cost.chunk[CHUNK_BASE, group, new] + longer_ns
            shares_ns += cost.chunk[SHARE, group, new] + by_flops
            if alone_ns > longest_ns:
                longest_ns = alone_ns
        total_ns += longest_ns if count == 1 or longest_ns > shares_ns else shares_ns
    return total_ns


@jit
def step_ns(cost: Cost, tokens: int, seqs: int, decodes: int, context: int, chunks: float) -> int:
    """Return what `StepCost.step_ns` does."""
    law = cost.law
    if law[IS_AFFINE]:
        context_ns = law[CONTEXT_NS] * context + chunks
        if law[FLOOR_NS] > 0:
            context_ns = context_ns // law[FLOOR_NS] * law[FLOOR_NS]
        total_ns = law[FIXED_NS] + law[TOKEN_NS] * tokens + law[SEQ_NS] * seqs + context_ns
        return max(1, int(np.rint(total_ns)))
    total_ns = cost.tokens[tokens] + cost.seqs[seqs] + chunks
    base, slope = BASE, SLOPE
    if seqs > decodes:
        total_ns += law[CALL_NS]
        base, slope = MIXED_BASE, MIXED_SLOPE
    if decodes:
        place = cost.places[context // decodes]
        total_ns += cost.decode[base, decodes, place] + cost.decode[slope, decodes, place] * context
    return max(1, int(np.rint(total_ns)))
