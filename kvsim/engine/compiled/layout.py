"""What the compiled loop works on: a few arrays, and the names of the places in them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Why the loop comes back.
DONE, FULL, PAUSED, STUCK, BEYOND = range(5)

# `Replica.limits`: settings of the engine, see `EngineConfig`.
(
    INDEX,  # of the replica
    CAPACITY_TOKENS,
    BLOCK_TOKENS,
    MAX_MODEL_LEN,
    STEP_TOKENS,
    BATCHED_TOKENS,
    MOST_RUNNING,
    WATERMARK_BLOCKS,
    LONG_PREFILL_TOKENS,  # 0: no limit
    CHUNKED_PREFILL,
    MOST_IN_FLIGHT,
    LACKING_SLOT,  # codes of what the head of the queue lacks
    LACKING_BUDGET,
    CACHES_PREFIXES,
) = range(14)

# `Replica.at`: how far it is.
(
    NOW_NS,
    FREE_AT_NS,  # when the last step in flight ends
    COMING,  # the next request to come
    HEAD,  # of the queue: queue[HEAD:TAIL] wait
    TAIL,
    RUNNING,  # how many run
    PREFILLING,  # how many of them still prefill
    FREE_BLOCKS,
    REUSABLE_BLOCKS,  # of these: hold prefixes that could be found
    HELD_TOKENS,
    INSIDE_TOKENS,
    STEP,  # to be scheduled next
    OLDEST,  # of those in flight
    STUCK_HEAD,  # 1: what the head of the queue lacks stays so until somebody comes or goes
    HEAD_LACKS,
    ROWS,  # how many are in the buffer, here and below
    LEFT,
    EVENTS,
    DISCARDED_TOKENS,
    LOST_TOKENS,  # computed before preemptions
    COUNTERS,
) = range(21)

# `Replica.given`: a request, in the order of the queue.
QUEUED_NS, PROMPT, MAX_TOKENS, ANSWER, FINAL, GIVEN = range(6)  # FINAL: tokens that get slots

# `Replica.life`: how far a request is.
(
    COMPUTED,
    SAMPLED,  # tokens of its answer, those in flight included
    TARGET,  # it decodes once so many are computed
    BLOCKS,
    CHUNK,  # tokens in the step that is scheduled
    RESTS,  # 1: its last token is in flight, and the engine knows
    ADMITTED_NS,
    FIRST_NS,
    LAST_NS,  # its last token before it was preempted
    PREEMPTIONS,
    RECOMPUTED,
    LIFE,
) = range(12)

# `Replica.members`: for whom the end of a step in flight means more than one token more.
PROMPTS, ENDS, PARTED = range(3)

# `Cost`
TOKENS, SEQS = range(2)
BASE, SLOPE, MIXED_BASE, MIXED_SLOPE = range(4)
CHUNK_BASE, PAIR, KEY, SHARE = range(4)
TAIL_NS, WINDOW_TOKENS, KEYS_BEYOND = range(3)
IS_AFFINE, CALL_NS, FIXED_NS, TOKEN_NS, SEQ_NS, CONTEXT_NS, FLOOR_NS, LAW = range(8)


class Cost(NamedTuple):
    """A `KernelCost` or an `AffineCost`, in ns."""

    law: Floats  # shape (LAW,)
    tokens: Floats  # by tokens of the step
    seqs: Floats  # by sequences of the step
    places: Ints  # by mean context
    decode: Floats  # shape (4, sequences, places)
    chunk: Floats  # shape (4, groups of layers, tokens of the chunk)
    group: Floats  # shape (3, groups of layers)


class Replica(NamedTuple):
    """A replica, its requests, and its rows that are not written."""

    limits: Ints
    at: Ints
    given: Ints  # shape (GIVEN, requests)
    life: Ints  # shape (LIFE, requests)
    queue: Ints
    running: Ints  # in order of admission
    end_ns: Ints  # of a step in flight, by step % 2, here and below
    counts: Ints  # shape (2, 3)
    members: Ints  # shape (2, 3, most running)
    due: Ints  # scratch: who takes a block, by step
    filled: Ints  # scratch: slots that nothing will fill, by step
    chunks: Ints  # scratch: (new, prefix), shape (most running, 2)
    steps: Ints  # rows of the steps table
    left: Ints  # request and time: shape (n, 2)
    events: Ints  # rows of the events table


# Of the arrays above; others have one.
MORE_DIMENSIONS = {
    **dict.fromkeys(("given", "life", "counts", "chunks", "steps", "left", "events", "group"), 2),
    **dict.fromkeys(("members", "decode", "chunk"), 3),
}
