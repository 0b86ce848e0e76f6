"""What the compiled loop works on: a few arrays, and the names of the places in them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Why the loop comes back.
DONE, FULL, PAUSED, STUCK, BEYOND = range(5)

NEVER_NS = 2**62
NOBODY = -1

# `Replicas.limits`: settings of the engines, see `EngineConfig`, and of the fleet.
(
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
    LOOKS,  # 1: the router looks at loads
    COMPARED,  # LOAD_REQUESTS or LOAD_TOKENS
    RANKS,  # engines of a replica, among which the least loaded is taken
    REST_NS,  # in the front end, after it has been busy with a request
    PAUSE_STEPS,  # a replica pauses with so many unwritten steps, see `advance`
) = range(18)

# `Replicas.rows`: how many are in the buffers, and who comes next.
STEP_ROWS, LEFT_ROWS, EVENT_ROWS, NEXT_REQUEST = range(4)

# `Replicas.at`: how far a replica is.
(
    INDEX,
    NOW_NS,
    ACTS_NS,  # when something happens to it next, if nobody is sent
    TURN_TAKEN,  # 1: it has scheduled what it can, and waits for the end of a step
    FRONT_END_NS,  # its front end is free from then on
    LOAD_REQUESTS,  # sent there that have not left
    LOAD_TOKENS,  # of their prompts
    FREE_AT_NS,  # when the last step in flight ends
    HEAD,  # of the queue: who waits, then who is still in the front end; linked by BEHIND
    LAST,
    COMING,  # the first one still in the front end
    WAITING,  # how many wait
    RUNNING,  # how many run
    PREFILLING,  # how many of them still prefill
    FREE_BLOCKS,
    REUSABLE_BLOCKS,  # of these: hold prefixes that could be found
    HELD_TOKENS,
    INSIDE_TOKENS,
    STEP,  # to be scheduled next
    OLDEST,  # of those in flight
    WRITTEN_STEPS,  # that have left the buffer
    PAUSES,  # 1: somebody left with so many steps unwritten
    PLANNED,  # quiet steps still to come in a stretch
    PASSED,  # those of it that its sequences don't know of
    CONTEXT_TOKENS,  # sum of their contexts, these steps included
    STUCK_HEAD,  # 1: what the head of the queue lacks stays so until somebody comes or goes
    HEAD_LACKS,
    DISCARDED_TOKENS,
    LOST_TOKENS,  # computed before preemptions
    COUNTERS,
) = range(30)

# `Replicas.requests`: first what is known of a request, then how far it is.
(
    PROMPT,
    MAX_TOKENS,
    ANSWER,
    FINAL,  # tokens that get slots
    REPLICA,  # where it goes; until it is sent one of two it may go to, or ANY
    OTHER,  # the other one
    BUSY_NS,  # of its front end
    QUEUED_NS,
    BEHIND,  # who is next in the queue
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
    KNOWN,
) = range(21)
REJECTED, ANY = -1, -2

# `Replicas.members`: for whom the end of a step in flight means more than one token more.
PROMPTS, ENDS, PARTED = range(3)

# `Cost`
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


class Replicas(NamedTuple):
    """All replicas, their requests, and the rows that are not written."""

    limits: Ints
    rows: Ints
    arrival_ns: Ints  # by request
    requests: Ints  # shape (requests, KNOWN)
    at: Ints  # shape (replicas, COUNTERS)
    running: Ints  # in order of admission: shape (replicas, most running)
    end_ns: Ints  # of a step in flight, by step % 2, here and below: shape (replicas, 2)
    counts: Ints  # shape (replicas, 2, 3)
    members: Ints  # shape (replicas, 2, 3, most running)
    due: Ints  # who takes a block, by step of a stretch: shape (replicas, block tokens)
    filled: Ints  # slots that nothing will fill, by step of a stretch: shape (replicas, longest)
    chunks: Ints  # scratch: (new, prefix), shape (most running, 2)
    steps: Ints  # rows of the steps table
    left: Ints  # request, time, replica: shape (rows, 3)
    events: Ints  # rows of the events table


class Replica(NamedTuple):
    """One of them: its part of the arrays of `Replicas`, and those that all share."""

    limits: Ints
    rows: Ints
    requests: Ints
    at: Ints
    running: Ints
    end_ns: Ints
    counts: Ints
    members: Ints
    due: Ints
    filled: Ints
    chunks: Ints
    steps: Ints
    left: Ints
    events: Ints


# Of the arrays above; others have one.
DIMENSIONS = {
    Cost: {"group": 2, "decode": 3, "chunk": 3},
    Replicas: {
        **dict.fromkeys(("requests", "at", "running", "end_ns", "due", "filled", "chunks"), 2),
        **dict.fromkeys(("steps", "left", "events"), 2),
        "counts": 3,
        "members": 4,
    },
}
