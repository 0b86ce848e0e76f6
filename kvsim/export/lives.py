"""Requests as intervals of time: in the front end, in the queue, in a sequence slot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from kvsim.export.span import Ints, Span
from kvsim.tables import LOSSES, RETURNS, Columns


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a request's life, from one instant to another."""

    name: str
    from_ns: int
    to_ns: int


@dataclass(frozen=True, slots=True)
class Lives:
    """When the requests of a variant that have an instant in a span came and went.

    All arrays have one entry a request, in order of their numbers; an instant that never came is
    -1.

    Attributes:
        rows: Their places in the requests table.
        number: Their numbers.
        replica: Who served them; -1 if nobody did.
        arrival_ns: Arrival.
        queued_ns: In the engine's queue.
        admitted_ns: First scheduled.
        first_ns: First token.
        gone_ns: When they left, or the end of the run.
    """

    rows: Ints
    number: Ints
    replica: Ints
    arrival_ns: Ints
    queued_ns: Ints
    admitted_ns: Ints
    first_ns: Ints
    gone_ns: Ints

    def runs_in(self, span: Span) -> NDArray[np.bool_]:
        """Tell which requests were admitted before the end of a span."""
        return (self.admitted_ns >= 0) & (self.admitted_ns < span.to_ns)

    def before_service(self, place: int) -> Iterator[Phase]:
        """Yield what a request waited for until it was admitted, or gone."""
        queued_ns, admitted_ns = int(self.queued_ns[place]), int(self.admitted_ns[place])
        gone_ns = int(self.gone_ns[place])
        in_queue_ns = queued_ns if queued_ns >= 0 else gone_ns
        yield Phase("front end", int(self.arrival_ns[place]), in_queue_ns)
        if queued_ns >= 0:
            yield Phase("queue", queued_ns, admitted_ns if admitted_ns >= 0 else gone_ns)

    def in_slot(self, place: int, lost: Sequence[Phase]) -> Iterator[Phase]:
        """Yield the phases of an admitted request, those inside another after it."""
        admitted_ns, first_ns = int(self.admitted_ns[place]), int(self.first_ns[place])
        gone_ns = int(self.gone_ns[place])
        yield Phase("prefill", admitted_ns, first_ns if first_ns >= 0 else gone_ns)
        if first_ns >= 0:
            yield Phase("decode", first_ns, gone_ns)
        yield from lost


def lives(requests: Columns, span: Span, end_ns: int) -> Lives:
    """Return the requests that are there in a span.

    Args:
        requests: The requests table.
        span: Of simulated time.
        end_ns: When the run ended: who is unfinished stays until then.
    """
    finish_ns = requests["finish_ns"]
    gone_ns = np.where(finish_ns >= 0, finish_ns, end_ns)
    arrival_ns = requests["arrival_ns"]
    rows = np.flatnonzero(span.meets(arrival_ns, gone_ns))
    rows = rows[np.argsort(requests["request"][rows], kind="stable")]
    return Lives(
        rows,
        number=requests["request"][rows],
        replica=requests["replica"][rows],
        arrival_ns=arrival_ns[rows],
        queued_ns=requests["queued_ns"][rows],
        admitted_ns=requests["admitted_ns"][rows],
        first_ns=requests["first_token_ns"][rows],
        gone_ns=gone_ns[rows],
    )


def slots(found: Lives, span: Span) -> Ints:
    """Give each request that runs in a span the lowest free slot of its replica; -1 to all others.

    A request keeps its slot while it is preempted, so that no two in a slot overlap.
    """
    given = np.full(len(found.number), -1, dtype=np.int64)
    order = np.argsort(found.admitted_ns, kind="stable")
    admitted = order[found.runs_in(span)[order]]
    taken: dict[int, list[tuple[int, int]]] = {}
    free: dict[int, list[int]] = {}
    starts, ends = found.admitted_ns[admitted].tolist(), found.gone_ns[admitted].tolist()
    replicas = found.replica[admitted].tolist()
    chosen = []
    for start_ns, gone_ns, replica in zip(starts, ends, replicas, strict=True):
        busy, idle = taken.setdefault(replica, []), free.setdefault(replica, [])
        while busy and busy[0][0] <= start_ns:
            heappush(idle, heappop(busy)[1])
        slot = heappop(idle) if idle else len(busy)
        heappush(busy, (gone_ns, slot))
        chosen.append(slot)
    given[admitted] = chosen
    return given


def losses(events: Columns, found: Lives) -> dict[int, list[Phase]]:
    """Return when requests had lost their KV cache, until their next token; by place in `found`.

    Each such phase lies within the prefill or within the decoding of its request.
    """
    kinds = events["event"]
    told = np.flatnonzero(np.isin(kinds, LOSSES + RETURNS))
    numbers = events["request"][told]
    if not len(found.number):
        return {}
    places = np.minimum(np.searchsorted(found.number, numbers), len(found.number) - 1)
    mine = found.number[places] == numbers
    told, places = told[mine], places[mine]
    order = np.lexsort((told, events["time_ns"][told], places))
    lost = np.isin(kinds[told[order]], LOSSES).tolist()
    times = events["time_ns"][told[order]].tolist()
    by_place: dict[int, list[tuple[int, bool]]] = {}
    for place, time_ns, is_lost in zip(places[order].tolist(), times, lost, strict=True):
        by_place.setdefault(place, []).append((time_ns, is_lost))
    return {
        place: _phases(those, int(found.first_ns[place]), int(found.gone_ns[place]))
        for place, those in by_place.items()
    }


def _phases(told: Sequence[tuple[int, bool]], first_ns: int, gone_ns: int) -> list[Phase]:
    """Return the phases of one request from its losses (True) and returns, in order of time."""
    phases: list[Phase] = []
    since_ns = -1
    for time_ns, is_lost in told:
        if since_ns < first_ns <= time_ns and since_ns >= 0 and is_lost:
            phases.append(Phase("preempted", since_ns, first_ns))  # lost before the first token
            since_ns = -1
        if is_lost:
            since_ns = since_ns if since_ns >= 0 else time_ns
        elif since_ns >= 0:
            # Who is preempted while the first token is in flight gets that one all the same.
            phases.append(Phase("preempted", max(since_ns, first_ns), time_ns))
            since_ns = -1
    if since_ns >= 0:
        until_ns = first_ns if first_ns > since_ns else gone_ns
        phases.append(Phase("preempted", since_ns, max(since_ns, until_ns)))
    return [Phase(each.name, each.from_ns, min(each.to_ns, gone_ns)) for each in phases]
