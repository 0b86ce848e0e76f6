"""A stretch: steps planned ahead in which the same sequences decode and nothing else happens.

Nothing is done for them when they are planned. They are *committed* when the last one has been
scheduled, or when somebody wants to see the replica in between; what was planned for later is
dropped if something comes.
"""

from bisect import bisect_left, bisect_right


class Stretch:
    """Steps `first` to `first + planned - 1`, of which `committed` have been accounted for.

    `turns_ns[i]` is when step `first + i` is scheduled, which is the end of the step
    `most_in_flight` before it.
    """

    __slots__ = ("_most_in_flight", "committed", "durations_ns", "first", "planned", "turns_ns")

    def __init__(self, most_in_flight: int) -> None:
        self._most_in_flight = most_in_flight
        self.first = self.planned = self.committed = 0
        self.durations_ns: list[int] = []
        self.turns_ns: list[int] = []

    @property
    def over_ns(self) -> int:
        """When the step after it is to be scheduled."""
        return self.turns_ns[self.planned]

    def begin(
        self, first: int, durations_ns: list[int], turns_ns: list[int], before_ns: int | None
    ) -> None:
        """Plan the steps from `first` on, those whose turns come before an instant."""
        self.first, self.durations_ns, self.turns_ns = first, durations_ns, turns_ns
        self.committed, self.planned = 0, len(durations_ns)
        if before_ns is not None:
            self.planned = self.turned(before_ns)

    def turned(self, now_ns: int, late: bool = False) -> int:
        """Return how many have been scheduled at an instant: before it, if `late` also at it."""
        bisect = bisect_right if late else bisect_left
        return bisect(self.turns_ns, now_ns, 0, self.planned)

    def start_ns(self, place: int) -> int:
        """Return when a step starts: when the one before it ends."""
        return self.turns_ns[place + self._most_in_flight - 1]

    def end_ns(self, place: int) -> int:
        """Return when a step ends."""
        return self.turns_ns[place + self._most_in_flight]
