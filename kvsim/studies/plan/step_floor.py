"""The least that steps of an engine take: planes below their price, whatever is batched."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.cost import StepCost
from kvsim.scenario.variant import ResolvedVariant

Floats = NDArray[np.float64]

_CHUNKS_AT_ONCE = 64  # so many chunks in one call share the GPU: each costs the least it can


@dataclass(frozen=True, slots=True)
class StepFloor:
    """A plane below the price of every step.

    A step of t tokens and s sequences takes at least `step_ns` + `token_ns`·t + `seq_ns`·s, and
    for each of its tokens that follows x tokens of an answer and its prompt `context_ns`·x −
    `start_ns` more (which may be negative).
    """

    step_ns: float
    token_ns: float
    seq_ns: float
    context_ns: float = 0.0
    start_ns: float = 0.0


def step_floors(variant: ResolvedVariant, mean_context: float = 0.0) -> Iterator[StepFloor]:
    """Yield planes below the price: each is one edge of the price's lower convex hull over tokens.

    Args:
        variant: Whose steps they are.
        mean_context: Where the part for contexts should be tight, in tokens.
    """
    cost = variant.cost
    engine, stages = variant.engine, variant.scenario.engine.pipeline_parallel_size
    most_seqs, most_tokens = engine.max_num_seqs, engine.max_num_batched_tokens
    seqs_ns = np.array([_least_ns(cost, 1, seqs) for seqs in range(1, most_seqs + 1)])
    curve_ns = np.full(most_tokens, np.inf)
    for batches in range(1, min(stages, most_seqs) + 1):  # so many batches are in flight
        others = seqs_ns[batches - 1 :] if batches == stages else seqs_ns[batches - 1 : batches]
        lower_ns = others.min() - others[0]
        each = [_least_ns(cost, tokens, batches) for tokens in range(1, most_tokens + 1)]
        curve_ns = np.minimum(curve_ns, np.array(each) + lower_ns)
    seq_ns = 0.0
    if stages == 1 and most_seqs > 1:  # tokens and sequences are priced apart
        rise_ns = (seqs_ns[1:] - seqs_ns[0]) / np.arange(1, most_seqs)
        seq_ns = max(0.0, float(rise_ns.min()))
    context_ns, start_ns = _context_floor(cost, most_seqs, engine.max_model_len, mean_context)
    for step_ns, token_ns in _lower_lines(curve_ns - seq_ns):
        yield StepFloor(step_ns, token_ns, seq_ns, context_ns, start_ns)


def _least_ns(cost: StepCost, tokens: int, seqs: int) -> int:
    """Return what a step takes at least, whether it computes prompts or decodes: no context."""
    prompts = cost.step_ns(tokens, seqs, 0, 0, 0.0)
    return min(prompts, cost.step_ns(tokens, seqs, seqs, 0, 0.0))


def _lower_lines(curve_ns: Floats) -> Iterator[tuple[float, float]]:
    """Yield lines (at no token, for each token) that touch a curve over 1, 2, ... from below.

    They are the edges of its lower convex hull whose value at 0 isn't negative, the line through
    the origin, and the level of its least.
    """
    hull: list[int] = []
    for place in range(len(curve_ns)):
        while len(hull) > 1 and _is_above(curve_ns, hull[-2], hull[-1], place):
            hull.pop()
        hull.append(place)
    yield max(0.0, float(curve_ns.min())), 0.0
    yield 0.0, max(0.0, float((curve_ns / np.arange(1, len(curve_ns) + 1)).min()))
    for left, right in itertools.pairwise(hull):
        slope = float(curve_ns[right] - curve_ns[left]) / (right - left)
        at_0 = float(curve_ns[left]) - slope * (left + 1)
        if slope > 0 and at_0 > 0:
            yield at_0, slope


def _is_above(curve_ns: Floats, left: int, middle: int, right: int) -> bool:
    """Tell whether the middle is on or above the line through its neighbors."""
    rise = (curve_ns[right] - curve_ns[left]) * (middle - left)
    return bool((curve_ns[middle] - curve_ns[left]) * (right - left) >= rise)


def _context_floor(
    cost: StepCost, most_seqs: int, longest: int, mean_context: float
) -> tuple[float, float]:
    """Return c and e so that reading x tokens of context takes at least c·x − e, in nanoseconds.

    Between a quarter of an octave prices are straight lines, so that these points say it all. A
    request that was preempted has its next token from a prefill chunk: that counts, too.
    """
    points = np.unique(np.round(2 ** (np.arange(4 * math.log2(longest) + 1) / 4)).astype(np.int64))
    points = np.append(points[points < longest], longest)
    seqs = np.arange(1, most_seqs + 1)
    added = np.empty((most_seqs + 1, len(points)))
    for row, count in enumerate(seqs.tolist()):
        base_ns = cost.step_ns(count, count, count, 0, 0.0)
        for column, context in enumerate(points.tolist()):
            full_ns = cost.step_ns(count, count, count, count * context, 0.0)
            added[row, column] = (full_ns - base_ns - 1) / count  # both were rounded
    chunks = [[(1, context - 1)] * _CHUNKS_AT_ONCE for context in points.tolist()]
    added[-1] = [cost.chunks_ns(many) / _CHUNKS_AT_ONCE for many in chunks]
    slopes = np.diff(added[most_seqs - 1]) / np.diff(points)
    best = (0.0, 0.0)
    for slope in np.unique(np.maximum(slopes, 0.0)).tolist():
        start_ns = max(0.0, float((slope * points - added).max()))
        if slope * mean_context - start_ns > best[0] * mean_context - best[1]:
            best = (slope, start_ns)
    return best
