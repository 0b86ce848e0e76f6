"""Where a replay leaves the recorded schedule."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kvsim.conformance.fields import shown
from kvsim.conformance.recording import Recording, read_recordings
from kvsim.conformance.replay import Replayed, Values, replay, why_not_modeled
from kvsim.errors import BrokenLawError, InputError, Problem

CUT = "if the recording was cut there, its summary needs a note that begins with 'stopped'"


@dataclass(frozen=True, slots=True)
class Difference:
    """Something recorded that the engine does otherwise.

    Attributes:
        field: Which, and what in it, such as `scheduled[3]`.
        expected: What was recorded.
        found: What the engine does.
        step: Index of the scheduling call, from 0; None if it isn't about a step.
        time_ms: When the call was recorded; None if it isn't about a step.
        request: Whose outcome it is; None if it isn't about one.
    """

    field: str
    expected: Any
    found: Any
    step: int | None = None
    time_ms: float | None = None
    request: int | None = None

    def __str__(self) -> str:
        where = ""
        if self.step is not None:
            where = f"step {self.step} at {self.time_ms} ms, "
        elif self.request is not None:
            where = f"outcome of request {self.request}, "
        return f"{where}{self.field}: expected {_shown(self.expected)}, found {_shown(self.found)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a run: identical, the first difference, or why the engine has no such thing.

    `unread` is what its file says besides, and nobody looked at.
    """

    name: str
    steps: int
    steps_identical: int
    difference: Difference | None = None
    not_modeled: str = ""
    unread: tuple[Problem, ...] = ()

    @property
    def identical(self) -> bool:
        """Whether nothing differs."""
        return self.difference is None and not self.not_modeled


def conform(path: Path) -> Iterator[Verdict]:
    """Replay the runs of a file, one after the other.

    Raises:
        InputError: It can't be read, or isn't in the format.
    """
    for recording in read_recordings(path):
        yield replace(judge(recording), unread=recording.unread)


def judge(recording: Recording) -> Verdict:
    """Replay a run and compare all that was recorded."""
    name, steps = recording.name, len(recording.steps)
    why = why_not_modeled(recording)
    if why:
        return Verdict(name, steps, 0, not_modeled=why)
    try:
        replayed = replay(recording)
    except InputError as error:
        return Verdict(name, steps, 0, not_modeled=f"kvsim refuses it: {error}")
    except BrokenLawError as error:
        broken = Difference("law of the engine", "kept", f"broken: {error}")
        return Verdict(name, steps, 0, broken)
    pairs = list(zip(_compared(recording), replayed.steps, strict=False))
    identical = sum(not any(_unequal(expected, found)) for expected, found in pairs)
    return Verdict(name, steps, identical, next(_differences(recording, replayed, pairs), None))


def _compared(recording: Recording) -> list[Values]:
    """Return the recorded steps, of which everything is compared, with one exception.

    With mixed block sizes vLLM also counts keys of parts of blocks, which nothing ever finds (R35).
    """
    sizes = {group.block_size for group in recording.config.groups}
    left_out = {"cached_hashes"} if len(sizes) > 1 else set()
    return [
        {field: value for field, value in step.items() if field not in left_out}
        for step in recording.steps
    ]


def _differences(
    recording: Recording, replayed: Replayed, steps: list[tuple[Values, Values]]
) -> Iterator[Difference]:
    for index, (expected, found) in enumerate(steps):
        for field, value, other in _unequal(expected, found):
            yield Difference(field, value, other, step=index, time_ms=expected["time_ms"])
    count, found_count = len(recording.steps), len(replayed.steps)
    if count > found_count:
        yield Difference("number of steps", count, found_count)
    elif count < found_count:
        more = f"another one at {replayed.steps[count]['time_ms']} ms; {CUT}"
        yield Difference("number of steps", count, more)
    for number, row in recording.outcome.items():
        for field, value, other in _unequal(row, replayed.outcome.get(number, {})):
            yield Difference(field, value, other, request=number)
    for field, value, other in _unequal(recording.summary, replayed.summary):
        yield Difference(f"summary.{field}", value, other)


def _unequal(expected: Values, found: Values) -> Iterator[tuple[str, Any, Any]]:
    for field, value in expected.items():
        other = found.get(field)
        if other != value:
            yield _innermost(field, value, other)


def _innermost(field: str, expected: Any, found: Any) -> tuple[str, Any, Any]:
    """Narrow a difference down to the entry of a list or mapping that differs first.

    An entry of `scheduled` is shown whole: three numbers that tell only together what they mean.
    """
    if field.startswith("scheduled["):
        return field, expected, found
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in [*expected, *(key for key in found if key not in expected)]:
            if expected.get(key) != found.get(key):
                return _innermost(f"{field}.{key}", expected.get(key), found.get(key))
    if isinstance(expected, list) and isinstance(found, list):
        for index, (value, other) in enumerate(zip_longest(expected, found)):
            if value != other:
                return _innermost(f"{field}[{index}]", value, other)
    return field, expected, found


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else shown(value)
