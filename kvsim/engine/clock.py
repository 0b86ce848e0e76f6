"""SimPy's environment on an integer clock of nanoseconds, and the order of simultaneous events."""

from heapq import heappop
from typing import TYPE_CHECKING, cast

from simpy import Environment, Event
from simpy.events import URGENT, EventPriority

# At one instant clients act first, then the replicas in order of their numbers, then clients who
# have waited in vain. So the order doesn't depend on when an event was put on the calendar.
REPLICAS = URGENT + 1
LATE = EventPriority(2**31)


class Clock(Environment):
    """Simulated time in integer nanoseconds: sums are exact in any order."""

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """Simulated time, ns."""

    def run_to(self, until_ns: int | None = None) -> None:
        """Process all events before an instant, or all there are.

        As SimPy's `run`, but for alarms that were moved: nobody waits for these any more, and
        time doesn't pass for them.
        """
        queue = self._queue
        while queue and (until_ns is None or queue[0][0] < until_ns):
            now_ns, _, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            if event._ok and not callbacks:
                continue
            self._now = now_ns
            for callback in callbacks:
                callback(event)
            if not event._ok and not event.defused:
                raise cast(BaseException, event.value)
        if until_ns is not None:
            self._now = until_ns

    def count_events(self) -> int:
        """Return how many events were put on the calendar; to be asked once, at the end."""
        return next(self._eid)


class Alarm(Event):
    """A timeout of a replica that is set again after it has rung: one object for all its steps."""

    def __init__(self, clock: Clock, replica: int) -> None:
        super().__init__(clock)
        self._ok = True
        self._value = None
        self._clock, self._replica = clock, replica
        self._schedule = clock.schedule
        self._priority = EventPriority(REPLICAS + replica)
        self.is_set = False

    def set(self, delay_ns: int) -> "Alarm":
        """Let it ring after a delay, for those who wait for it from now on."""
        self.callbacks = []
        self._schedule(self, self._priority, delay_ns)
        self.is_set = True
        return self

    def unset(self) -> "Alarm":
        """Let it ring only when it is moved, for those who wait for it from now on."""
        self.callbacks = []
        self.is_set = False
        return self

    def moved(self, delay_ns: int) -> "Alarm":
        """Let it ring after a delay, not when it was to; return it, maybe as another object."""
        if not self.is_set:
            self._schedule(self, self._priority, delay_ns)
            self.is_set = True
            return self
        other = Alarm(self._clock, self._replica).set(delay_ns)
        other.callbacks, self.callbacks = self.callbacks, []
        return other


class Instant(Event):
    """A timeout at which clients act: before the steps that end or start then, or after them."""

    def __init__(self, clock: Clock, delay_ns: int, late: bool = False) -> None:
        super().__init__(clock)
        self._ok = True
        self._value = None
        clock.schedule(self, priority=LATE if late else URGENT, delay=delay_ns)
