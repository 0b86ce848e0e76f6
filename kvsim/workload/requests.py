"""The request table: what the clients send, drawn once and shown to every variant alike."""

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import require

NO_LIMIT = 0  # `max_tokens` of a request whose client set none: the context length decides
PATIENT = 0  # `timeout_ns` of a request whose client waits for ever


def sums_before(counts: NDArray[np.integer] | NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the sum of the counts before each place and, last, of all: shape (counts + 1,)."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


@dataclass(frozen=True, slots=True)
class Segments:
    """What prompts consist of: runs of tokens, told by a seed; equal seeds have equal tokens.

    Request i has the segments from `first[i]` up to `first[i + 1]`; `seed` and `tokens` have one
    entry a segment, and `answer_seed` one a request. All arrays are int64.

    A segment holds the first `tokens` of the endless stream that its seed stands for. An answer
    whose seed is that of the last segment of its prompt continues that segment; any other begins
    its own stream. So a conversation is one stream: each prompt is a longer beginning of it. A
    prompt may also repeat another's segments, then (answer seed, answer length). An answer that
    `max_tokens` cut is the beginning of the whole one, which a later prompt holds all the same.
    """

    first: NDArray[np.int64]
    seed: NDArray[np.int64]
    tokens: NDArray[np.int64]
    answer_seed: NDArray[np.int64]

    def of(self, request: int) -> tuple[list[tuple[int, int]], int]:
        """Return the segments (seed, tokens) of a prompt, and the seed of its answer."""
        mine = slice(int(self.first[request]), int(self.first[request + 1]))
        pairs = zip(self.seed[mine].tolist(), self.tokens[mine].tolist(), strict=True)
        return list(pairs), int(self.answer_seed[request])

    def take(self, requests: NDArray[np.int64]) -> "Segments":
        """Return the segments of these requests, in this order."""
        counts = (self.first[1:] - self.first[:-1])[requests]
        first = sums_before(counts)
        moved = np.repeat(self.first[:-1][requests] - first[:-1], counts)
        places = moved + np.arange(len(moved), dtype=np.int64)
        return Segments(first, self.seed[places], self.tokens[places], self.answer_seed[requests])


@dataclass(frozen=True, slots=True)
class Gate:
    """Limits how many clients are in the system: each needs a permit, in the order they come.

    A permit is there from its entry in `opens_ns` on (int64, shape (permits,), never decreasing).
    It comes back `think_ns` after what held it has left: a request with all its samples, or, with
    `holds_session`, the last request of a session.
    """

    opens_ns: NDArray[np.int64]
    holds_session: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Beams:
    """Which beams go on in beam search.

    The rows of a group are its beams, `width` each. Choices are numbered through all groups: those
    of group g go from `first[g]` up to `first[g + 1]`. The choice at place c (c from 0) is made
    when token c + 2 of the answer is sampled: the beam that ends in this token at place i goes on
    from the one at place `parents[choice, i]` before. `first` is int64, `parents` uint8.
    """

    width: int
    first: NDArray[np.int64]
    parents: NDArray[np.uint8]

    def of(self, group: int) -> bytes:
        """Return the parents in all choices of a group, one byte each, `width` a choice."""
        return self.parents[int(self.first[group]) : int(self.first[group + 1])].tobytes()


@dataclass(frozen=True, slots=True)
class RequestTable:
    """One row a request, all int64 arrays of the same length; session after session.

    Sessions are in order of their first arrival (ties in order of the client), the requests of a
    session in order of its turns. A further turn is sent when the one before has ended, so its
    `arrival_ns` is only that of the session's first request. Columns that are None stand for what
    nobody asked for.

    Attributes:
        arrival_ns: From the start of the run; never decreases.
        prompt_tokens: Prompt length.
        output_tokens: True length of the answer: the engine's model knows it, policies do not.
        max_tokens: The client's limit on the answer, or `NO_LIMIT`.
        group: Numbers the client's requests from 0, without gaps: with n samples a request has n
            rows of the same group.
        horizon_ns: End of the arrivals; 0 if only the end of the run is.
        segments: What prompts consist of; None: only the samples of a group share their prompt.
        traffic_class: Index into `class_names`; None: there is one class.
        priority: Smaller is served first, where the scheduler asks.
        session: Numbers the sessions from 0; None: each group is one.
        delay_ns: How long after the end of the turn before a further turn is sent.
        timeout_ns: The client gives up so long after it sent, or is `PATIENT`.
        retry_delays_ns: Shape (rows, retries): waits of the client before it tries again; a
            negative one ends the list.
        gate: Index into `gates`, -1 for none.
        think_ns: How long the gate's permit is kept after the session or group has ended.
        gates: Who limits the number of clients.
        stop_ns: Nobody sends anything at or after it; None: all is sent.
        class_names: Names of the classes of traffic.
        notes: What was left out of the traces that they come from, in sentences.
        beams: The rows of a group are the candidates of beam search; None: they are samples.
        prefix_tokens: So many leading tokens, the prompt's first segment, are a system prompt that
            the provider knows beforehand; None: there is none. (It follows from the segments and
            the law they were drawn from, so it is no part of the digest.)
    """

    arrival_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    max_tokens: NDArray[np.int64]
    group: NDArray[np.int64]
    horizon_ns: int
    segments: Segments | None = None
    traffic_class: NDArray[np.int64] | None = None
    priority: NDArray[np.int64] | None = None
    session: NDArray[np.int64] | None = None
    delay_ns: NDArray[np.int64] | None = None
    timeout_ns: NDArray[np.int64] | None = None
    retry_delays_ns: NDArray[np.int64] | None = None
    gate: NDArray[np.int64] | None = None
    think_ns: NDArray[np.int64] | None = None
    gates: tuple[Gate, ...] = ()
    stop_ns: int | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    beams: Beams | None = None
    prefix_tokens: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        columns = (getattr(self, field.name) for field in fields(self))
        lengths = {len(column) for column in columns if isinstance(column, np.ndarray)}
        require(len(lengths) == 1, "each request has an entry in every column")
        require(self.delay_ns is None or self.session is not None, "turns belong to sessions")
        require(self.gate is None or bool(self.gates), "a permit is that of a gate")

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def head(self, rows: int) -> "RequestTable":
        """Return the first rows alone."""
        kept: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                kept[field.name] = value[:rows]
            elif isinstance(value, Segments):
                kept[field.name] = value.take(np.arange(rows, dtype=np.int64))
        return replace(self, **kept)

    def digest(self) -> str:
        """Return a SHA-256 over all columns, for the manifest: same digest, same requests."""
        total = hashlib.sha256(str(self.horizon_ns).encode())
        _digest_fields(self, total)
        return total.hexdigest()


_NOT_DIGESTED = {"horizon_ns", "notes", "prefix_tokens"}


def _digest_fields(part: object, total: "hashlib._Hash") -> None:
    for field in fields(part):  # type: ignore[arg-type]  # the table or a part of it
        value = getattr(part, field.name)
        if value is None or field.name in _NOT_DIGESTED:
            continue
        if isinstance(value, np.ndarray):
            total.update(np.ascontiguousarray(value, dtype="<i8").tobytes())
        elif isinstance(value, Segments | Gate | Beams):
            _digest_fields(value, total)
        elif field.name == "gates":
            for gate in value:
                _digest_fields(gate, total)
        elif value != ():
            total.update(f"{field.name}={value}".encode())
