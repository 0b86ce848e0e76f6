"""Who is admitted next, and who is preempted first: first come first served, or by priority."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping

from kvsim.engine.request import Request
from kvsim.engine.schedulers import WaitingQueue


class FcfsQueue(deque[Request]):
    """First come, first served: new arrivals to the back, preempted requests to the front (R7)."""

    __slots__ = ()

    @property
    def head(self) -> Request:
        """The request to be admitted next."""
        return self[0]

    def requeue(self, request: Request) -> None:
        """Take back a preempted request."""
        self.appendleft(request)


class PriorityQueue:
    """Smallest priority first, ties by arrival; a preempted request goes where it was (R8)."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        # Head last, so that it leaves at no cost. Numbers differ: requests are never compared.
        self._entries: list[tuple[int, int, int, Request]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def head(self) -> Request:
        """The request to be admitted next."""
        return self._entries[-1][-1]

    def append(self, request: Request) -> None:
        """Take in a new arrival."""
        insort(self._entries, _entry(request))

    def requeue(self, request: Request) -> None:
        """Take back a preempted request."""
        insort(self._entries, _entry(request))

    def popleft(self) -> Request:
        """Remove the head and return it."""
        return self._entries.pop()[-1]

    def remove(self, request: Request) -> None:
        """Remove a request.

        Raises:
            ValueError: It doesn't wait here.
        """
        entry = _entry(request)
        place = bisect_left(self._entries, entry)
        if self._entries[place : place + 1] != [entry]:
            raise ValueError(f"request {request.number} doesn't wait here")
        del self._entries[place]


def new_queue(scheduling_policy: str) -> WaitingQueue:
    """Return an empty queue for `fcfs` or `priority`; several replicas may share it."""
    return PriorityQueue() if scheduling_policy == "priority" else FcfsQueue()


def _entry(request: Request) -> tuple[int, int, int, Request]:
    return -request.priority, -request.arrival_ns, -request.number, request


def _admitted_last(running: dict[int, Request]) -> Request:
    """Return the victim of first come, first served (R12)."""
    return next(reversed(running.values()))


def _least_urgent(running: dict[int, Request]) -> Request:
    """Return the victim by priority; of equal ones, the one admitted first (R13)."""
    return max(running.values(), key=lambda request: (request.priority, request.arrival_ns))


VICTIMS: Mapping[str, Callable[[dict[int, Request]], Request]] = {
    "fcfs": _admitted_last,
    "priority": _least_urgent,
}
