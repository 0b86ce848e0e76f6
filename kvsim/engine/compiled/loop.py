"""The decisions of one replica, step by step, on arrays.

What a step computes counts as computed when it is scheduled; its tokens come when it ends. Rules
R1 to R42 are those of `docs/vllm-rules.md`.
"""

import numpy as np

from kvsim.engine.compiled.jit import jit
from kvsim.engine.compiled.layout import (
    ADMITTED_NS,
    ANSWER,
    BATCHED_TOKENS,
    BEYOND,
    BLOCK_TOKENS,
    BLOCKS,
    CACHES_PREFIXES,
    CAPACITY_TOKENS,
    CHUNK,
    CHUNKED_PREFILL,
    COMING,
    COMPUTED,
    DISCARDED_TOKENS,
    DONE,
    ENDS,
    EVENTS,
    FINAL,
    FIRST_NS,
    FREE_AT_NS,
    FREE_BLOCKS,
    FULL,
    HEAD,
    HEAD_LACKS,
    HELD_TOKENS,
    INDEX,
    INSIDE_TOKENS,
    LACKING_BUDGET,
    LACKING_SLOT,
    LAST_NS,
    LEFT,
    LONG_PREFILL_TOKENS,
    LOST_TOKENS,
    MAX_MODEL_LEN,
    MAX_TOKENS,
    MOST_IN_FLIGHT,
    MOST_RUNNING,
    NOW_NS,
    OLDEST,
    PARTED,
    PAUSED,
    PREEMPTIONS,
    PREFILLING,
    PROMPT,
    PROMPTS,
    QUEUED_NS,
    RECOMPUTED,
    RESTS,
    REUSABLE_BLOCKS,
    ROWS,
    RUNNING,
    SAMPLED,
    STEP,
    STEP_TOKENS,
    STUCK,
    STUCK_HEAD,
    TAIL,
    TARGET,
    WATERMARK_BLOCKS,
    Cost,
    Ints,
    Replica,
)
from kvsim.engine.compiled.price import chunks_ns, step_ns
from kvsim.tables import EVENT_KINDS, STEPS
from kvsim.tables import HEAD_LACKS as LACKS

PREEMPTED_EVENT = EVENT_KINDS.index("preempted")
RESUMED_EVENT = EVENT_KINDS.index("resumed")
NOTHING = LACKS.index("nothing")
KV_BLOCKS = LACKS.index("kv_blocks")
WATERMARK = LACKS.index("watermark")
PREEMPTING = LACKS.index("preempting")
NEVER_NS = 2**62

_COLUMN = {column.name: place for place, column in enumerate(STEPS)}
REPLICA, NUMBER, START, DURATION = (
    _COLUMN[name] for name in ("replica", "step", "start_ns", "duration_ns")
)
CHUNK_SEQS, CHUNK_TOKENS, CHUNK_CONTEXT, CHUNK_PAIRS, CHUNK_NS = (
    _COLUMN[f"prefill_{name}"] for name in ("seqs", "tokens", "kv_tokens", "pairs", "attention_ns")
)
DECODES, CONTEXT, DISCARDED = (
    _COLUMN[name] for name in ("decode_seqs", "decode_kv_tokens", "discarded_seqs")
)
RUN, WAIT, PREEMPT, LACK = (
    _COLUMN[name] for name in ("running_seqs", "waiting_seqs", "preempted_seqs", "head_lacks")
)
HELD, TO_COME, INSIDE, REUSABLE, FREE = (
    _COLUMN[f"kv_{name}_tokens"] for name in ("held", "to_come", "inside", "reusable", "free")
)


@jit
def advance(r: Replica, cost: Cost, pause_after_steps: int) -> int:
    """Go on until all requests have left (DONE), or a buffer of rows is full (FULL).

    PAUSED: a request has left when `pause_after_steps` had been scheduled, or more. STUCK: nothing
    can be scheduled, which no plain case allows. BEYOND: somebody is preempted whose prefix is
    cached. After FULL and PAUSED it can be called again.
    """
    at = r.at
    while True:
        _take_in(r)
        if at[RUNNING] or at[TAIL] > at[HEAD]:
            most = len(r.steps) - at[ROWS]
            room = min(len(r.left) - at[LEFT], (len(r.events) - at[EVENTS]) // 2)
            if most < 3 or room <= r.limits[MOST_RUNNING]:
                return FULL
            if not _pass_quiet_steps(r, cost, most):
                outcome = _start(r, cost)
                if outcome in (STUCK, BEYOND):
                    return outcome
                if outcome == PAUSED:
                    continue
        elif at[OLDEST] == at[STEP]:
            if at[COMING] == r.given.shape[1]:
                return DONE
            at[NOW_NS] = max(at[NOW_NS], r.given[QUEUED_NS, at[COMING]])
            continue
        left = at[LEFT]
        _complete(r)
        if at[LEFT] > left and at[STEP] >= pause_after_steps:
            return PAUSED


@jit
def _take_in(r: Replica) -> None:
    """Put those into the queue who have come."""
    at, queued_ns = r.at, r.given[QUEUED_NS]
    while at[COMING] < len(queued_ns) and queued_ns[at[COMING]] <= at[NOW_NS]:
        if at[TAIL] == at[HEAD]:
            at[STUCK_HEAD] = 0
        r.queue[at[TAIL]] = at[COMING]
        at[TAIL] += 1
        at[COMING] += 1


# Quiet steps: the same sequences decode, and nobody can be admitted


@jit
def _pass_quiet_steps(r: Replica, cost: Cost, most: int) -> int:
    """Compute the steps in which nothing changes, at most so many; return how many there were."""
    at, in_flight = r.at, r.limits[MOST_IN_FLIGHT]
    running, waiting = at[RUNNING], at[TAIL] - at[HEAD]
    if at[STEP] - at[OLDEST] != in_flight - 1 or not running or at[PREFILLING]:
        return 0
    if (waiting and not at[STUCK_HEAD]) or running > r.limits[STEP_TOKENS]:
        return 0
    if in_flight == 2 and r.counts[at[OLDEST] % 2].any():
        return 0
    most = min(most, len(r.filled))
    for place in range(running):
        i = r.running[place]
        most = min(most, r.given[ANSWER, i] - r.life[SAMPLED, i])
    context = _foresee(r, most)
    before_ns = NEVER_NS
    if at[COMING] < r.given.shape[1]:
        before_ns = r.given[QUEUED_NS, at[COMING]]
    head_lacks = at[HEAD_LACKS] if waiting else NOTHING
    steps, turn_ns, last_end_ns, end_ns = 0, at[NOW_NS], at[FREE_AT_NS], at[FREE_AT_NS]
    while steps < most and (turn_ns < before_ns or not steps):
        blocks = r.due[steps % r.limits[BLOCK_TOKENS]]
        if blocks > at[FREE_BLOCKS]:
            break
        _take_blocks(at, blocks)
        at[INSIDE_TOKENS] += r.filled[steps]
        at[HELD_TOKENS] += running
        context += running
        duration_ns = step_ns(cost, running, running, running, context, 0.0)
        start_ns = max(turn_ns, end_ns)
        row = _write(r, start_ns, duration_ns, waiting, head_lacks)
        row[DECODES], row[CONTEXT] = running, context
        last_end_ns, end_ns = end_ns, start_ns + duration_ns
        turn_ns = end_ns if in_flight == 1 else last_end_ns
        at[STEP] += 1
        steps += 1
    if steps:
        at[FREE_AT_NS] = end_ns
        at[OLDEST] = at[STEP] - in_flight
        r.end_ns[(at[STEP] - 1) % 2] = end_ns
        if in_flight == 2:
            r.end_ns[at[STEP] % 2] = last_end_ns
        _note_quiet(r, steps)
    return steps


@jit
def _foresee(r: Replica, most: int) -> int:
    """Note in which steps to come blocks are taken, and some of their slots for nothing.

    Returns the sum of the contexts.
    """
    size, context = r.limits[BLOCK_TOKENS], 0
    r.due[:] = 0
    r.filled[:most] = 0
    for place in range(r.at[RUNNING]):
        i = r.running[place]
        computed, blocks = r.life[COMPUTED, i], r.life[BLOCKS, i]
        context += computed
        r.due[blocks * size - computed] += 1
        last_block = (r.given[FINAL, i] - 1) // size
        last_taken = last_block * size - computed
        if last_block >= blocks and last_taken < most:
            r.filled[last_taken] += (last_block + 1) * size - r.given[FINAL, i]
    return context


@jit
def _note_quiet(r: Replica, steps: int) -> None:
    """Bring all who decode up to date after quiet steps, and note who ends with the last one."""
    for place in range(r.at[RUNNING]):
        i = r.running[place]
        r.life[COMPUTED, i] += steps
        r.life[SAMPLED, i] += steps
        r.life[BLOCKS, i] = _blocks(r, r.life[COMPUTED, i])
        if r.life[SAMPLED, i] == r.given[ANSWER, i]:
            _note_end(r, r.at[STEP] - 1, i)


# A step that changes something


@jit
def _start(r: Replica, cost: Cost) -> int:
    """Schedule until enough steps are in flight.

    Returns PAUSED after an empty step that took its time, STUCK where nothing can be scheduled,
    BEYOND where somebody is preempted whose prefix is cached.
    """
    at = r.at
    while at[STEP] - at[OLDEST] < r.limits[MOST_IN_FLIGHT]:
        events = at[EVENTS]
        scheduled = _schedule(r, cost)
        if at[EVENTS] > events and r.limits[CACHES_PREFIXES]:
            return BEYOND
        if scheduled:
            continue
        if at[OLDEST] < at[STEP]:
            return DONE
        if at[EVENTS] == events:
            return STUCK
        if r.limits[MOST_IN_FLIGHT] == 1:
            at[NOW_NS] += step_ns(cost, 0, 0, 0, 0, 0.0)
            return PAUSED
    return DONE


@jit
def _schedule(r: Replica, cost: Cost) -> bool:
    """Decide what the next step computes, and record it; False if it computes nothing."""
    at = r.at
    cap = r.limits[BATCHED_TOKENS]
    if r.limits[LONG_PREFILL_TOKENS] and at[RUNNING] + at[TAIL] - at[HEAD] > 1:
        cap = r.limits[LONG_PREFILL_TOKENS]  # R4
    at[STUCK_HEAD] = 0
    events = at[EVENTS]
    budget = _schedule_running(r, cap)
    preempted = at[EVENTS] - events
    lacks = NOTHING
    if at[TAIL] > at[HEAD]:
        if preempted:
            lacks = PREEMPTING  # R6
        else:
            lacks = _admit(r, cap, budget)
            at[STUCK_HEAD] = lacks == r.limits[LACKING_SLOT] or lacks == KV_BLOCKS
    at[HEAD_LACKS] = lacks
    return _execute(r, cost, preempted)


@jit
def _schedule_running(r: Replica, cap: int) -> int:
    """Give those who run their tokens, in order of admission (R1), and preempt from the end (R12).

    Returns the budget that is left.
    """
    at, budget, place = r.at, r.limits[STEP_TOKENS], 0
    while place < at[RUNNING]:
        i = r.running[place]
        place += 1
        r.life[CHUNK, i] = 0
        if r.life[RESTS, i]:
            continue
        computed = r.life[COMPUTED, i]
        left = r.given[PROMPT, i] + r.life[SAMPLED, i] - computed
        if computed < r.life[TARGET, i]:
            left = min(left, r.limits[MAX_MODEL_LEN] - 1 - computed)  # R3
        tokens = min(left, cap, budget)
        if tokens <= 0:
            continue
        blocks = _blocks(r, computed + tokens)
        while blocks - r.life[BLOCKS, i] > at[FREE_BLOCKS]:
            victim = r.running[at[RUNNING] - 1]
            _preempt(r, victim)
            if victim == i:
                break
        else:
            _own(r, i, blocks)
            r.life[CHUNK, i] = tokens
            budget -= tokens
    return int(budget)


@jit
def _admit(r: Replica, cap: int, budget: int) -> int:
    """Admit from the head of the queue until something lacks; return what (R5)."""
    at = r.at
    while at[TAIL] > at[HEAD]:
        if at[RUNNING] >= r.limits[MOST_RUNNING]:
            return int(r.limits[LACKING_SLOT])
        i = r.queue[at[HEAD]]
        known = r.given[PROMPT, i] + r.life[SAMPLED, i]
        tokens = min(known, cap)
        if not r.limits[CHUNKED_PREFILL] and tokens > budget:
            tokens = 0  # R2
        tokens = min(tokens, budget)
        if not tokens:
            return int(r.limits[LACKING_BUDGET])
        needed = _blocks(r, known)  # R17
        if needed > at[FREE_BLOCKS]:
            return KV_BLOCKS
        if at[RUNNING] and needed + r.limits[WATERMARK_BLOCKS] > at[FREE_BLOCKS]:
            return WATERMARK
        at[HEAD] += 1
        if r.life[ADMITTED_NS, i] < 0:
            r.life[ADMITTED_NS, i] = at[NOW_NS]
        r.life[RECOMPUTED, i] += r.life[COMPUTED, i]  # all of it was lost
        r.life[COMPUTED, i] = 0
        r.life[TARGET, i] = known
        r.life[CHUNK, i] = tokens
        _own(r, i, _blocks(r, tokens))
        r.running[at[RUNNING]] = i
        at[RUNNING] += 1
        at[PREFILLING] += 1
        budget -= tokens
    return NOTHING


@jit
def _execute(r: Replica, cost: Cost, preempted: int) -> bool:
    """Count the step's tokens as computed, and write its row; False if it has none."""
    at, count, decodes, context, discarded = r.at, 0, 0, 0, 0
    chunk_tokens, chunk_context, pairs = 0, 0, 0
    for place in range(at[RUNNING]):
        i = r.running[place]
        new, before = r.life[CHUNK, i], r.life[COMPUTED, i]
        if not new:
            continue
        r.life[COMPUTED, i] = before + new
        if before >= r.life[TARGET, i]:
            decodes += 1
            context += before + 1
            discarded += r.life[SAMPLED, i] >= r.given[ANSWER, i]
            r.life[SAMPLED, i] += 1
        else:
            r.chunks[count, 0], r.chunks[count, 1] = new, before
            count += 1
            chunk_tokens += new
            chunk_context += before + new
            pairs += new * before + new * (new + 1) // 2
            if before + new < r.life[TARGET, i]:
                continue
            _note(r, at[STEP] % 2, PROMPTS, i)
            at[PREFILLING] -= 1
            r.life[SAMPLED, i] += 1
        if r.life[SAMPLED, i] == r.given[ANSWER, i]:
            _note_end(r, at[STEP], i)
    if not count + decodes:
        return False
    tokens = chunk_tokens + decodes
    at[HELD_TOKENS] += tokens
    attention_ns = chunks_ns(cost, r.chunks, count)
    duration_ns = step_ns(cost, tokens, count + decodes, decodes, context, attention_ns)
    start_ns = max(at[NOW_NS], at[FREE_AT_NS])
    at[FREE_AT_NS] = r.end_ns[at[STEP] % 2] = start_ns + duration_ns
    row = _write(r, start_ns, duration_ns, at[TAIL] - at[HEAD], at[HEAD_LACKS])
    row[CHUNK_SEQS], row[CHUNK_TOKENS], row[CHUNK_CONTEXT] = count, chunk_tokens, chunk_context
    row[CHUNK_PAIRS], row[CHUNK_NS] = pairs, int(np.rint(attention_ns))
    row[DECODES], row[CONTEXT], row[DISCARDED], row[PREEMPT] = (
        decodes,
        context,
        discarded,
        preempted,
    )
    at[STEP] += 1
    return True


@jit
def _write(r: Replica, start_ns: int, duration_ns: int, waiting: int, head_lacks: int) -> Ints:
    """Write the row of the step that is being scheduled, and return it.

    What it computes is still to be filled in.
    """
    at = r.at
    row: Ints = r.steps[at[ROWS]]
    at[ROWS] += 1
    row[:] = 0
    row[REPLICA], row[NUMBER], row[START], row[DURATION] = (
        r.limits[INDEX],
        at[STEP],
        start_ns,
        duration_ns,
    )
    row[RUN], row[WAIT], row[LACK] = at[RUNNING], waiting, head_lacks
    free, held, inside = (
        at[FREE_BLOCKS] * r.limits[BLOCK_TOKENS],
        at[HELD_TOKENS],
        at[INSIDE_TOKENS],
    )
    reusable = at[REUSABLE_BLOCKS] * r.limits[BLOCK_TOKENS]
    row[HELD], row[INSIDE], row[REUSABLE], row[FREE] = held, inside, reusable, free - reusable
    row[TO_COME] = r.limits[CAPACITY_TOKENS] - free - held - inside
    return row


@jit
def _blocks(r: Replica, tokens: int) -> int:
    """Return how many blocks hold so many tokens."""
    size = r.limits[BLOCK_TOKENS]
    return int((min(tokens, r.limits[MAX_MODEL_LEN]) + size - 1) // size)


@jit
def _own(r: Replica, i: int, blocks: int) -> None:
    """Let a request own so many blocks, and count the slots in them that nothing will fill."""
    size, final, before = r.limits[BLOCK_TOKENS], r.given[FINAL, i], r.life[BLOCKS, i]
    if blocks != before:
        _take_blocks(r.at, blocks - before)
        r.at[INSIDE_TOKENS] += max(0, blocks * size - final) - max(0, before * size - final)
        r.life[BLOCKS, i] = blocks


@jit
def _take_blocks(at: Ints, blocks: int) -> None:
    """Take free blocks; those that can be found are taken last (R27)."""
    at[FREE_BLOCKS] -= blocks
    at[REUSABLE_BLOCKS] = min(at[REUSABLE_BLOCKS], at[FREE_BLOCKS])


@jit
def _preempt(r: Replica, i: int) -> None:
    """Take all from the request that was admitted last, and put it in front of the queue (R15)."""
    at, computed = r.at, r.life[COMPUTED, i]
    at[RUNNING] -= 1
    at[HEAD] -= 1
    r.queue[at[HEAD]] = i
    _own(r, i, 0)
    at[HELD_TOKENS] -= computed
    at[LOST_TOKENS] += computed
    r.life[PREEMPTIONS, i] += 1
    r.life[RESTS, i] = 0
    if computed < r.life[TARGET, i]:
        at[PREFILLING] -= 1
    elif at[OLDEST] < at[STEP]:  # its last token is in flight (R42)
        _note(r, (at[STEP] - 1) % 2, PARTED, i)
    else:
        r.life[LAST_NS, i] = at[NOW_NS]
    _write_event(r, at[STEP], i, PREEMPTED_EVENT, computed, 0)


@jit
def _note(r: Replica, slot: int, what: int, i: int) -> None:
    """Note what the end of a step in flight means to a request."""
    r.members[slot, what, r.counts[slot, what]] = i
    r.counts[slot, what] += 1


@jit
def _note_end(r: Replica, step: int, i: int) -> None:
    """Note that a step brings the last token of an answer; `max_tokens` is known ahead (R40)."""
    _note(r, step % 2, ENDS, i)
    r.life[RESTS, i] = r.given[ANSWER, i] == r.given[MAX_TOKENS, i]


@jit
def _write_event(r: Replica, step: int, i: int, kind: int, tokens: int, gap_ns: int) -> None:
    row = r.events[r.at[EVENTS]]
    r.at[EVENTS] += 1
    row[0], row[1], row[2], row[3] = r.limits[INDEX], r.at[NOW_NS], step, i
    row[4], row[5], row[6] = kind, tokens, gap_ns


# A step ends


@jit
def _complete(r: Replica) -> None:
    """Apply the results of the oldest step in flight."""
    at = r.at
    slot, step = at[OLDEST] % 2, at[OLDEST]
    at[NOW_NS] = r.end_ns[slot]
    at[OLDEST] += 1
    prompts, ends, parted = r.counts[slot, PROMPTS], r.counts[slot, ENDS], r.counts[slot, PARTED]
    if not prompts + ends + parted:
        return
    r.counts[slot] = 0
    for place in range(prompts):
        i = r.members[slot, PROMPTS, place]
        if r.life[FIRST_NS, i] < 0:
            r.life[FIRST_NS, i] = at[NOW_NS]
        else:
            gap_ns = at[NOW_NS] - r.life[LAST_NS, i]
            _write_event(r, step, i, RESUMED_EVENT, r.life[TARGET, i], gap_ns)
    for place in range(parted):
        r.life[LAST_NS, r.members[slot, PARTED, place]] = at[NOW_NS]
    for place in range(ends):
        _finish(r, r.members[slot, ENDS, place])
    if ends:
        at[STUCK_HEAD] = 0


@jit
def _finish(r: Replica, i: int) -> None:
    """End a request whose last token has come; it may have been preempted meanwhile."""
    at = r.at
    place = 0
    while place < at[RUNNING] and r.running[place] != i:
        place += 1
    if place < at[RUNNING]:
        at[RUNNING] -= 1
        for behind in range(place, at[RUNNING]):
            r.running[behind] = r.running[behind + 1]
        _own(r, i, 0)
        at[HELD_TOKENS] -= r.life[COMPUTED, i]
        if r.limits[CACHES_PREFIXES]:  # all but the last token (R24, R41)
            tokens = r.given[PROMPT, i] + r.given[ANSWER, i] - 1
            at[REUSABLE_BLOCKS] += tokens // r.limits[BLOCK_TOKENS]
    else:
        _withdraw(r, i)
        r.life[COMPUTED, i] = 0  # lost
    at[DISCARDED_TOKENS] += r.life[SAMPLED, i] - r.given[ANSWER, i]
    row = r.left[at[LEFT]]
    at[LEFT] += 1
    row[0], row[1] = i, at[NOW_NS]


@jit
def _withdraw(r: Replica, i: int) -> None:
    """Take a request out of the queue."""
    at, queue = r.at, r.queue
    place = at[HEAD]
    while queue[place] != i:
        place += 1
    while place > at[HEAD]:
        queue[place] = queue[place - 1]
        place -= 1
    at[HEAD] += 1
