"""The books of a replica: its KV blocks, its queue, and the rows it writes."""

from kvsim.engine.compiled.jit import jit
from kvsim.engine.compiled.layout import (
    BEHIND,
    BLOCK_TOKENS,
    BLOCKS,
    CAPACITY_TOKENS,
    COMING,
    EVENT_ROWS,
    FINAL,
    FREE_BLOCKS,
    HEAD,
    HELD_TOKENS,
    INDEX,
    INSIDE_TOKENS,
    LAST,
    MAX_MODEL_LEN,
    NOBODY,
    NOW_NS,
    QUEUED_NS,
    REUSABLE_BLOCKS,
    RUNNING,
    STEP,
    STEP_ROWS,
    STUCK_HEAD,
    WAITING,
    Ints,
    Replica,
)
from kvsim.tables import STEPS

COLUMN = {column.name: place for place, column in enumerate(STEPS)}
OWNER, NUMBER, START, DURATION = (
    COLUMN[name] for name in ("replica", "step", "start_ns", "duration_ns")
)
CHUNK_SEQS, CHUNK_TOKENS, CHUNK_CONTEXT, CHUNK_PAIRS, CHUNK_NS = (
    COLUMN[f"prefill_{name}"] for name in ("seqs", "tokens", "kv_tokens", "pairs", "attention_ns")
)
DECODES, CONTEXT, DISCARDED = (
    COLUMN[name] for name in ("decode_seqs", "decode_kv_tokens", "discarded_seqs")
)
RUN, WAIT, PREEMPT, LACK = (
    COLUMN[name] for name in ("running_seqs", "waiting_seqs", "preempted_seqs", "head_lacks")
)
HELD, TO_COME, INSIDE, REUSABLE, FREE = (
    COLUMN[f"kv_{name}_tokens"] for name in ("held", "to_come", "inside", "reusable", "free")
)

# KV blocks


@jit
def blocks_of(r: Replica, tokens: int) -> int:
    """Return how many blocks hold so many tokens."""
    size = r.limits[BLOCK_TOKENS]
    return int((min(tokens, r.limits[MAX_MODEL_LEN]) + size - 1) // size)


@jit
def own(r: Replica, i: int, blocks: int) -> None:
    """Let a request own so many blocks, and count the slots in them that nothing will fill."""
    size, final, before = r.limits[BLOCK_TOKENS], r.requests[i, FINAL], r.requests[i, BLOCKS]
    if blocks != before:
        take_blocks(r.at, blocks - before)
        r.at[INSIDE_TOKENS] += max(0, blocks * size - final) - max(0, before * size - final)
        r.requests[i, BLOCKS] = blocks


@jit
def take_blocks(at: Ints, blocks: int) -> None:
    """Take free blocks; those that can be found are taken last (R27)."""
    at[FREE_BLOCKS] -= blocks
    at[REUSABLE_BLOCKS] = min(at[REUSABLE_BLOCKS], at[FREE_BLOCKS])


# The queue


@jit
def append(r: Replica, i: int) -> None:
    """Let a request come after all others that were sent here."""
    at = r.at
    if at[HEAD] == NOBODY:
        at[HEAD] = i
    else:
        r.requests[at[LAST], BEHIND] = i
    at[LAST] = i
    if at[COMING] == NOBODY:
        at[COMING] = i


@jit
def take_in(r: Replica) -> bool:
    """Let those wait who are through the front end; tell whether there are any."""
    at, before = r.at, r.at[WAITING]
    while at[COMING] != NOBODY and r.requests[at[COMING], QUEUED_NS] <= at[NOW_NS]:
        if not at[WAITING]:
            at[STUCK_HEAD] = 0
        at[WAITING] += 1
        at[COMING] = r.requests[at[COMING], BEHIND]
    return bool(at[WAITING] > before)


@jit
def pop(r: Replica) -> None:
    """Take the first one out of the queue."""
    r.at[HEAD] = r.requests[r.at[HEAD], BEHIND]
    r.at[WAITING] -= 1


@jit
def push(r: Replica, i: int) -> None:
    """Put a request in front of the queue."""
    at = r.at
    if at[HEAD] == NOBODY:
        at[LAST] = i
    r.requests[i, BEHIND] = at[HEAD]
    at[HEAD] = i
    at[WAITING] += 1


@jit
def withdraw(r: Replica, i: int) -> None:
    """Take a request out of the queue that waits anywhere in it."""
    at, requests = r.at, r.requests
    if at[HEAD] == i:
        pop(r)
        return
    before = at[HEAD]
    while requests[before, BEHIND] != i:
        before = requests[before, BEHIND]
    requests[before, BEHIND] = requests[i, BEHIND]
    if at[LAST] == i:
        at[LAST] = before
    at[WAITING] -= 1


# Rows


@jit
def write_step(r: Replica, start_ns: int, duration_ns: int, head_lacks: int) -> int:
    """Write the row of the step that is being scheduled, and return its place.

    What it computes is still to be filled in; columns that a plain case has no use for stay zero.
    """
    at, place = r.at, r.rows[STEP_ROWS]
    row = r.steps[place]
    r.rows[STEP_ROWS] += 1
    row[OWNER], row[NUMBER] = at[INDEX], at[STEP]
    row[START], row[DURATION] = start_ns, duration_ns
    row[RUN], row[WAIT], row[LACK] = at[RUNNING], at[WAITING], head_lacks
    free, reusable = at[FREE_BLOCKS], at[REUSABLE_BLOCKS]
    held, inside, size = at[HELD_TOKENS], at[INSIDE_TOKENS], r.limits[BLOCK_TOKENS]
    row[HELD], row[INSIDE] = held, inside
    row[REUSABLE], row[FREE] = reusable * size, (free - reusable) * size
    row[TO_COME] = r.limits[CAPACITY_TOKENS] - free * size - held - inside
    return int(place)


@jit
def write_event(r: Replica, step: int, i: int, kind: int, tokens: int, gap_ns: int) -> None:
    """Write a row of the events table."""
    row = r.events[r.rows[EVENT_ROWS]]
    r.rows[EVENT_ROWS] += 1
    row[0], row[1], row[2], row[3] = r.at[INDEX], r.at[NOW_NS], step, i
    row[4], row[5], row[6] = kind, tokens, gap_ns
