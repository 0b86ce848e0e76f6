"""A step that changes something: who gets tokens, who is admitted, who is preempted.

Rules R1 to R42 are those of `docs/vllm-rules.md`.
"""

import numpy as np

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
    own,
    pop,
    push,
    write_event,
    write_step,
)
from kvsim.engine.compiled.jit import jit
from kvsim.engine.compiled.layout import (
    ADMITTED_NS,
    ANSWER,
    BATCHED_TOKENS,
    BEYOND,
    BLOCKS,
    CACHES_PREFIXES,
    CHUNK,
    CHUNKED_PREFILL,
    COMPUTED,
    DONE,
    EVENT_ROWS,
    FREE_AT_NS,
    FREE_BLOCKS,
    HEAD,
    HEAD_LACKS,
    HELD_TOKENS,
    LACKING_BUDGET,
    LACKING_SLOT,
    LAST_NS,
    LONG_PREFILL_TOKENS,
    LOST_TOKENS,
    MAX_MODEL_LEN,
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
    RECOMPUTED,
    RESTS,
    RUNNING,
    SAMPLED,
    STEP,
    STEP_TOKENS,
    STUCK,
    STUCK_HEAD,
    TARGET,
    WAITING,
    WATERMARK_BLOCKS,
    Cost,
    Replica,
)
from kvsim.engine.compiled.price import chunks_ns, step_ns
from kvsim.engine.compiled.stretch import NOTHING, note, note_end
from kvsim.tables import EVENT_KINDS
from kvsim.tables import HEAD_LACKS as LACKS

PREEMPTED_EVENT = EVENT_KINDS.index("preempted")
KV_BLOCKS = LACKS.index("kv_blocks")
WATERMARK = LACKS.index("watermark")
PREEMPTING = LACKS.index("preempting")


@jit
def start_steps(r: Replica, cost: Cost) -> int:
    """Schedule until enough steps are in flight.

    Returns PAUSED after an empty step that took its time, STUCK where nothing can be scheduled,
    BEYOND where somebody is preempted whose prefix is cached.
    """
    at = r.at
    while at[STEP] - at[OLDEST] < r.limits[MOST_IN_FLIGHT]:
        events = r.rows[EVENT_ROWS]
        scheduled = _schedule(r, cost)
        if r.rows[EVENT_ROWS] > events and r.limits[CACHES_PREFIXES]:
            return BEYOND
        if scheduled:
            continue
        if at[OLDEST] < at[STEP]:
            return DONE
        if r.rows[EVENT_ROWS] == events:
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
    if r.limits[LONG_PREFILL_TOKENS] and at[RUNNING] + at[WAITING] > 1:
        cap = r.limits[LONG_PREFILL_TOKENS]  # R4
    at[STUCK_HEAD] = 0
    events = r.rows[EVENT_ROWS]
    budget = _schedule_running(r, cap)
    preempted = r.rows[EVENT_ROWS] - events
    lacks = NOTHING
    if at[WAITING]:
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
    at, requests, budget, place = r.at, r.requests, r.limits[STEP_TOKENS], 0
    while place < at[RUNNING]:
        i = r.running[place]
        place += 1
        requests[i, CHUNK] = 0
        if requests[i, RESTS]:
            continue
        computed = requests[i, COMPUTED]
        left = requests[i, PROMPT] + requests[i, SAMPLED] - computed
        if computed < requests[i, TARGET]:
            left = min(left, r.limits[MAX_MODEL_LEN] - 1 - computed)  # R3
        tokens = min(left, cap, budget)
        if tokens <= 0:
            continue
        blocks = blocks_of(r, computed + tokens)
        while blocks - requests[i, BLOCKS] > at[FREE_BLOCKS]:
            victim = r.running[at[RUNNING] - 1]
            _preempt(r, victim)
            if victim == i:
                break
        else:
            own(r, i, blocks)
            requests[i, CHUNK] = tokens
            budget -= tokens
    return int(budget)


@jit
def _admit(r: Replica, cap: int, budget: int) -> int:
    """Admit from the head of the queue until something lacks; return what (R5)."""
    at, requests = r.at, r.requests
    while at[WAITING]:
        if at[RUNNING] >= r.limits[MOST_RUNNING]:
            return int(r.limits[LACKING_SLOT])
        i = at[HEAD]
        known = requests[i, PROMPT] + requests[i, SAMPLED]
        tokens = min(known, cap)
        if not r.limits[CHUNKED_PREFILL] and tokens > budget:
            tokens = 0  # R2
        tokens = min(tokens, budget)
        if not tokens:
            return int(r.limits[LACKING_BUDGET])
        needed = blocks_of(r, known)  # R17
        if needed > at[FREE_BLOCKS]:
            return KV_BLOCKS
        if at[RUNNING] and needed + r.limits[WATERMARK_BLOCKS] > at[FREE_BLOCKS]:
            return WATERMARK
        pop(r)
        if requests[i, ADMITTED_NS] < 0:
            requests[i, ADMITTED_NS] = at[NOW_NS]
        requests[i, RECOMPUTED] += requests[i, COMPUTED]  # all of it was lost
        requests[i, COMPUTED] = 0
        requests[i, TARGET] = known
        requests[i, CHUNK] = tokens
        own(r, i, blocks_of(r, tokens))
        r.running[at[RUNNING]] = i
        at[RUNNING] += 1
        at[PREFILLING] += 1
        budget -= tokens
    return NOTHING


@jit
def _execute(r: Replica, cost: Cost, preempted: int) -> bool:
    """Count the step's tokens as computed, and write its row; False if it has none."""
    at, requests, count, decodes, context, discarded = r.at, r.requests, 0, 0, 0, 0
    chunk_tokens, chunk_context, pairs = 0, 0, 0
    for place in range(at[RUNNING]):
        i = r.running[place]
        new, before = requests[i, CHUNK], requests[i, COMPUTED]
        if not new:
            continue
        requests[i, COMPUTED] = before + new
        if before >= requests[i, TARGET]:
            decodes += 1
            context += before + 1
            discarded += requests[i, SAMPLED] >= requests[i, ANSWER]
            requests[i, SAMPLED] += 1
        else:
            r.chunks[count, 0], r.chunks[count, 1] = new, before
            count += 1
            chunk_tokens += new
            chunk_context += before + new
            pairs += new * before + new * (new + 1) // 2
            if before + new < requests[i, TARGET]:
                continue
            note(r, at[STEP] % 2, PROMPTS, i)
            at[PREFILLING] -= 1
            requests[i, SAMPLED] += 1
        if requests[i, SAMPLED] == requests[i, ANSWER]:
            note_end(r, at[STEP], i)
    if not count + decodes:
        return False
    tokens = chunk_tokens + decodes
    at[HELD_TOKENS] += tokens
    attention_ns = chunks_ns(cost, r.chunks, count)
    duration_ns = step_ns(cost, tokens, count + decodes, decodes, context, attention_ns)
    start_ns = max(at[NOW_NS], at[FREE_AT_NS])
    at[FREE_AT_NS] = r.end_ns[at[STEP] % 2] = start_ns + duration_ns
    row = r.steps[write_step(r, start_ns, duration_ns, at[HEAD_LACKS])]
    row[CHUNK_SEQS], row[CHUNK_TOKENS] = count, chunk_tokens
    row[CHUNK_CONTEXT], row[CHUNK_PAIRS] = chunk_context, pairs
    row[CHUNK_NS] = int(np.rint(attention_ns))
    row[DECODES], row[CONTEXT] = decodes, context
    row[DISCARDED], row[PREEMPT] = discarded, preempted
    at[STEP] += 1
    return True


@jit
def _preempt(r: Replica, i: int) -> None:
    """Take all from the request that was admitted last, and put it in front of the queue (R15)."""
    at, requests, computed = r.at, r.requests, r.requests[i, COMPUTED]
    at[RUNNING] -= 1
    push(r, i)
    own(r, i, 0)
    at[HELD_TOKENS] -= computed
    at[LOST_TOKENS] += computed
    requests[i, PREEMPTIONS] += 1
    requests[i, RESTS] = 0
    if computed < requests[i, TARGET]:
        at[PREFILLING] -= 1
    elif at[OLDEST] < at[STEP]:  # its last token is in flight (R42)
        note(r, (at[STEP] - 1) % 2, PARTED, i)
    else:
        requests[i, LAST_NS] = at[NOW_NS]
    write_event(r, at[STEP], i, PREEMPTED_EVENT, computed, 0)
