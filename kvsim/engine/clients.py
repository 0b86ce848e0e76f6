"""The clients: who sends what when, who waits for whom, who gives up, who tries again.

A *group* is what a client sends at once: a request with its samples. It is *open* while an attempt
is on its way. What the client does next follows when the attempt is over: the next turn of its
session, another attempt, or a permit for whoever waits at the gate.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from heapq import heappop, heappush
from typing import Any, Protocol

import numpy as np
from simpy import Event

from kvsim.engine.clock import Clock, Instant
from kvsim.engine.reader import RequestReader, as_view
from kvsim.engine.request import Request
from kvsim.errors import InputError, require
from kvsim.units import NS_PER_S
from kvsim.workload.limits import LATEST_NS
from kvsim.workload.requests import PATIENT, Gate, RequestTable

# An answer takes at least so long to its client, and the client's next request to the server: it
# never gets into the step that starts when the answer's last token comes.
ROUND_TRIP_NS = 1


class Server(Protocol):
    """Where requests are sent."""

    def take_in(self, request: Request, answer_tokens: int) -> None:
        """Take a request that arrives now; tell `Clients.left` when it leaves, maybe at once."""
        ...

    def give_up(self, number: int) -> None:
        """Note that the client of a request is gone; `Clients.left` is not told."""
        ...


class Clients:
    """Sends the requests of a table; `left` tells it what the server has done."""

    def __init__(
        self, clock: Clock, requests: RequestTable, reader: RequestReader, server: Server
    ) -> None:
        """Prepare all clients; the first ones send when the clock starts."""
        self._clock = clock
        self._requests = requests
        self._reader = reader
        self._server = server
        # Row of the table that each further attempt repeats; these are numbered after its last row.
        self.retried_rows: list[int] = []
        starts = np.diff(requests.group, prepend=-1) != 0
        starts |= np.diff(requests.arrival_ns, prepend=-1) != 0
        # First row of each group; one more ends the last. Here groups go by their place.
        self._first_rows = as_view(np.append(np.flatnonzero(starts), len(requests)))
        self._open: dict[int, list[Request]] = {}  # by group: on their way
        self._attempts: dict[int, int] = {}  # of open groups that are on a further one
        self._failed: set[int] = set()  # open groups of which a sample was rejected
        self._deadlines: list[tuple[int, int, int]] = []  # heap of time, group, attempt
        self._next_alarm_ns = -1
        self._gates = [_Gate(gate, self._at, self._send) for gate in requests.gates]
        clock.process(self._begin_sessions())

    def left(self, request: Request, answered: bool) -> None:
        """Go on after a request has left the server, unless its client is gone already."""
        group = request.bundle
        samples = self._open[group]
        samples.remove(request)
        if not answered:
            self._failed.add(group)
        if not samples:
            self._close(group)
            failed = group in self._failed
            self._failed.discard(group)
            self._over(group, answered=not failed)

    # Sending

    def _begin_sessions(self) -> Generator[Event, Any, None]:
        """Walk through the table: one timeout for each instant at which sessions begin."""
        clock, arrival_ns = self._clock, as_view(self._requests.arrival_ns)
        for group in self._sessions():
            begins_ns = arrival_ns[self._first_rows[group]]
            if begins_ns > clock.now:
                yield Instant(clock, begins_ns - clock.now)
            require(clock.now == begins_ns, "requests arrive when their clients send them")
            self._ready(group)

    def _sessions(self) -> Iterator[int]:
        """Yield the first group of each session."""
        groups = len(self._first_rows) - 1
        if self._requests.delay_ns is None:
            return iter(range(groups))
        assert self._requests.session is not None  # a law of the table
        session = self._requests.session[np.asarray(self._first_rows)[:-1]]
        return iter(np.flatnonzero(np.diff(session, prepend=-1)).tolist())

    def _ready(self, group: int) -> None:
        """Send a group, or let it wait at its gate."""
        gate = self._gate_of(group)
        if gate is None or (gate.holds_session and self._is_further_turn(group)):
            self._send(group)
        else:
            gate.enter(group)

    def _send(self, group: int, attempt: int = 0) -> None:
        clock, requests = self._clock, self._requests
        if requests.stop_ns is not None and clock.now >= requests.stop_ns:
            return
        _refuse_late(clock.now)
        sent = []
        for row in range(self._first_rows[group], self._first_rows[group + 1]):
            number = row
            if attempt:
                number = len(requests) + len(self.retried_rows)
                self.retried_rows.append(row)
            sent.append(self._reader.read(row, number, clock.now))
        self._open[group] = [request for request, _ in sent]
        if attempt:
            self._attempts[group] = attempt
        self._set_deadline(group, attempt)
        for request, answer_tokens in sent:
            request.attempt, request.bundle, request.samples = attempt, group, len(sent)
            self._server.take_in(request, answer_tokens)

    def _over(self, group: int, answered: bool) -> None:
        """Go on after a group's last attempt: with the next turn, else the session is over."""
        row = self._first_rows[group]
        gate = self._gate_of(group)
        goes_on = answered and self._is_further_turn(group + 1)
        if goes_on:
            assert self._requests.delay_ns is not None
            delay_ns = int(self._requests.delay_ns[self._first_rows[group + 1]])
            self._at(delay_ns, lambda: self._ready(group + 1))
        if gate is not None and not (goes_on and gate.holds_session):
            think_ns = 0 if self._requests.think_ns is None else int(self._requests.think_ns[row])
            gate.leave(think_ns)

    def _is_further_turn(self, group: int) -> bool:
        """Tell whether a group is sent after the one before it, in the same session."""
        table, first_rows = self._requests, self._first_rows
        if table.delay_ns is None or table.session is None or not 0 < group < len(first_rows) - 1:
            return False
        return bool(table.session[first_rows[group]] == table.session[first_rows[group - 1]])

    def _gate_of(self, group: int) -> "_Gate | None":
        if not self._gates:
            return None
        gate = self._requests.gate
        index = 0 if gate is None else int(gate[self._first_rows[group]])
        return self._gates[index] if index >= 0 else None

    def _at(self, delay_ns: int, action: Callable[[], None], late: bool = False) -> None:
        instant = Instant(self._clock, max(ROUND_TRIP_NS, delay_ns), late)
        instant.callbacks = [lambda _: action()]

    # Giving up

    def _set_deadline(self, group: int, attempt: int) -> None:
        if self._requests.timeout_ns is None:
            return
        timeout_ns = int(self._requests.timeout_ns[self._first_rows[group]])
        if timeout_ns != PATIENT:
            heappush(self._deadlines, (self._clock.now + timeout_ns, group, attempt))
            self._set_alarm()

    def _set_alarm(self) -> None:
        """Have `_give_up` called at the earliest deadline that still matters."""
        deadlines = self._deadlines
        while deadlines and not self._is_open(*deadlines[0][1:]):
            heappop(deadlines)
        if deadlines and not self._clock.now < self._next_alarm_ns <= deadlines[0][0]:
            self._next_alarm_ns = deadlines[0][0]
            self._at(self._next_alarm_ns - self._clock.now, self._give_up, late=True)

    def _is_open(self, group: int, attempt: int) -> bool:
        return group in self._open and self._attempts.get(group, 0) == attempt

    def _give_up(self) -> None:
        """Let those go whose time is up; an answer complete at this instant still counts."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= self._clock.now:
            _, group, attempt = heappop(deadlines)
            if self._is_open(group, attempt):
                self._abandon(group, attempt)
        self._set_alarm()

    def _abandon(self, group: int, attempt: int) -> None:
        for request in self._close(group):
            self._server.give_up(request.number)
        delay_ns = self._retry_delay_ns(group, attempt)
        if delay_ns < 0:
            self._over(group, answered=False)
        else:
            self._at(delay_ns, lambda: self._send(group, attempt + 1))

    def _close(self, group: int) -> list[Request]:
        """Note that an attempt is over; return those of its requests that are on their way."""
        self._attempts.pop(group, None)
        return self._open.pop(group)

    def _retry_delay_ns(self, group: int, attempt: int) -> int:
        delays_ns = self._requests.retry_delays_ns
        if delays_ns is None or attempt >= delays_ns.shape[1]:
            return -1
        return int(delays_ns[self._first_rows[group], attempt])


def _refuse_late(now_ns: int) -> None:
    if now_ns > LATEST_NS:
        raise InputError(
            f"clients that wait still send after {LATEST_NS / NS_PER_S:g} s, the longest run; "
            "shorten their pauses, or set duration_s or max_simulated_s"
        )


class _Gate:
    """A gate at work: who waits for a permit, and how many permits nobody has."""

    def __init__(
        self,
        gate: Gate,
        at: Callable[[int, Callable[[], None]], None],
        send: Callable[[int], None],
    ) -> None:
        self.holds_session = gate.holds_session
        self._at = at
        self._send = send
        self._waiting: deque[int] = deque()
        self._free = 0
        for opens_ns in gate.opens_ns.tolist():
            if opens_ns:
                at(opens_ns, self._give_permit)
            else:
                self._free += 1

    def enter(self, group: int) -> None:
        """Send a group now if there is a permit, or else when its turn comes."""
        if self._free:
            self._free -= 1
            self._send(group)
        else:
            self._waiting.append(group)

    def leave(self, think_ns: int) -> None:
        """Take a permit back, for the next in line after a pause."""
        self._at(think_ns, self._give_permit)

    def _give_permit(self) -> None:
        if self._waiting:
            self._send(self._waiting.popleft())
        else:
            self._free += 1
