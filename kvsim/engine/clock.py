"""SimPy's environment on an integer clock of nanoseconds, and the order of simultaneous events."""

from typing import TYPE_CHECKING

from simpy import Environment, Event
from simpy.events import NORMAL, URGENT, EventPriority

LATE = EventPriority(NORMAL + 1)


class Clock(Environment):
    """Simulated time in integer nanoseconds: sums are exact in any order."""

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """Simulated time, ns."""


class Alarm(Event):
    """A timeout that is set again after it has rung: one object for all steps of a replica."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._ok = True
        self._value = None
        self._schedule = clock.schedule

    def set(self, delay_ns: int) -> "Alarm":
        """Let it ring after a delay, for those who wait for it from now on."""
        self.callbacks = []
        self._schedule(self, delay=delay_ns)
        return self


class Instant(Event):
    """A timeout at which clients act: before the steps that end or start then, or after them."""

    def __init__(self, clock: Clock, delay_ns: int, late: bool = False) -> None:
        super().__init__(clock)
        self._ok = True
        self._value = None
        clock.schedule(self, priority=LATE if late else URGENT, delay=delay_ns)
