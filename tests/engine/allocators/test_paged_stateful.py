"""The paged pool against a naive one that also holds what was written where."""

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
from kvsim.engine.allocators._slot_runs import NOBODY
from kvsim.engine.allocators.paged import PagedPool
from kvsim.tables import FREE, HELD, INSIDE, TO_COME

ANY = SimpleNamespace(prompt_tokens=1, max_tokens=1)


class PagedAgainstNaive(RuleBasedStateMachine):
    """Tables are lists, the free queue is a list, a reference count is a count over all tables.

    Each token written is a fresh number: a block that two sequences write would be noticed.
    """

    seqs = Bundle("seqs")
    residents = Bundle("residents")
    swapped = Bundle("swapped")

    @initialize(blocks=st.integers(1, 24), block_size=st.integers(1, 5), null_block=st.booleans())
    def start(self, blocks, block_size, null_block):
        self.pool = PagedPool(PoolShape(blocks, block_size, 4096), null_block)
        self.block_size = block_size
        self.queue = list(range(int(null_block), blocks))
        self.blocks = list(self.queue)
        self.tables = {}
        self.texts = {}
        self.memory = {}
        self.next_seq = self.next_token = 0
        self.kept = []

    @rule(target=seqs, tokens=st.integers(1, 40))
    def allocate(self, tokens):
        needed = -(-tokens // self.block_size)
        seq = self._new_seq()
        room = needed <= len(self.queue)
        assert (self.pool.shortage(ANY, tokens, idle=True) == Shortage.NONE) is room
        assert self.pool.allocate(ANY, seq, tokens) is room
        if not room:
            return multiple()
        self.tables[seq] = [self.queue.pop(0) for _ in range(needed)]
        self.texts[seq] = []
        self._write(seq, tokens)
        return seq

    @rule(seq=seqs, tokens=st.integers(1, 12))
    def append(self, seq, tokens):
        if seq not in self.tables:  # swapped out
            return
        table = self.tables[seq]
        length = len(self.texts[seq])
        copies = length % self.block_size > 0 and self._owners(table[-1]) > 1
        missing = -(-(length + tokens) // self.block_size) - len(table)
        room = missing + copies <= len(self.queue)
        assert self.pool.append(seq, tokens) is room
        if not room:
            return
        if copies:
            old, new = table.pop(), self.queue.pop(0)
            table.append(new)
            for offset in range(self.block_size):
                text = self.memory.get(old * self.block_size + offset)
                self.memory[new * self.block_size + offset] = text
        table += [self.queue.pop(0) for _ in range(missing)]
        self._write(seq, tokens)

    @rule(target=seqs, parent=seqs)
    def fork(self, parent):
        return self.fork_of(parent) if parent in self.tables else multiple()

    def fork_of(self, parent):
        child = self._new_seq()
        self.pool.fork(parent, child)
        self.tables[child] = list(self.tables[parent])
        self.texts[child] = list(self.texts[parent])
        return child

    @rule(target=residents, seq=consumes(seqs))
    def keep_resident(self, seq):
        """From here on nobody writes to it or frees it; others fork from it."""
        if seq not in self.tables:
            return multiple()
        self.pool.keep_resident(seq)
        self.kept.append(seq)
        return seq

    @rule(target=seqs, parent=residents)
    def fork_a_resident(self, parent):
        return self.fork_of(parent)

    @rule(target=swapped, chosen=st.sets(st.integers(0, 30), min_size=1))
    def swap_out(self, chosen):
        """Any sequences go together; the naive pool keeps texts, and blocks by the old numbers."""
        mine = [seq for seq in self.tables if seq in chosen and seq not in self.kept]
        kept = {block for seq in self.kept for block in self.tables[seq]}
        old = {seq: self.tables[seq] for seq in mine}
        copies = sorted({block for table in old.values() for block in table} - kept)
        assert self.pool.distinct_blocks(mine) == len(copies)
        memory = {
            block: [
                self.memory.get(block * self.block_size + offset)
                for offset in range(self.block_size)
            ]
            for block in copies
        }
        texts = {seq: self.texts.pop(seq) for seq in mine}
        swapped = self.pool.swap_out(mine)
        assert swapped.blocks == len(copies)
        for seq in mine:
            table = self.tables.pop(seq)
            self.queue[:0] = [block for block in reversed(table) if not self._owners(block)]
        return swapped, old, texts, memory

    @rule(gone=consumes(swapped))
    def swap_in(self, gone):
        swapped, old, texts, memory = gone
        room = swapped.blocks <= len(self.queue)
        assert self.pool.swap_in(swapped) is room
        if not room:
            return
        moved = {}
        for seq, table in old.items():
            for block in table:
                if block in memory and block not in moved:
                    moved[block] = self.queue.pop(0)
                    for offset, text in enumerate(memory[block]):
                        self.memory[moved[block] * self.block_size + offset] = text
            self.tables[seq] = [moved.get(block, block) for block in table]
            self.texts[seq] = texts[seq]

    @rule(seq=consumes(seqs))
    def free(self, seq):
        if seq not in self.tables:
            return
        self.pool.free(seq)
        table = self.tables.pop(seq)
        del self.texts[seq]
        # Tail first, to the front of the queue, in that order (R28).
        self.queue[:0] = [block for block in reversed(table) if not self._owners(block)]

    @invariant()
    def tables_and_queue_agree(self):
        for seq, table in self.tables.items():
            assert list(self.pool.block_table(seq)) == table
            assert self.pool.slots_tokens(seq) == len(table) * self.block_size
            for block in table:
                assert self.pool.owners(block) == self._owners(block)
        assert list(self.pool.free_queue()) == self.queue

    @invariant()
    def no_block_is_lost_or_owned_twice(self):
        owned = {block for table in self.tables.values() for block in table}
        assert sorted([*owned, *self.queue]) == self.blocks
        assert self.pool.taken_tokens == len(owned) * self.block_size
        assert self.pool.free_tokens == len(self.queue) * self.block_size
        assert self.pool.capacity_tokens == len(self.blocks) * self.block_size
        assert self.pool.rounding_tokens == self.pool.holes_tokens == 0
        self.pool.check()

    @invariant()
    def shared_is_what_sequences_have_beyond_what_is_taken(self):
        """Slots: of all sequences but the residents, less what is taken. Empty ones likewise."""
        using = [seq for seq in self.tables if seq not in self.kept]
        slots = sum(len(self.tables[seq]) for seq in using) * self.block_size
        assert self.pool.shared_tokens == slots - self.pool.taken_tokens
        filled = {
            (self.tables[seq][position // self.block_size], position % self.block_size)
            for seq, text in self.texts.items()
            for position in range(len(text))
        }
        empty = slots - sum(len(self.texts[seq]) for seq in using)
        assert self.pool.shared_empty_tokens == empty - (self.pool.taken_tokens - len(filled))
        kept = {block for seq in self.kept for block in self.tables[seq]}
        assert self.pool.resident_tokens >= len(kept) * self.block_size

    @invariant()
    def each_sequence_reads_what_it_wrote(self):
        for seq, text in self.texts.items():
            slots = [self.pool.slot(seq, position) for position in range(len(text))]
            assert [self.memory[slot] for slot in slots] == text

    @rule()
    def a_block_is_filled_as_by_the_one_that_fills_it_most(self):
        texts, size = self.texts, self.block_size
        runs = self.pool.slot_runs(lambda seq: (len(texts.get(seq, ())), len(texts[seq]) + 1))
        uses = np.repeat(runs.use, runs.length).reshape(-1, size)
        owners = np.repeat(runs.owner, runs.length).reshape(-1, size)
        assert len(uses) == len(self.blocks)
        for place, block in enumerate(self.blocks):
            mine = {
                seq: len(texts[seq]) - size * index
                for seq, table in self.tables.items()
                for index, each in enumerate(table)
                if each == block
            }
            if not mine:
                assert set(uses[place]) == {FREE}
                assert set(owners[place]) == {NOBODY}
                continue
            most = max(min(size, filled) for filled in mine.values())
            assert (uses[place] == HELD).sum() == most
            assert set(uses[place][most:]) <= {TO_COME, INSIDE}
            assert (uses[place] == TO_COME).sum() <= 1
            fullest = [seq for seq, filled in mine.items() if min(size, filled) == most]
            assert set(owners[place]) == {min(fullest)}

    def _new_seq(self):
        self.next_seq += 1
        return self.next_seq

    def _owners(self, block):
        return sum(table.count(block) for table in self.tables.values())

    def _write(self, seq, tokens):
        for _ in range(tokens):
            position = len(self.texts[seq])
            block = self.tables[seq][position // self.block_size]
            self.memory[block * self.block_size + position % self.block_size] = self.next_token
            self.texts[seq].append(self.next_token)
            self.next_token += 1


TestPagedAgainstNaive = PagedAgainstNaive.TestCase
TestPagedAgainstNaive.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
