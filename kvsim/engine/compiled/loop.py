"""The loop: requests are sent to replicas, and each replica goes on turn by turn.

What a step computes counts as computed when it is scheduled; its tokens come when it ends.
"""

from kvsim.engine.compiled.books import append, own, take_in, withdraw, write_event
from kvsim.engine.compiled.jit import jit
from kvsim.engine.compiled.layout import (
    ACTS_NS,
    ANSWER,
    ANY,
    BLOCK_TOKENS,
    BUSY_NS,
    CACHES_PREFIXES,
    COMING,
    COMPARED,
    COMPUTED,
    DISCARDED_TOKENS,
    DONE,
    ENDS,
    EVENT_ROWS,
    FIRST_NS,
    FRONT_END_NS,
    FULL,
    HELD_TOKENS,
    INDEX,
    LAST_NS,
    LEFT_ROWS,
    LOAD_REQUESTS,
    LOAD_TOKENS,
    LOOKS,
    MOST_RUNNING,
    NEVER_NS,
    NEXT_REQUEST,
    NOBODY,
    NOW_NS,
    OLDEST,
    OTHER,
    PARTED,
    PAUSE_STEPS,
    PAUSED,
    PAUSES,
    PROMPT,
    PROMPTS,
    QUEUED_NS,
    RANKS,
    REJECTED,
    REPLICA,
    REST_NS,
    REUSABLE_BLOCKS,
    RUNNING,
    SAMPLED,
    STEP,
    STEP_ROWS,
    STUCK_HEAD,
    TARGET,
    TURN_TAKEN,
    WAITING,
    WRITTEN_STEPS,
    Cost,
    Replica,
    Replicas,
)
from kvsim.engine.compiled.schedule import start_steps
from kvsim.engine.compiled.stretch import end_stretch, pass_quiet_steps
from kvsim.tables import EVENT_KINDS

RESUMED_EVENT = EVENT_KINDS.index("resumed")

# Requests


@jit
def advance(fleet: Replicas, cost: Cost) -> int:
    """Go on until all requests have left (DONE), or rows have to be taken out first.

    FULL: a buffer of rows is full. PAUSED: of each replica that pauses, a request has left when
    PAUSE_STEPS of its steps or more were unwritten; the others have come as far as they can without
    it. STUCK: nothing can be scheduled, which no plain case allows. BEYOND: somebody is preempted
    whose prefix is cached. After FULL and PAUSED it can be called again.
    """
    rows, requests = fleet.rows, len(fleet.arrival_ns)
    if not fleet.limits[LOOKS]:
        while rows[NEXT_REQUEST] < requests:
            _send(fleet)
    while True:
        until_ns = NEVER_NS
        if rows[NEXT_REQUEST] < requests:
            until_ns = fleet.arrival_ns[rows[NEXT_REQUEST]]
        outcome = _all_go_on(fleet, cost, until_ns)
        if outcome != DONE or rows[NEXT_REQUEST] == requests:
            return outcome
        _send(fleet)


@jit
def _all_go_on(fleet: Replicas, cost: Cost, until_ns: int) -> int:
    """Let all happen that happens before an instant (DONE); else see `advance`."""
    pauses = False
    for place in range(len(fleet.at)):
        if fleet.at[place, ACTS_NS] < until_ns:
            outcome = _go_on(_replica(fleet, place), cost, until_ns)
            if outcome == PAUSED:
                pauses = True
            elif outcome != DONE:
                return outcome
    return PAUSED if pauses else DONE


@jit
def _replica(fleet: Replicas, place: int) -> Replica:
    """Return what a replica works on."""
    return Replica(
        fleet.limits,
        fleet.rows,
        fleet.requests,
        fleet.at[place],
        fleet.running[place],
        fleet.end_ns[place],
        fleet.counts[place],
        fleet.members[place],
        fleet.due[place],
        fleet.filled[place],
        fleet.chunks,
        fleet.steps,
        fleet.left,
        fleet.events,
    )


@jit
def _send(fleet: Replicas) -> None:
    """Send the next request to a replica, unless it is rejected."""
    i, requests = fleet.rows[NEXT_REQUEST], fleet.requests
    fleet.rows[NEXT_REQUEST] += 1
    if requests[i, REPLICA] == REJECTED:
        return
    place = _choose(fleet, i)
    requests[i, REPLICA] = place
    r = _replica(fleet, place)
    r.at[LOAD_REQUESTS] += 1
    r.at[LOAD_TOKENS] += requests[i, PROMPT]
    r.at[FRONT_END_NS] = max(fleet.arrival_ns[i], r.at[FRONT_END_NS]) + requests[i, BUSY_NS]
    queued_ns = r.at[FRONT_END_NS] + fleet.limits[REST_NS]
    requests[i, QUEUED_NS] = queued_ns
    append(r, i)
    r.at[ACTS_NS] = min(r.at[ACTS_NS], queued_ns)


@jit
def _choose(fleet: Replicas, i: int) -> int:
    """Return where a request goes: of the least loaded replica, the first of equals, a rank."""
    ranks, compared = fleet.limits[RANKS], fleet.limits[COMPARED]
    chosen, other = fleet.requests[i, REPLICA], fleet.requests[i, OTHER]
    if chosen == ANY:
        chosen, least = 0, _load(fleet, 0, compared)
        for place in range(1, len(fleet.at) // ranks):
            load = _load(fleet, place, compared)
            if load < least:
                chosen, least = place, load
    elif _load(fleet, other, compared) < _load(fleet, chosen, compared):
        chosen = other
    first = chosen * ranks
    chosen = first
    for place in range(first + 1, first + ranks):
        if fleet.at[place, LOAD_REQUESTS] < fleet.at[chosen, LOAD_REQUESTS]:
            chosen = place
    return int(chosen)


@jit
def _load(fleet: Replicas, replica: int, compared: int) -> int:
    """Return the load of all ranks of a replica."""
    load, ranks = 0, fleet.limits[RANKS]
    for place in range(replica * ranks, (replica + 1) * ranks):
        load += fleet.at[place, compared]
    return load


# Turns of a replica


@jit
def _go_on(r: Replica, cost: Cost, until_ns: int) -> int:
    """Let all happen that happens on a replica before an instant (DONE); else see `advance`."""
    at = r.at
    if at[PAUSES] and at[STEP] - at[WRITTEN_STEPS] >= r.limits[PAUSE_STEPS]:
        return PAUSED
    at[PAUSES] = 0
    while True:
        if not at[TURN_TAKEN]:
            at[ACTS_NS] = _next_turn_ns(r)
            if at[ACTS_NS] >= until_ns:
                return DONE
            outcome = _take_turn(r, cost, until_ns)
            if outcome == PAUSED:
                continue
            if outcome != DONE:
                return outcome
            at[TURN_TAKEN] = 1
        at[ACTS_NS] = r.end_ns[at[OLDEST] % 2]
        if at[ACTS_NS] >= until_ns:
            return DONE
        left = r.rows[LEFT_ROWS]
        _complete(r)
        at[TURN_TAKEN] = 0
        if r.rows[LEFT_ROWS] > left and at[STEP] - at[WRITTEN_STEPS] >= r.limits[PAUSE_STEPS]:
            at[PAUSES] = 1
            return PAUSED


@jit
def _next_turn_ns(r: Replica) -> int:
    """Return when it is a replica's turn: now, unless it rests until somebody comes."""
    at = r.at
    if not at[RUNNING] + at[WAITING] and at[OLDEST] == at[STEP]:
        if at[COMING] == NOBODY:
            return NEVER_NS
        at[NOW_NS] = max(at[NOW_NS], r.requests[at[COMING], QUEUED_NS])
    return int(at[NOW_NS])


@jit
def _take_turn(r: Replica, cost: Cost, until_ns: int) -> int:
    """Schedule what can be now; DONE, FULL, or what `start_steps` returns."""
    at = r.at
    if take_in(r):
        end_stretch(r)
    if not at[RUNNING] + at[WAITING]:
        return DONE
    room = min(len(r.left) - r.rows[LEFT_ROWS], (len(r.events) - r.rows[EVENT_ROWS]) // 2)
    if len(r.steps) - r.rows[STEP_ROWS] < 3 or room <= r.limits[MOST_RUNNING]:
        return FULL
    if pass_quiet_steps(r, cost, until_ns):
        return DONE
    return start_steps(r, cost)


@jit
def _complete(r: Replica) -> None:
    """Apply the results of the oldest step in flight."""
    at, requests = r.at, r.requests
    slot, step = at[OLDEST] % 2, at[OLDEST]
    at[NOW_NS] = r.end_ns[slot]
    at[OLDEST] += 1
    prompts, ends, parted = r.counts[slot, PROMPTS], r.counts[slot, ENDS], r.counts[slot, PARTED]
    if not prompts + ends + parted:
        return
    r.counts[slot] = 0
    for place in range(prompts):
        i = r.members[slot, PROMPTS, place]
        if requests[i, FIRST_NS] < 0:
            requests[i, FIRST_NS] = at[NOW_NS]
        else:
            gap_ns = at[NOW_NS] - requests[i, LAST_NS]
            write_event(r, step, i, RESUMED_EVENT, requests[i, TARGET], gap_ns)
    for place in range(parted):
        requests[r.members[slot, PARTED, place], LAST_NS] = at[NOW_NS]
    for place in range(ends):
        _finish(r, r.members[slot, ENDS, place])
    if ends:
        at[STUCK_HEAD] = 0


@jit
def _finish(r: Replica, i: int) -> None:
    """End a request whose last token has come; it may have been preempted meanwhile."""
    at, requests = r.at, r.requests
    place = 0
    while place < at[RUNNING] and r.running[place] != i:
        place += 1
    if place < at[RUNNING]:
        at[RUNNING] -= 1
        for behind in range(place, at[RUNNING]):
            r.running[behind] = r.running[behind + 1]
        own(r, i, 0)
        at[HELD_TOKENS] -= requests[i, COMPUTED]
        if r.limits[CACHES_PREFIXES]:  # all but the last token (R24, R41)
            tokens = requests[i, PROMPT] + requests[i, ANSWER] - 1
            at[REUSABLE_BLOCKS] += tokens // r.limits[BLOCK_TOKENS]
    else:
        withdraw(r, i)
        requests[i, COMPUTED] = 0  # lost
    at[DISCARDED_TOKENS] += requests[i, SAMPLED] - requests[i, ANSWER]
    at[LOAD_REQUESTS] -= 1
    at[LOAD_TOKENS] -= requests[i, PROMPT]
    row = r.left[r.rows[LEFT_ROWS]]
    r.rows[LEFT_ROWS] += 1
    row[0], row[1], row[2] = i, at[NOW_NS], at[INDEX]
