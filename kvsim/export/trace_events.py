"""Events of the Trace Event Format as JSON: slices, names, counters of an engine.

Times are microseconds there; nanoseconds are written as exact decimals.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvsim.export.lives import Phase


def microseconds(ns: int) -> str:
    """Show nanoseconds as microseconds, exactly."""
    whole, rest = divmod(ns, 1000)
    return f"{whole}.{rest:03d}" if rest else f"{whole}"


def slice_event(name: str, category: str, phase: Phase, thread: str) -> str:
    """Return a complete event without its end: arguments may follow."""
    time = f'"ts":{microseconds(phase.from_ns)},"dur":{microseconds(phase.to_ns - phase.from_ns)}'
    return f'{{"ph":"X","cat":"{category}","name":"{name}",{thread},{time}'


def metadata_event(kind: str, process: int, thread: int, args: dict[str, Any]) -> str:
    """Return what names or orders a process or a thread."""
    event = {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": args}
    return json.dumps(event, separators=(",", ":"))


@dataclass(slots=True)
class Counters:
    """Queue and KV cache of one replica; told where they change."""

    process: int
    end_ns: int = 0
    _queue: tuple[int, int] = (-1, -1)
    _use: tuple[int, ...] = ()

    def take(
        self, start_ns: int, end_ns: int, running: int, waiting: int, use: tuple[int, ...]
    ) -> Iterator[str]:
        """Take the state during a step."""
        self.end_ns = max(self.end_ns, end_ns)
        if (running, waiting) != self._queue:
            self._queue = running, waiting
            yield self._told("requests", start_ns, f'"running":{running},"waiting":{waiting}')
        if use != self._use:
            self._use = use
            yield self._told("KV cache tokens", start_ns, _uses(use))

    def pause(self) -> Iterator[str]:
        """Tell what is left when the last step has ended: what can be found in the prefix cache."""
        if not self._use:  # nothing ran yet
            return
        *_, reusable, _ = self._use
        nothing = (0,) * (len(self._use) - 2)
        use = (*nothing, reusable, sum(self._use) - reusable)
        yield from self.take(self.end_ns, self.end_ns, 0, 0, use)

    def _told(self, name: str, time_ns: int, args: str) -> str:
        where = f'"pid":{self.process},"tid":0,"ts":{microseconds(time_ns)}'
        return f'{{"ph":"C","name":"{name}",{where},"args":{{{args}}}}}'


def _uses(use: tuple[int, ...]) -> str:
    held, to_come, inside, rounding, holes, reusable, free = use
    wasted = inside + rounding + holes
    return (
        f'"held":{held},"reserved":{to_come},"wasted":{wasted},"reusable":{reusable},"free":{free}'
    )
