"""Schedulers: each file here decides, for one replica, what runs in the next step.

A file holds the parameters of a scheduler (a `SchedulerPolicy` with its `kind`) beside the plain
class. Those of older engines are synchronous: one step at a time is in flight.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from kvsim.engine.allocators import KVAllocator
from kvsim.engine.config import EngineConfig
from kvsim.engine.request import Request
from kvsim.engine.swap_space import SwapSpace
from kvsim.policy import Policy

# How every engine before vLLM V1 runs, under V1's names.
EARLIER_ENGINE: Mapping[str, Any] = {
    "async_scheduling": False,
    "enable_prefix_caching": False,
    "scheduling_policy": "fcfs",
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "prefill_schedule_interval": 1,
    "max_num_scheduled_tokens": None,
    "max_num_active_seqs": None,
    "scheduler_reserve_full_isl": True,
}
WHOLE_PROMPTS: Mapping[str, Any] = {"enable_chunked_prefill": False}


@dataclass(frozen=True, slots=True)
class KVBlock:
    """What a block of the KV cache is on one GPU, for a scheduler that copies blocks.

    Attributes:
        size_bytes: Keys and values of its tokens in all layers of the GPU.
        tensors: Stretches of memory that it consists of where each layer has a tensor of keys and
            one of values.
        link_bytes_per_s: Peak rate of the GPU's link to the host, one direction.
    """

    size_bytes: int
    tensors: int
    link_bytes_per_s: float


class SchedulerPolicy(Policy, ABC):
    """Parameters of a scheduler, as a scenario gives them.

    Attributes:
        fixed: Settings of `engine` that this scheduler has no choice about, and their values.
        watermark: Share of the blocks kept free at admission unless the scenario says otherwise.
        profile: Profile of the step's cost unless the scenario names one; empty: the usual one.
        layouts: Kinds of `kv_cache` that it works with.
    """

    fixed: ClassVar[Mapping[str, Any]] = {}
    watermark: ClassVar[float] = 0.0
    profile: ClassVar[str] = ""
    layouts: ClassVar[tuple[str, ...]] = ("paged", "contiguous")

    @property
    def swaps(self) -> bool:
        """Whether it copies blocks to the host's memory and back."""
        return False

    @abstractmethod
    def build(
        self,
        config: EngineConfig,
        allocator: KVAllocator,
        waiting: "WaitingQueue",
        block: KVBlock | None = None,
    ) -> "Scheduler":
        """Return a scheduler of one replica; one that `swaps` needs to know what a `block` is."""


class Plan:
    """What one step computes. A scheduler reuses its plan: read it before the next `schedule`."""

    __slots__ = (
        "admitted",
        "chunks",
        "copy_ns",
        "decode_kv_tokens",
        "decode_seqs",
        "ended_seqs",
        "grown",
        "head_lacks",
        "paused",
        "preempted",
        "stalled",
        "swapped_in",
        "swapped_out",
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
        # Of earlier engines only:
        self.paused: Sequence[Request] = ()  # decoding before and after, but not in this step
        self.swapped_out: Sequence[Request] = ()  # in order of preemption
        self.swapped_in: Sequence[Request] = ()  # they decode in this step
        self.copy_ns = 0  # of swapped blocks, before the model runs
        self.ended_seqs = 0  # of the decoding ones: computed for nobody, no KV written


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
    swap_space: SwapSpace | None  # None: it recomputes what it preempts

    @property
    def running(self) -> Mapping[int, Request]:
        """Admitted requests, in order of admission."""
        ...

    @property
    def swapped(self) -> Collection[Request]:
        """Requests that neither wait nor run: their KV cache is on the host."""
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

    def leaving(self, ended: Sequence[Request], step: int) -> Sequence[Request]:
        """Return who leaves before `step`, now that the answers of `ended` are complete."""
        ...

    def finish(self, request: Request, step: int) -> None:
        """Forget a request that has ended before `step`, and free its KV slots."""
        ...
