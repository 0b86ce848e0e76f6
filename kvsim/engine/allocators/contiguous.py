"""Contiguous KV cache: each sequence reserves, once, one run of slots for all it may ever hold.

The baselines of the PagedAttention paper (Kwon et al., SOSP 2023, section 6.1): its Orca (Max)
reserves the longest sequence, Orca (Pow2) rounds the true output up to a power of two, and Orca
(Oracle) knows the true output; all three use buddy placement there.
"""

from collections.abc import Callable, Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from kvsim.engine.allocators import KVAllocator, Layout, PoolShape, Shortage
from kvsim.engine.allocators._address_space import AddressSpace, Holes, best_fit, first_fit
from kvsim.engine.allocators._books import require_sums
from kvsim.engine.allocators._buddy import BuddyForest
from kvsim.engine.allocators._slot_runs import NOBODY, Filled, SlotRuns, runs_of
from kvsim.engine.request import RequestView
from kvsim.errors import require
from kvsim.tables import FREE, HELD, HOLES, INSIDE, ROUNDING, TO_COME


class Contiguous(Layout):
    """How much is reserved, where it is placed, and whether fragmented memory is compacted.

    No reservation exceeds `max_model_len`. Beside that limit they are:
    `max_model_len`: that limit itself; `max_tokens`: prompt and longest answer allowed;
    `oracle_pow2`: prompt and true answer, the answer rounded up to a power of two;
    `oracle`: prompt and true answer. Compaction copies at `compaction_bytes_per_s`; none stands
    for half of the GPU's HBM bandwidth, since each byte is read and written.
    """

    kind: Literal["contiguous"] = "contiguous"
    reservation: Literal["max_model_len", "max_tokens", "oracle_pow2", "oracle"] = "max_model_len"
    placement: Literal["first_fit", "best_fit", "buddy"] = "first_fit"
    compaction: bool = False
    compaction_bytes_per_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _can_compact(self) -> Self:
        if self.compaction and self.placement == "buddy":
            raise ValueError("compaction needs first_fit or best_fit: buddy chunks can't slide")
        if self.compaction_bytes_per_s is not None and not self.compaction:
            raise ValueError("compaction_bytes_per_s has no effect without compaction: true")
        return self

    @property
    def is_oracle(self) -> bool:
        """Whether the reservation depends on the true answer length."""
        return self.reservation.startswith("oracle")

    def copy_bytes_per_s(self, hbm_bytes_per_s: float) -> float | None:
        """Return the speed of compaction: half of the HBM's unless it is given."""
        if not self.compaction:
            return None
        return self.compaction_bytes_per_s or hbm_bytes_per_s / 2

    def build(self, shape: PoolShape) -> KVAllocator:
        """Return an empty pool of this shape; it keeps no null block and no watermark.

        Raises:
            ValueError: The reservation is an oracle's, but the shape has no oracle.
        """
        capacity = shape.whole_context_tokens
        return ContiguousPool(
            capacity,
            self._reservation_tokens(shape),
            self._address_space(capacity),
            self.compaction,
        )

    def _address_space(self, capacity: int) -> AddressSpace:
        if self.placement == "buddy":
            return BuddyForest(capacity)
        return Holes(capacity, first_fit if self.placement == "first_fit" else best_fit)

    def _reservation_tokens(self, shape: PoolShape) -> Callable[[RequestView], int]:
        limit = shape.max_model_len_tokens
        if self.reservation == "max_model_len":
            return lambda request: limit
        if self.reservation == "max_tokens":
            return lambda request: min(request.prompt_tokens + request.max_tokens, limit)
        output_tokens = shape.oracle_output_tokens
        if output_tokens is None:
            raise ValueError(f"reservation {self.reservation} needs an oracle")
        if self.reservation == "oracle":
            return lambda request: min(request.prompt_tokens + output_tokens(request), limit)
        return lambda request: min(
            request.prompt_tokens + _power_of_two(output_tokens(request)), limit
        )


class _Reservation:
    """The slots of one sequence: where they begin, how many, and how many were asked for."""

    __slots__ = ("asked_tokens", "start", "tokens")

    def __init__(self, start: int, tokens: int, asked_tokens: int) -> None:
        self.start = start
        self.tokens = tokens
        self.asked_tokens = asked_tokens


class ContiguousPool:
    """Reservations in an address space; a sequence never grows beyond its own and never shares."""

    slots_per_token = 1
    released_tokens = block_tokens = most_blocks_at_once = 0
    shared_empty_tokens = resident_tokens = 0
    release_offsets: tuple[int, ...] = ()

    __slots__ = (
        "_compacts",
        "_largest_ever_tokens",
        "_last_reservation_tokens",
        "_moved_seqs",
        "_reservation_tokens",
        "_reservations",
        "_space",
        "capacity_tokens",
        "compactions",
        "free_tokens",
        "growth_tokens",
        "holes_tokens",
        "reusable_tokens",
        "rounding_tokens",
        "shared_tokens",
        "taken_tokens",
    )

    def __init__(
        self,
        capacity: int,
        reservation_tokens: Callable[[RequestView], int],
        space: AddressSpace,
        compacts: bool = False,
    ) -> None:
        """Start with an empty `space` of `capacity` slots; `compacts` only without rounding."""
        self._reservation_tokens = reservation_tokens
        self._space = space
        self._compacts = compacts
        self._reservations: dict[int, _Reservation] = {}
        self._largest_ever_tokens = space.largest_tokens
        self._last_reservation_tokens = 0
        self._moved_seqs: list[int] = []
        self.compactions = 0
        self.capacity_tokens = self.free_tokens = capacity
        self.taken_tokens = self.rounding_tokens = self.holes_tokens = self.growth_tokens = 0
        self.shared_tokens = self.reusable_tokens = 0

    def can_ever_fit(self, request: RequestView) -> bool:
        """Tell whether the largest hole of the empty pool could take the reservation."""
        return self._reservation_tokens(request) <= self._largest_ever_tokens

    def shortage(
        self, request: RequestView, known_tokens: int, idle: bool, at_once: bool = False
    ) -> Shortage:
        """Tell whether a hole can take the whole reservation, however many tokens are known.

        HOLE: the free slots would suffice in sum. No watermark is kept, since nothing grows.
        """
        tokens = self._reservation_tokens(request)
        if tokens != self._last_reservation_tokens:
            self._split_free(tokens)
        if tokens <= self._space.largest_tokens:
            return Shortage.NONE
        if tokens > self._space.free_tokens:
            return Shortage.MEMORY
        return Shortage.NONE if self._compacts else Shortage.HOLE

    def allocate(self, request: RequestView, seq: int, tokens: int) -> bool:
        """Reserve for a new sequence, after compaction if that is what it takes.

        Raises:
            ValueError: The sequence owns slots already.
        """
        if seq in self._reservations:
            raise ValueError(f"sequence {seq} owns slots already")
        reserved = self._reservation_tokens(request)
        space = self._space
        if self._compacts and space.largest_tokens < reserved <= space.free_tokens:
            self._compact()
        start = space.take(reserved) if tokens <= reserved else -1
        if start >= 0:
            self._reservations[seq] = _Reservation(start, reserved, tokens)
            self.taken_tokens += reserved
            self.rounding_tokens += space.chunk_tokens(reserved) - reserved
        self._split_free(reserved)
        return start >= 0

    def append(self, seq: int, tokens: int) -> bool:
        """Count `tokens` more against the reservation; False beyond its end."""
        reservation = self._reservations[seq]
        asked = reservation.asked_tokens + tokens
        if asked > reservation.tokens:
            return False
        reservation.asked_tokens = asked
        return True

    def release(self, seq: int, computed_tokens: int) -> None:
        """Do nothing: a reservation is kept to the end."""

    def fork(self, parent: int, child: int) -> None:
        """Refuse: neighbors can't be shared; a child is allocated and computed by itself.

        Raises:
            ValueError: Always.
        """
        raise ValueError("a contiguous KV cache can't share slots between sequences")

    def free(self, seq: int) -> None:
        """Turn the sequence's chunk into a hole, together with the holes next to it."""
        reservation = self._reservations.pop(seq)
        reserved = reservation.tokens
        self._space.give(reservation.start, reserved)
        self.taken_tokens -= reserved
        self.rounding_tokens -= self._space.chunk_tokens(reserved) - reserved
        self._split_free(self._last_reservation_tokens)

    def slots_tokens(self, seq: int) -> int:
        """Return the size of the reservation, without what rounding added."""
        return self._reservations[seq].tokens

    def unused_tokens(self, seq: int, final_tokens: int) -> int:
        """Return what of the reservation lies beyond the sequence's final length."""
        return max(0, self._reservations[seq].tokens - final_tokens)

    def slot(self, seq: int, position: int) -> int:
        """Translate a token position: the reservation's first slot plus the position."""
        reservation = self._reservations[seq]
        if not 0 <= position < reservation.tokens:
            raise IndexError(f"position {position} of {reservation.tokens}")
        return reservation.start + position

    def slot_runs(self, filled: Filled) -> SlotRuns:
        """Return reservations and holes; buddy chunks that can't merge are holes apart."""
        places: list[tuple[int, int]] = [(start, NOBODY) for start, _ in self._space.holes()]
        places += [(own.start, seq) for seq, own in self._reservations.items()]
        size_of = dict(self._space.holes())
        pieces: list[tuple[int, int, int]] = []
        for start, seq in sorted(places):
            if seq == NOBODY:
                size = size_of[start]
                too_small = size < self._last_reservation_tokens
                pieces.append((size, HOLES if too_small else FREE, NOBODY))
            else:
                pieces += self._pieces(seq, *filled(seq))
        return runs_of(pieces)

    def _pieces(
        self, seq: int, computed_tokens: int, final_tokens: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of a reservation: length, use, owner."""
        tokens = self._reservations[seq].tokens
        held = min(computed_tokens, tokens)
        used = max(held, min(final_tokens, tokens))
        rounding = self._space.chunk_tokens(tokens) - tokens
        lengths = {HELD: held, TO_COME: used - held, INSIDE: tokens - used, ROUNDING: rounding}
        return ((length, use, seq) for use, length in lengths.items())

    def lookup(self, request: RequestView) -> int:
        """Return 0: a reservation is its sequence's alone."""
        return 0

    def publish(self, request: RequestView, seq: int, tokens: int) -> None:
        """Do nothing: a reservation is its sequence's alone."""

    def take_moved_seqs(self) -> list[int]:
        """Return which sequences compaction has copied since last asked, in order of copying."""
        moved = self._moved_seqs
        self._moved_seqs = []
        return moved

    def check(self) -> None:
        """Raise AssertionError if chunks and holes don't tile the space, or a sum is wrong."""
        chunk_tokens = self._space.chunk_tokens
        reservations = self._reservations.values()
        chunks = [(own.start, chunk_tokens(own.tokens)) for own in reservations]
        holes = self._space.holes()
        end = 0
        for start, size in sorted([*chunks, *holes]):
            require(start == end, f"slots {end} to {start} are lost or owned twice")
            end = start + size
        require(end == self.capacity_tokens, "the space doesn't end where it should")
        self._space.check()
        largest = max((size for _, size in holes), default=0)
        require(self._space.largest_tokens == largest, "the largest hole is another")
        taken = sum(own.tokens for own in reservations)
        rounding = sum(size for _, size in chunks) - taken
        require_sums(self, taken, rounding, sum(size for _, size in holes))

    def _split_free(self, reservation_tokens: int) -> None:
        """Sort the holes into usable and too small for this reservation."""
        self._last_reservation_tokens = reservation_tokens
        self.holes_tokens = self._space.too_small_tokens(reservation_tokens)
        self.free_tokens = self._space.free_tokens - self.holes_tokens

    def _compact(self) -> None:
        """Slide all sequences to the front, in the order of their addresses."""
        by_address = sorted(self._reservations.items(), key=lambda item: item[1].start)
        for _, own in by_address:
            self._space.give(own.start, own.tokens)
        for seq, own in by_address:
            start = self._space.take(own.tokens)
            if start != own.start:
                own.start = start
                self._moved_seqs.append(seq)
        self.compactions += 1


def _power_of_two(tokens: int) -> int:
    """Return the smallest power of two that is not below `tokens`."""
    return 1 << (tokens - 1).bit_length()
