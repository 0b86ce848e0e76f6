"""KV-cache allocators: each file here is one layout, parameters (`Policy`) beside the plain class.

An allocator owns the KV slots of one replica (a slot holds the keys and values of one token, in
all layers). It answers at once: it never waits and never preempts; the scheduler does.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from kvsim.engine.allocators._slot_runs import Filled, SlotRuns
from kvsim.engine.config import EngineConfig
from kvsim.engine.request import RequestView
from kvsim.memory.kv_groups import KVGroup, slots_of
from kvsim.policy import Policy


class Shortage(IntEnum):
    """Why a request can't be admitted now."""

    NONE = 0
    MEMORY = 1  # not enough free slots
    HOLE = 2  # enough free slots in sum, but no hole that is large enough
    WATERMARK = 3  # enough free slots, but for those that the watermark keeps back

    @classmethod
    def of(cls, needed: int, kept_back: int, free: int) -> "Shortage":
        """Tell what is short if so many slots are needed, of those that are free."""
        if needed + kept_back <= free:
            return cls.NONE
        return cls.MEMORY if needed > free else cls.WATERMARK


class Layout(Policy, ABC):
    """Parameters of an allocator, as a scenario gives them."""

    @property
    def is_oracle(self) -> bool:
        """Whether it may know true answer lengths."""
        return False

    def copy_bytes_per_s(self, hbm_bytes_per_s: float) -> float | None:
        """Return how fast it moves sequences, None if it never does."""
        return None

    @abstractmethod
    def build(self, shape: "PoolShape") -> "KVAllocator":
        """Return an empty pool of this shape."""


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The memory that an allocator divides, and what it may know of the engine."""

    num_gpu_blocks: int  # of `block_size_tokens` each
    block_size_tokens: int
    max_model_len_tokens: int
    watermark: float = 0.0
    # True answer length of a request; only for policies that are named an oracle.
    oracle_output_tokens: Callable[[RequestView], int] | None = None
    enable_prefix_caching: bool = False
    kv_groups: tuple[KVGroup, ...] = ()  # empty: full attention in all layers
    max_chunk_tokens: int = 0  # most tokens of one sequence in the steps in flight (R36)
    prefix_cache_retention_interval: int | None = 0  # tokens; None: windows are kept everywhere

    @property
    def whole_context_tokens(self) -> int:
        """Tokens that the memory holds if all layers keep all of them."""
        if not self.kv_groups:
            return self.num_gpu_blocks * self.block_size_tokens
        block_slots, token_slots = slots_of(self.kv_groups)
        return self.num_gpu_blocks * block_slots // token_slots

    @classmethod
    def of(
        cls, config: EngineConfig, oracle: Callable[[RequestView], int] | None = None
    ) -> "PoolShape":
        """Return the pool of an engine."""
        return cls(
            num_gpu_blocks=config.num_gpu_blocks,
            block_size_tokens=config.block_size,
            max_model_len_tokens=config.max_model_len,
            watermark=config.watermark,
            oracle_output_tokens=oracle,
            enable_prefix_caching=config.enable_prefix_caching,
            kv_groups=config.kv_groups,
            max_chunk_tokens=config.max_num_batched_tokens * (1 + config.async_scheduling),
            prefix_cache_retention_interval=config.prefix_cache_retention_interval,
        )


class KVAllocator(Protocol):
    """Divides the slots of one replica among sequences, told apart by an integer `seq`.

    The attributes are running sums, exact after every call:
    taken + rounding + holes + free = capacity.
    """

    capacity_tokens: int  # all slots
    taken_tokens: int  # slots owned by sequences (shared blocks counted once)
    rounding_tokens: int  # lost to rounding a chunk up
    holes_tokens: int  # free, but in holes smaller than the reservation last asked for
    free_tokens: int  # free and usable
    reusable_tokens: int  # those of them that hold a prefix that can be found
    shared_tokens: int  # slots that further sequences use too, counted once for each of them
    shared_empty_tokens: int  # those of them that hold nothing yet: of last blocks, after a fork
    resident_tokens: int  # slots that stay taken when all sequences have gone
    growth_tokens: int  # a sequence needs more room each time it has filled so many; 0: never
    block_tokens: int  # the most that it fills with what it was given then
    most_blocks_at_once: int  # that it is given then
    slots_per_token: int  # one, but where several KV groups keep each token
    released_tokens: int  # slots of sequences that `release` took back, or that weren't needed
    # `release` has work when so many tokens are computed, modulo growth_tokens; empty: never.
    release_offsets: tuple[int, ...]

    def can_ever_fit(self, request: RequestView) -> bool:
        """Tell whether an empty pool could serve the request to its `max_tokens`."""
        ...

    def shortage(
        self, request: RequestView, known_tokens: int, idle: bool, at_once: bool = False
    ) -> Shortage:
        """Tell whether room for all `known_tokens` of a waiting request could be had now.

        Nothing changes. `idle`: nothing is running, so no watermark is kept back. `at_once`: they
        are computed in one step, so a sliding window takes nothing back in between.
        """
        ...

    def lookup(self, request: RequestView) -> int:
        """Return how many of a waiting request's leading tokens need not be computed.

        Never all of them: the last known token is computed to sample from it.
        """
        ...

    def publish(self, request: RequestView, seq: int, tokens: int) -> None:
        """Let others find the first `tokens` of a sequence, which are computed in this step."""
        ...

    def allocate(self, request: RequestView, seq: int, tokens: int) -> bool:
        """Give a new sequence room for its first `tokens`; False, no change, if there is none.

        These include the tokens that `lookup` found, whose slots are shared. As in `shortage`,
        there are no slots beyond `max_model_len` (R34).
        """
        ...

    def append(self, seq: int, tokens: int) -> bool:
        """Give a sequence room for `tokens` more; False, and no change, if there is none.

        A sequence's length is the sum of all tokens asked for, by `allocate` and `append`. A last
        block that is shared is copied first (copy-on-write), or written in place by its last
        owner.
        """
        ...

    def release(self, seq: int, computed_tokens: int) -> None:
        """Take back slots that no token reads any more once so many are computed."""
        ...

    def fork(self, parent: int, child: int) -> None:
        """Let a new sequence share all slots of another one; ValueError if the layout can't."""
        ...

    def free(self, seq: int) -> None:
        """Take back the slots of a sequence; KeyError if it owns none."""
        ...

    def slots_tokens(self, seq: int) -> int:
        """Return how many slots a sequence may fill without asking again."""
        ...

    def unused_tokens(self, seq: int, final_tokens: int) -> int:
        """Return how many of these stay empty if the sequence ends with so many tokens."""
        ...

    def slot(self, seq: int, position: int) -> int:
        """Translate a token position to its physical slot; IndexError beyond the sequence."""
        ...

    def slot_runs(self, filled: Filled) -> SlotRuns:
        """Return what lies where now: each slot is in one run, in physical order.

        Nothing changes. `filled` tells how far each sequence fills its slots; the slots of each
        use are as many as the running sums say.
        """
        ...

    def take_moved_seqs(self) -> list[int]:
        """Return the sequences that were copied since last asked, to make room (compaction).

        How many tokens each of them holds is known to whoever counts the steps.
        """
        ...

    def check(self) -> None:
        """Raise AssertionError if the books don't balance: an owner twice, a block lost."""
        ...
