"""Quiet steps: the same sequences decode, and nobody can be admitted (decision 010).

A stretch is planned up to the first end of an answer. It goes on, as far as the loop may, until
it is over or somebody comes; only then its sequences are told how many steps there were.
"""

from kvsim.engine.compiled.books import (
    CHUNK_CONTEXT,
    CHUNK_NS,
    CHUNK_PAIRS,
    CHUNK_SEQS,
    CHUNK_TOKENS,
    CONTEXT,
    DECODES,
    DISCARDED,
    PREEMPT,
    blocks_of,
    take_blocks,
    write_step,
)
from kvsim.engine.compiled.jit import jit
from kvsim.engine.compiled.layout import (
    ANSWER,
    BLOCK_TOKENS,
    BLOCKS,
    COMING,
    COMPUTED,
    CONTEXT_TOKENS,
    ENDS,
    FINAL,
    FREE_AT_NS,
    FREE_BLOCKS,
    HEAD_LACKS,
    HELD_TOKENS,
    INSIDE_TOKENS,
    MAX_TOKENS,
    MOST_IN_FLIGHT,
    NOBODY,
    NOW_NS,
    OLDEST,
    PASSED,
    PLANNED,
    PREFILLING,
    QUEUED_NS,
    RESTS,
    RUNNING,
    SAMPLED,
    STEP,
    STEP_ROWS,
    STEP_TOKENS,
    STUCK_HEAD,
    WAITING,
    Cost,
    Ints,
    Replica,
)
from kvsim.engine.compiled.price import step_ns
from kvsim.tables import HEAD_LACKS as LACKS

NOTHING = LACKS.index("nothing")


@jit
def pass_quiet_steps(r: Replica, cost: Cost, until_ns: int) -> bool:
    """Schedule the steps that are quiet and whose turn comes before an instant, if there are any.

    Tell whether the one whose turn it is now was among them.
    """
    at, in_flight = r.at, r.limits[MOST_IN_FLIGHT]
    if not at[PLANNED] and not _plan(r):
        return False
    if at[COMING] != NOBODY:
        until_ns = min(until_ns, r.requests[at[COMING], QUEUED_NS])
    running, first = at[RUNNING], at[STEP]
    most = first + min(at[PLANNED], len(r.steps) - r.rows[STEP_ROWS])
    head_lacks = at[HEAD_LACKS] if at[WAITING] else NOTHING
    turn_ns, last_end_ns, end_ns = at[NOW_NS], at[FREE_AT_NS], at[FREE_AT_NS]
    short = False
    while at[STEP] < most and turn_ns < until_ns:
        blocks = r.due[at[PASSED] % r.limits[BLOCK_TOKENS]]
        if blocks > at[FREE_BLOCKS]:
            short = True
            break
        take_blocks(at, blocks)
        at[INSIDE_TOKENS] += r.filled[at[PASSED]]
        at[HELD_TOKENS] += running
        at[CONTEXT_TOKENS] += running
        context = at[CONTEXT_TOKENS]
        duration_ns = step_ns(cost, running, running, running, context, 0.0)
        start_ns = max(turn_ns, end_ns)
        row = write_step(r, start_ns, duration_ns, head_lacks)
        _fill_in(r.steps[row], running, context)
        last_end_ns, end_ns = end_ns, start_ns + duration_ns
        turn_ns = end_ns if in_flight == 1 else last_end_ns
        at[STEP] += 1
        at[PASSED] += 1
    steps = at[STEP] - first
    at[PLANNED] -= steps
    if steps:
        _fly(r, last_end_ns, end_ns)
    if short or not at[PLANNED]:
        end_stretch(r)
    return bool(steps)


@jit
def _fly(r: Replica, last_end_ns: int, end_ns: int) -> None:
    """Let the last of some quiet steps be in flight, and the one before it if there may be two."""
    at, in_flight = r.at, r.limits[MOST_IN_FLIGHT]
    at[FREE_AT_NS] = end_ns
    at[OLDEST] = at[STEP] - in_flight
    r.end_ns[(at[STEP] - 1) % 2] = end_ns
    if in_flight == 2:
        r.end_ns[at[STEP] % 2] = last_end_ns


@jit
def _fill_in(row: Ints, running: int, context: int) -> None:
    """Fill in what a quiet step computes."""
    row[DECODES], row[CONTEXT] = running, context
    row[CHUNK_SEQS] = row[CHUNK_TOKENS] = row[CHUNK_CONTEXT] = 0
    row[CHUNK_PAIRS] = row[CHUNK_NS] = 0
    row[DISCARDED] = row[PREEMPT] = 0


@jit
def _plan(r: Replica) -> bool:
    """Plan a stretch that begins with the step whose turn it is; False if that one isn't quiet.

    Note in which of its steps blocks are taken, and some of their slots for nothing.
    """
    at, size, in_flight = r.at, r.limits[BLOCK_TOKENS], r.limits[MOST_IN_FLIGHT]
    if at[STEP] - at[OLDEST] != in_flight - 1 or not at[RUNNING] or at[PREFILLING]:
        return False
    if (at[WAITING] and not at[STUCK_HEAD]) or at[RUNNING] > r.limits[STEP_TOKENS]:
        return False
    if in_flight == 2 and r.counts[at[OLDEST] % 2].any():
        return False
    most = len(r.filled)
    for place in range(at[RUNNING]):
        i = r.running[place]
        most = min(most, r.requests[i, ANSWER] - r.requests[i, SAMPLED])
    if most <= 0:
        return False
    context = 0
    r.due[:] = 0
    r.filled[:most] = 0
    for place in range(at[RUNNING]):
        i = r.running[place]
        computed, blocks = r.requests[i, COMPUTED], r.requests[i, BLOCKS]
        context += computed
        r.due[blocks * size - computed] += 1
        last_block = (r.requests[i, FINAL] - 1) // size
        last_taken = last_block * size - computed
        if last_block >= blocks and last_taken < most:
            r.filled[last_taken] += (last_block + 1) * size - r.requests[i, FINAL]
    at[PLANNED], at[PASSED], at[CONTEXT_TOKENS] = most, 0, context
    return True


@jit
def end_stretch(r: Replica) -> None:
    """Tell all who decode of the steps of a stretch, and note who ends with the last one."""
    steps = r.at[PASSED]
    r.at[PLANNED] = r.at[PASSED] = 0
    if not steps:
        return
    for place in range(r.at[RUNNING]):
        i = r.running[place]
        r.requests[i, COMPUTED] += steps
        r.requests[i, SAMPLED] += steps
        r.requests[i, BLOCKS] = blocks_of(r, r.requests[i, COMPUTED])
        if r.requests[i, SAMPLED] == r.requests[i, ANSWER]:
            note_end(r, r.at[STEP] - 1, i)


@jit
def note(r: Replica, slot: int, what: int, i: int) -> None:
    """Note what the end of a step in flight means to a request."""
    r.members[slot, what, r.counts[slot, what]] = i
    r.counts[slot, what] += 1


@jit
def note_end(r: Replica, step: int, i: int) -> None:
    """Note that a step brings the last token of an answer; `max_tokens` is known ahead (R40)."""
    note(r, step % 2, ENDS, i)
    r.requests[i, RESTS] = r.requests[i, ANSWER] == r.requests[i, MAX_TOKENS]
