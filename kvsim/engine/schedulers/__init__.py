"""Schedulers: each file here decides, for one replica, what runs in the next step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvsim.engine.allocators import KVAllocator
from kvsim.engine.request import Request


class Plan:
    """What one step computes. A scheduler reuses its plan: read it before the next `schedule`."""

    __slots__ = (
        "admitted",
        "chunks",
        "decode_kv_tokens",
        "decode_seqs",
        "grown",
        "head_lacks",
        "preempted",
        "stalled",
    )

    def __init__(self) -> None:
        self.chunks: Sequence[Request] = ()  # prefilling, `chunk_tokens` each, in order
        self.admitted: Sequence[Request] = ()  # those of them that were waiting before
        self.grown: Sequence[Request] = ()  # decoding, given room for a further block
        self.preempted: Sequence[Request] = ()  # in order of preemption
        self.stalled: Sequence[Request] = ()  # decoding before; the budget didn't reach them
        self.decode_seqs = 0
        self.decode_kv_tokens = 0  # context of the decoding sequences, new tokens included
        self.head_lacks = 0  # index into `tables.HEAD_LACKS`


@dataclass(slots=True)
class Growth:
    """What steps that were skipped have done to the KV pool.

    Attributes:
        steps: How many there were.
        growth: How many sequences took a block in the first step, the second, ...; after as many
            steps it begins again. None if the pool has been changed by the first step only.
        grown: Requests that got room in the first step then.
    """

    steps: int
    growth: list[int] | None
    grown: Sequence[Request] = ()


class WaitingQueue(Protocol):
    """Waiting requests of one replica, or of several that share them; one file has both kinds."""

    def __len__(self) -> int:
        """Return how many wait."""
        ...

    @property
    def head(self) -> Request:
        """The request to be admitted next."""
        ...

    def append(self, request: Request, /) -> None:
        """Take in a new arrival."""
        ...

    def requeue(self, request: Request) -> None:
        """Take back a preempted request."""
        ...

    def popleft(self) -> Request:
        """Remove the head and return it."""
        ...

    def remove(self, request: Request, /) -> None:
        """Remove a request; ValueError if it doesn't wait here."""
        ...


class Scheduler(Protocol):
    """Owns the queue and the order of the running requests of one replica."""

    allocator: KVAllocator
    waiting: WaitingQueue
    most_in_flight: int  # steps that are scheduled and have not ended

    @property
    def running(self) -> Mapping[int, Request]:
        """Admitted requests, in order of admission."""
        ...

    def enqueue(self, request: Request) -> None:
        """Take in a request that has just arrived."""
        ...

    def withdraw(self, request: Request) -> None:
        """Forget a waiting request."""
        ...

    def schedule(self, step: int, in_flight: int = 0) -> Plan:
        """Decide what step number `step` computes, and take the KV slots for it.

        Args:
            step: Steps that were scheduled before it.
            in_flight: How many of these have not ended.
        """
        ...

    @property
    def decode_seqs(self) -> int:
        """How many sequences decode."""
        ...

    @property
    def decode_context_tokens(self) -> int:
        """Sum of their contexts."""
        ...

    @property
    def head_lacks(self) -> int:
        """What the head of the queue lacked when last asked; index into `tables.HEAD_LACKS`."""
        ...

    def quiet_steps(self, step: int, most: int) -> int:
        """Return how many steps from `step` on, `most` at most, just go on with what decodes.

        That is if no request comes or goes: `schedule` would admit none, preempt none, and find
        room for all. 0 if that can't be told.
        """
        ...

    def skip(self, step: int, steps: int) -> Growth:
        """Do for quiet steps at once what `schedule` would do in each: so many, or the first."""
        ...

    def decode(self, request: Request, step: int) -> None:
        """Let a request whose last chunk was computed decode from `step` on."""
        ...

    def rest(self, request: Request, step: int) -> None:
        """Schedule nothing more for a request from `step` on: its last token is in flight."""
        ...

    def finish(self, request: Request, step: int) -> None:
        """Forget a request that has ended before `step`, and free its KV slots."""
        ...
