"""The contiguous pool against a map of all slots, searched slot by slot."""

from itertools import groupby
from types import SimpleNamespace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from kvsim.engine.allocators import PoolShape, Shortage
from kvsim.engine.allocators.contiguous import Contiguous
from kvsim.tables import FREE, HELD, HOLES, INSIDE, ROUNDING, TO_COME

NOBODY = -1


class ContiguousAgainstNaive(RuleBasedStateMachine):
    """The naive pool is a list with the owner of each slot; holes are found by reading it."""

    placement = ""
    seqs = Bundle("seqs")

    @initialize(capacity=st.integers(20, 90), compaction=st.booleans())
    def start(self, capacity, compaction):
        self.compaction = compaction and self.placement != "buddy"
        self.pool = Contiguous(
            reservation="max_tokens", placement=self.placement, compaction=self.compaction
        ).build(PoolShape(capacity, 1, max_model_len_tokens=4096))
        self.owners = [NOBODY] * capacity
        self.reserved = {}
        self.last_asked = 0
        self.next_seq = 0

    @rule(size=st.integers(2, 24))
    def ask(self, size):
        expected = Shortage.NONE
        if self.place(size) is None:
            enough = self.owners.count(NOBODY) >= size
            expected = Shortage.HOLE if enough else Shortage.MEMORY
            if enough and self.compaction:
                expected = Shortage.NONE
        assert self.pool.shortage(self.request(size), 1, idle=False) == expected
        self.last_asked = size

    @rule(target=seqs, size=st.integers(2, 24))
    def allocate(self, size):
        self.next_seq += 1
        seq = self.next_seq
        moved = []
        if self.compaction and self.place(size) is None and self.owners.count(NOBODY) >= size:
            moved = self.slide()
        start = self.place(size)
        assert self.pool.allocate(self.request(size), seq, 1) is (start is not None)
        assert self.pool.take_moved_seqs() == moved
        self.last_asked = size
        if start is None:
            return multiple()
        self.owners[start : start + self.chunk(size)] = [seq] * self.chunk(size)
        self.reserved[seq] = size
        return seq

    @rule(seq=consumes(seqs))
    def free(self, seq):
        self.pool.free(seq)
        self.owners = [NOBODY if owner == seq else owner for owner in self.owners]
        del self.reserved[seq]

    @invariant()
    def each_sequence_owns_its_own_slots(self):
        for seq, size in self.reserved.items():
            slots = [self.pool.slot(seq, position) for position in range(size)]
            first = self.owners.index(seq)
            assert slots == list(range(first, first + size))

    @invariant()
    def sums_are_those_of_the_map(self):
        holes = [size for _, size in self.holes()]
        small = sum(size for size in holes if size < self.last_asked)
        taken = sum(self.reserved.values())
        assert self.pool.taken_tokens == taken
        assert self.pool.holes_tokens == small
        assert self.pool.free_tokens == sum(holes) - small
        assert self.pool.rounding_tokens == len(self.owners) - sum(holes) - taken
        self.pool.check()

    @rule()
    def runs_are_those_of_the_map(self):
        held = {seq: size // 3 for seq, size in self.reserved.items()}
        runs = self.pool.slot_runs(lambda seq: (held[seq], 2 * held[seq]))
        assert np.repeat(runs.owner, runs.length).tolist() == self.owners
        ends = {start + size: size for start, size in self.holes()}
        free = np.isin(runs.use, [HOLES, FREE])
        assert dict(zip((runs.start + runs.length)[free], runs.length[free], strict=True)) == ends
        assert (runs.length[runs.use == HOLES] < self.last_asked).all()
        for seq, size in self.reserved.items():
            uses = np.repeat(runs.use, runs.length)[np.repeat(runs.owner, runs.length) == seq]
            parts = [held[seq], held[seq], size - 2 * held[seq], self.chunk(size) - size]
            assert uses.tolist() == np.repeat([HELD, TO_COME, INSIDE, ROUNDING], parts).tolist()

    @invariant()
    def holes_are_those_of_the_map(self):
        assert list(self.pool._space.holes()) == self.holes()

    def request(self, size):
        return SimpleNamespace(prompt_tokens=1, max_tokens=size - 1)

    def chunk(self, size):
        return size

    def holes(self):
        """Return (first slot, size) of each run of free slots."""
        runs, start = [], 0
        for owner, slots in groupby(self.owners):
            size = len(list(slots))
            if owner == NOBODY:
                runs.append((start, size))
            start += size
        return runs

    def place(self, size):
        """Return the address that the placement must choose, or None."""
        raise NotImplementedError

    def slide(self):
        """Move all sequences to the front; return those that moved."""
        packed = [owner for owner in self.owners if owner != NOBODY]
        moved = [
            owner for owner, _ in groupby(packed) if packed.index(owner) != self.owners.index(owner)
        ]
        self.owners = packed + [NOBODY] * (len(self.owners) - len(packed))
        return moved


class FirstFitAgainstNaive(ContiguousAgainstNaive):
    placement = "first_fit"

    def place(self, size):
        return min((start for start, hole in self.holes() if hole >= size), default=None)


class BestFitAgainstNaive(ContiguousAgainstNaive):
    placement = "best_fit"

    def place(self, size):
        fitting = [(hole, start) for start, hole in self.holes() if hole >= size]
        return min(fitting)[1] if fitting else None


class BuddyAgainstNaive(ContiguousAgainstNaive):
    """Free chunks are the aligned free ranges that lie in no larger one."""

    placement = "buddy"

    def chunk(self, size):
        return next(2**order for order in range(10) if 2**order >= size)

    def holes(self):
        found = []
        for size in (64, 32, 16, 8, 4, 2, 1):
            for start in range(0, len(self.owners) - size + 1, size):
                free = all(owner == NOBODY for owner in self.owners[start : start + size])
                if free and not any(at <= start < at + larger for at, larger in found):
                    found.append((start, size))
        return sorted(found)

    def place(self, size):
        fitting = [(hole, start) for start, hole in self.holes() if hole >= self.chunk(size)]
        return min(fitting)[1] if fitting else None

    @invariant()
    def chunks_are_aligned(self):
        for seq, size in self.reserved.items():
            assert self.pool.slot(seq, 0) % self.chunk(size) == 0


TestFirstFit = FirstFitAgainstNaive.TestCase
TestBestFit = BestFitAgainstNaive.TestCase
TestBuddy = BuddyAgainstNaive.TestCase
for case in (TestFirstFit, TestBestFit, TestBuddy):
    case.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
del case
