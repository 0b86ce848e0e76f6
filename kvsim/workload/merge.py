"""The requests of all classes → one table, session after session in order of their beginning."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvsim.units import seconds_to_ns
from kvsim.workload.arrivals import Users
from kvsim.workload.parameters import Member, Workload
from kvsim.workload.prompts import Prompts
from kvsim.workload.requests import NO_LIMIT, PATIENT, Gate, RequestTable, Segments, sums_before

if TYPE_CHECKING:
    from kvsim.workload.traces import Trace  # formats of logs take a while to import

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """The requests of one class, in order of session and turn.

    Attributes:
        member: The class.
        source: Number of the source that its sessions come from.
        place: Place of each request's session among those of the source, shape (requests,).
        start_ns: When the session begins, shape (requests,).
        prompts: The requests.
        outputs: Answers, shape (requests, samples).
        users: Who sends them, in a closed loop; `think_ns` has shape (requests,).
        trace: Where they were recorded, if they were.
        retry_delays_ns: Shape (requests, retries), none if nobody tries again.
    """

    member: Member
    source: int
    place: Ints
    start_ns: Ints
    prompts: Prompts
    outputs: Ints
    users: Users | None
    trace: "Trace | None"
    retry_delays_ns: Ints

    def __len__(self) -> int:
        return len(self.place)


def merge(workload: Workload, parts: list[Part], horizon_ns: int) -> RequestTable:
    """Return the table of all parts' requests; columns that nobody needs are None."""
    gates = _gates(workload, parts)
    columns = _Columns(
        [
            _columns(part, gate)
            for part, gate in zip(parts, _gate_numbers(parts, gates), strict=True)
        ],
        [len(part) for part in parts],
    )
    keys = [columns.joined(name) for name in ("source_place", "source", "arrival_ns")]
    order = np.lexsort(keys)
    columns.row = row = order if workload.samples == 1 else np.repeat(order, workload.samples)
    outputs = np.concatenate([part.outputs for part in parts])[order].reshape(-1)
    takes_turns = any(part.prompts.delay_ns is not None for part in parts)
    retries = _retry_delays_ns(parts)
    return RequestTable(
        arrival_ns=columns.ordered("arrival_ns"),
        prompt_tokens=columns.ordered("prompt_tokens"),
        output_tokens=outputs,
        max_tokens=_limits(columns.ordered("max_tokens"), outputs),
        group=_groups(workload, parts, len(order)),
        horizon_ns=horizon_ns,
        segments=_segments(parts, order, workload.samples),
        traffic_class=columns.ordered("class") if workload.classes else None,
        priority=columns.unless_all("priority", 0),
        session=_sessions(columns, takes_turns),
        delay_ns=columns.ordered("delay_ns") if takes_turns else None,
        timeout_ns=columns.unless_all("timeout_ns", PATIENT),
        retry_delays_ns=retries[row] if retries.size else None,
        gate=columns.ordered("gate") if gates else None,
        think_ns=columns.unless_all("think_ns", 0),
        gates=tuple(gates),
        stop_ns=_stop_ns(workload, takes_turns or bool(gates) or bool(retries.size)),
        class_names=workload.class_names,
        notes=_notes(parts),
        prefix_tokens=columns.unless_all("prefix_tokens", 0),
    )


_AS_OUTPUT = -1  # `max_tokens` that equals the true length of the answer
_NO_SESSION = -1


class _Columns:
    """The columns of all parts; a number stands for a column that holds it everywhere.

    They are joined one at a time, as they are asked for: together they take more memory than the
    table.
    """

    def __init__(self, parts: list[dict[str, Ints | int]], lengths: list[int]) -> None:
        self._parts = parts
        self._lengths = lengths
        self.row = np.zeros(0, dtype=np.int64)  # of the parts' requests, for each of the table

    def joined(self, name: str) -> Ints:
        """Return a column as the parts follow one another."""
        columns = [part[name] for part in self._parts]
        pairs = zip(columns, self._lengths, strict=True)
        whole = [np.broadcast_to(np.asarray(values, np.int64), size) for values, size in pairs]
        return whole[0] if len(whole) == 1 else np.concatenate(whole)

    def ordered(self, name: str) -> Ints:
        """Return a column in the order of the table."""
        return self.joined(name)[self.row]

    def unless_all(self, name: str, value: int) -> Ints | None:
        """Return a column in the order of the table, None if it holds this value everywhere."""
        if all(np.all(part[name] == value) for part in self._parts):
            return None
        return self.ordered(name)


def _columns(part: Part, gate: int) -> dict[str, Ints | int]:
    """Return the columns of a part, one entry a request."""
    member, prompts, trace = part.member, part.prompts, part.trace
    limit = member.parameters.max_tokens
    limits: Ints | int = _AS_OUTPUT if limit == "output" else limit or NO_LIMIT
    if limit is None and trace is not None and trace.max_tokens is not None:
        limits = trace.max_tokens
    timeout_s = member.parameters.timeout_s
    labels = trace.session if trace is not None else None
    return {
        "arrival_ns": part.start_ns,
        "source": part.source,
        "source_place": part.place,
        "prompt_tokens": prompts.prompt_tokens,
        "max_tokens": limits,
        "class": member.index,
        "priority": member.priority,
        "session": _NO_SESSION if labels is None else labels,
        "delay_ns": 0 if prompts.delay_ns is None else prompts.delay_ns,
        "timeout_ns": PATIENT if timeout_s is None else seconds_to_ns(timeout_s),
        "gate": gate,
        "prefix_tokens": 0 if prompts.prefix_tokens is None else prompts.prefix_tokens,
        "think_ns": 0 if part.users is None else part.users.think_ns,
    }


def _limits(limits: Ints, outputs: Ints) -> Ints:
    return np.where(limits == _AS_OUTPUT, outputs, limits)


def _stop_ns(workload: Workload, clients_react: bool) -> int | None:
    """Return when all sending stops, where it doesn't follow from the arrivals."""
    if workload.duration_s is None or not clients_react:
        return None
    return seconds_to_ns(workload.duration_s)


def _sessions(columns: _Columns, takes_turns: bool) -> Ints | None:
    """Number the sessions; where nobody takes turns they are labels that a trace recorded."""
    if not takes_turns:
        return columns.unless_all("session", _NO_SESSION)
    changes = np.diff(columns.ordered("source")) != 0
    changes |= np.diff(columns.ordered("source_place")) != 0
    return sums_before(changes)


def _groups(workload: Workload, parts: list[Part], requests: int) -> Ints:
    """Number the clients' requests; a trace of a run may hold the samples of each."""
    recorded = [part.trace.group for part in parts if part.trace and part.trace.holds_samples]
    if recorded and recorded[0] is not None:
        return sums_before(np.diff(recorded[0]) != 0)
    return np.repeat(np.arange(requests, dtype=np.int64), workload.samples)


def _notes(parts: list[Part]) -> tuple[str, ...]:
    said = (note for part in parts if part.trace is not None for note in part.trace.notes)
    return tuple(dict.fromkeys(said))


def _retry_delays_ns(parts: list[Part]) -> Ints:
    """Return the waits of all parts' clients, shape (requests, most retries); -1: no more."""
    most = max(part.retry_delays_ns.shape[1] for part in parts)
    waits_ns = [part.retry_delays_ns for part in parts]
    return np.concatenate(
        [np.pad(w, ((0, 0), (0, most - w.shape[1])), constant_values=-1) for w in waits_ns]
    )


def _gates(workload: Workload, parts: list[Part]) -> list[Gate]:
    """Return one gate for the whole workload, or one for each source that is a closed loop."""
    if workload.max_concurrency is not None:
        return [Gate(np.zeros(workload.max_concurrency, dtype=np.int64))]
    closed = {part.source: part.users for part in parts if part.users is not None}
    return [Gate(users.starts_ns, holds_session=True) for users in closed.values()]


def _gate_numbers(parts: list[Part], gates: list[Gate]) -> list[int]:
    """Return the gate of each part, -1 for none."""
    if gates and not gates[0].holds_session:
        return [0] * len(parts)
    closed = list(dict.fromkeys(part.source for part in parts if part.users is not None))
    return [closed.index(part.source) if part.source in closed else -1 for part in parts]


def _segments(parts: list[Part], order: Ints, samples: int) -> Segments | None:
    """Join the segments of all parts; prompts that share nothing get one of their own."""
    if all(part.prompts.segments is None for part in parts):
        return None
    offset, joined = 0, []
    for part in parts:
        segments = part.prompts.segments or _of_unrelated(part.prompts.prompt_tokens)
        joined.append(_shifted(segments, offset))
        offset = max(offset, _end_of_seeds(joined[-1]))
    counts = np.concatenate([np.diff(segments.first) for segments in joined])
    whole = Segments(
        sums_before(counts),
        np.concatenate([segments.seed for segments in joined]),
        np.concatenate([segments.tokens for segments in joined]),
        np.concatenate([segments.answer_seed for segments in joined]),
    ).take(np.repeat(order, samples))
    # Only the first sample's answer goes into the history of a conversation.
    further = np.arange(len(whole.answer_seed)) % samples > 0
    new_seeds = offset + np.cumsum(further) - 1
    return replace(whole, answer_seed=np.where(further, new_seeds, whole.answer_seed))


def _of_unrelated(prompt_tokens: Ints) -> Segments:
    first = np.arange(len(prompt_tokens) + 1, dtype=np.int64)
    return Segments(first, 2 * first[:-1], prompt_tokens, 2 * first[:-1] + 1)


def _shifted(segments: Segments, offset: int) -> Segments:
    return replace(segments, seed=segments.seed + offset, answer_seed=segments.answer_seed + offset)


def _end_of_seeds(segments: Segments) -> int:
    return 1 + int(max(segments.seed.max(initial=-1), segments.answer_seed.max(initial=-1)))
