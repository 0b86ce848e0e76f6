"""One replica of the compiled loop: its arrays, and its rows until they are written."""

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.cluster import Fleet
from kvsim.engine.compiled.layout import (
    ADMITTED_NS,
    ANSWER,
    CAPACITY_TOKENS,
    COMPUTED,
    COUNTERS,
    DISCARDED_TOKENS,
    DONE,
    EVENTS,
    FIRST_NS,
    FREE_BLOCKS,
    FULL,
    HELD_TOKENS,
    INSIDE_TOKENS,
    LAST_NS,
    LEFT,
    LIFE,
    LOST_TOKENS,
    NOW_NS,
    PAUSED,
    PREEMPTIONS,
    QUEUED_NS,
    RECOMPUTED,
    ROWS,
    STEP,
    STUCK,
    Cost,
    Ints,
    Replica,
)
from kvsim.engine.compiled.machine_code import Advance
from kvsim.engine.config import EngineConfig
from kvsim.engine.laws import Population
from kvsim.errors import require
from kvsim.tables import EVENTS as EVENT_COLUMNS
from kvsim.tables import HEAD_LACKS, REQUESTS, STEPS

LONGEST_STRETCH = 4096
NEVER = 2**62
FIRST_ROWS = 4096
_STEP_START = [column.name for column in STEPS].index("start_ns")
# Columns of the requests table → where the loop keeps them.
_FILLED_IN = {
    [column.name for column in REQUESTS].index(name): place
    for name, place in (
        ("admitted_ns", ADMITTED_NS),
        ("first_token_ns", FIRST_NS),
        ("preemptions", PREEMPTIONS),
        ("recomputed_tokens", RECOMPUTED),
    )
}


class CompiledReplica:
    """A replica that goes on until its rows should be written."""

    def __init__(
        self,
        index: int,
        fleet: Fleet,
        pool: PagedPool,
        loop: tuple[Advance, Cost],
        rows: Ints,
        given: Ints,
    ) -> None:
        """Prepare.

        Args:
            index: Its number.
            fleet: All replicas are alike.
            pool: An empty pool, for its size.
            loop: Decides, and what its steps cost.
            rows: The requests that come to it, by their rows in the request table.
            given: What is known of these, shape (GIVEN, requests).
        """
        self.index = index
        self.pauses = False  # until its rows are written; else it is done
        self._advance, self._cost = loop
        self._rows = rows
        self._written_steps = 0
        config, most = fleet.config, fleet.config.running_seqs
        self._blocks = pool.capacity_tokens // config.block_size
        self._is = Replica(
            limits=_limits(index, config, pool),
            at=_zeros(COUNTERS),
            given=given,
            life=_zeros(LIFE, len(rows)),
            queue=_zeros(len(rows)),
            running=_zeros(most),
            end_ns=_zeros(2),
            counts=_zeros(2, 3),
            members=_zeros(2, 3, most),
            due=_zeros(config.block_size),
            filled=_zeros(LONGEST_STRETCH),
            chunks=_zeros(most, 2),
            steps=_zeros(FIRST_ROWS, len(STEPS)),
            left=_zeros(4 * most, 2),
            events=_zeros(8 * most, len(EVENT_COLUMNS)),
        )
        self._is.at[FREE_BLOCKS] = self._blocks
        self._is.life[[ADMITTED_NS, FIRST_NS, LAST_NS]] = -1

    @property
    def kv_capacity_tokens(self) -> int:
        """KV slots."""
        return int(self._is.limits[CAPACITY_TOKENS])

    @property
    def now_ns(self) -> int:
        """Simulated time of this replica."""
        return int(self._is.at[NOW_NS])

    @property
    def steps(self) -> int:
        """Steps that were scheduled."""
        return int(self._is.at[STEP])

    def stays_plain(self) -> bool:
        """Run to the end for nothing but to see whether anybody is preempted; rows are lost."""
        outcome = FULL
        while outcome == FULL:
            self._is.at[[ROWS, LEFT, EVENTS]] = 0
            outcome = self._advance(self._is, self._cost, NEVER)
        return outcome == DONE

    def go_on(self, chunk_steps: int) -> None:
        """Run until a request leaves with so many steps not yet written, or all have left."""
        if self.pauses and self.steps - self._written_steps >= chunk_steps:
            return
        while True:
            outcome = self._advance(self._is, self._cost, self._written_steps + chunk_steps)
            if outcome != FULL:
                break
            self._make_room()
        require(outcome != STUCK, "a replica with work makes progress")
        self.pauses = outcome == PAUSED
        assert self.pauses or outcome == DONE

    def left(self) -> Ints:
        """Return who has left and isn't written: row of the request table, time, replica."""
        left = self._is.left[: self._is.at[LEFT]]
        here = np.full(len(left), self.index)
        return np.stack([self._rows[left[:, 0]], left[:, 1], here], axis=1)

    def take_steps(self, until_ns: int | None) -> Ints:
        """Return the rows of steps that start before an instant, or all; they are written now."""
        at, rows = self._is.at, self._is.steps
        count = int(at[ROWS])
        if until_ns is not None:
            count = int(np.searchsorted(rows[:count, _STEP_START], until_ns))
        self._written_steps += count
        return _take(rows, at, ROWS, count)

    def take_events(self, until_ns: int | None, index: int) -> Ints:
        """Return what happened up to an instant of replica `index`."""
        at, events = self._is.at, self._is.events
        count = self._until(events[: at[EVENTS], 1], until_ns, index)
        taken = _take(events, at, EVENTS, count)
        taken[:, 3] = self._rows[taken[:, 3]]
        return taken

    def forget_left(self, count: int) -> None:
        """Note that the first of those who have left are written."""
        _take(self._is.left, self._is.at, LEFT, count)

    def fill_in(self, table: Ints, mine: NDArray[np.bool_], places: Ints) -> None:
        """Fill in what only the replica knows of requests, in rows of the requests table."""
        for column, place in _FILLED_IN.items():
            table[mine, column] = self._is.life[place, places]

    def count_in(self, population: Population) -> None:
        """Add its requests to a population, and check that nothing of them is left behind."""
        at, life, given = self._is.at, self._is.life, self._is.given
        population.generated_tokens += int(given[ANSWER].sum())
        population.answers += given.shape[1]
        population.discarded_tokens += int(at[DISCARDED_TOKENS])
        population.computed_tokens += int(life[COMPUTED].sum() + at[LOST_TOKENS])
        require(at[FREE_BLOCKS] == self._blocks, "all KV slots come back")
        nothing_held = at[HELD_TOKENS] + at[INSIDE_TOKENS] == 0
        require(nothing_held, "no KV slot is held for a request that has left")
        admitted_ns = life[ADMITTED_NS]
        in_order = (given[QUEUED_NS] <= admitted_ns) & (admitted_ns < life[FIRST_NS])
        require(bool(in_order.all()), "a request waits, is admitted and gets its first token")

    def _until(self, times_ns: Ints, until_ns: int | None, index: int) -> int:
        """Return how many of these times come before an instant of replica `index`, or at it."""
        if until_ns is None:
            return len(times_ns)
        at_it = self.index <= index
        return int(np.searchsorted(times_ns, until_ns, "right" if at_it else "left"))

    def _make_room(self) -> None:
        """Double the buffers that are about to be full."""
        at = self._is.at
        counts = {"steps": at[ROWS], "left": at[LEFT], "events": at[EVENTS]}
        buffers = {name: getattr(self._is, name) for name in counts}
        self._is = self._is._replace(
            **{
                name: np.concatenate([rows, np.zeros_like(rows)])
                for name, rows in buffers.items()
                if 2 * counts[name] > len(rows)
            }
        )


def _take(rows: Ints, at: Ints, counter: int, count: int) -> Ints:
    """Take the first rows out of a buffer."""
    taken = rows[:count].copy()
    left = int(at[counter]) - count
    rows[:left] = rows[count : count + left].copy()
    at[counter] = left
    return taken


def _zeros(*shape: int) -> Ints:
    return np.zeros(shape, dtype=np.int64)


def _limits(index: int, config: EngineConfig, pool: PagedPool) -> Ints:
    """Return the settings in the order of their places in `Replica.limits`."""
    slot, budget = "sequence_slot", "token_budget"
    if config.running_seqs < config.max_num_seqs:
        slot = "active_sequence_slot"
    if config.step_tokens < config.max_num_batched_tokens:
        budget = "scheduled_token_budget"
    values = (
        index,
        pool.capacity_tokens,
        config.block_size,
        config.max_model_len,
        config.step_tokens,
        config.max_num_batched_tokens,
        config.running_seqs,
        int(config.watermark * config.num_gpu_blocks),  # R11
        config.long_prefill_token_threshold,
        config.enable_chunked_prefill,
        2 if config.async_scheduling else 1,
        HEAD_LACKS.index(slot),
        HEAD_LACKS.index(budget),
        config.enable_prefix_caching,
    )
    return np.array(values, dtype=np.int64)
