"""Schedulers: each file here decides, for one replica, what runs in the next step."""

from collections import deque
from collections.abc import Mapping, Sequence
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
    )

    def __init__(self) -> None:
        self.chunks: Sequence[Request] = ()  # prefilling, `chunk_tokens` each, in order
        self.admitted: Sequence[Request] = ()  # those of them that were waiting before
        self.grown: Sequence[Request] = ()  # decoding, given room for a further block
        self.preempted: Sequence[Request] = ()  # in order of preemption
        self.decode_seqs = 0
        self.decode_kv_tokens = 0  # context of the decoding sequences, new tokens included
        self.head_lacks = 0  # index into `tables.HEAD_LACKS`


class Scheduler(Protocol):
    """Owns the queue and the order of the running requests of one replica."""

    allocator: KVAllocator
    waiting: deque[Request]  # head first

    @property
    def running(self) -> Mapping[int, Request]:
        """Admitted requests, in order of admission."""
        ...

    def enqueue(self, request: Request) -> None:
        """Take in a request that has just arrived."""
        ...

    def schedule(self, step: int) -> Plan:
        """Decide what step number `step` computes, and take the KV slots for it."""
        ...

    def decode(self, request: Request, step: int) -> None:
        """Let a request whose last chunk was computed decode from `step` on."""
        ...

    def finish(self, request: Request, step: int) -> None:
        """Forget a request that has ended before `step`, and free its KV slots."""
        ...
