"""Beam search: which candidates go on. Drawn before the run, so that all variants see the same.

In each step of beam search every candidate (beam) proposes continuations, and the best `width` of
them all become the next beams: some beams have several heirs, others none, and these die. Which
ones win depends on the scores of a language model, and of them nothing is known here. So the law
is the neutral one of population genetics (Wright and Fisher): each of the next beams picks its
parent at random, all beams alike. A *turnover* below one lets a beam go on from itself with
probability 1 - turnover, and pick like that otherwise.

Of any two beams, the probability that they have the same parent is then

    c = turnover * (2 - turnover) / width,

so the number of tokens since their last common one is geometric with mean 1 / c, cut at the
beginning of the answer: width / 1 tokens at full turnover. Real scores are not all alike: who
leads by much has more heirs, and c is larger; scores of whole answers change little with each
token, which keeps the order of beams, and c is smaller.
"""

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.requests import Beams, sums_before


def draw_beams(
    output_tokens: NDArray[np.int64], width: int, turnover: float, rng: np.random.Generator
) -> Beams:
    """Draw the parents of all beams, in each step but the first and the last.

    All first tokens follow the prompt; and who is chosen last doesn't matter, as nothing follows.

    Args:
        output_tokens: Answer length of each group, shape (groups,).
        width: Number of beams, the same for all groups.
        turnover: Probability that a beam's parent is drawn from all beams, itself included.
        rng: The stream to draw from.
    """
    first = sums_before(np.maximum(output_tokens - 2, 0))
    shape = int(first[-1]), width
    parents = np.broadcast_to(np.arange(width, dtype=np.uint8), shape).copy()
    drawn = rng.random(shape) < turnover
    parents[drawn] = rng.integers(width, size=int(drawn.sum()), dtype=np.uint8)
    return Beams(width, first, parents)
