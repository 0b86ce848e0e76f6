"""Runs a cluster in memory, and lets tests look at every plan it made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kvsim.cost import StepCost
from kvsim.cost.front_end import FrontEnd
from kvsim.engine.allocators import PoolShape
from kvsim.engine.allocators._hybrid import HybridPool
from kvsim.engine.allocators._prefix_cache import PrefixCachingPool
from kvsim.engine.allocators.paged import Paged, PagedPool
from kvsim.engine.cluster import Cluster
from kvsim.engine.config import EngineConfig
from kvsim.engine.fleet import Fleet, RunTotals
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.engine.schedulers import KVBlock, Plan, SchedulerPolicy, WaitingQueue
from kvsim.engine.schedulers.vllm import Vllm, VllmScheduler
from kvsim.policy import Policy
from kvsim.tables import TABLES
from kvsim.workload.requests import RequestTable, Segments

BLOCK = KVBlock(size_bytes=1024, tensors=4, link_bytes_per_s=32e9)


class Note(NamedTuple):
    """What a scheduling call did: [(request, tokens, computed before)], preempted requests;
    before it: time, free queue, distinct prefixes that can be found; after it: block tables."""

    time_ns: int
    scheduled: list[tuple[int, int, int]]
    preempted: list[int]
    free_queue_before: tuple[int, ...]
    cached_keys_before: int
    block_tables: dict[int, tuple[tuple[int, ...], ...]]  # by group


@dataclass
class Trace:
    """Tables by name and column, and a note for each step."""

    tables: dict[str, dict[str, np.ndarray]]
    totals: RunTotals
    plans: list[Note] = field(default_factory=list)


class SpyScheduler(VllmScheduler):
    """The production scheduler, with a note of each plan: [(request, tokens, computed before)]."""

    def __init__(
        self,
        config: EngineConfig,
        allocator: object,
        waiting: WaitingQueue,
        notes: list,
        now: Callable,
    ) -> None:
        super().__init__(config, allocator, waiting)
        self._notes = notes
        self._now = now

    def quiet_steps(self, step: int, most: int) -> int:
        """Return 0: each step is to be seen."""
        return 0

    def schedule(self, step: int, in_flight: int = 0) -> Plan:
        pool = self.allocator
        paged = isinstance(pool, PagedPool | HybridPool)
        before = pool.free_queue() if paged else ()
        keys = pool.cached_keys() if isinstance(pool, PrefixCachingPool | HybridPool) else 0
        plan = super().schedule(step, in_flight)
        scheduled = [
            (request.number, 1, step + request.offset)
            if request.decoding
            else (request.number, request.chunk_tokens, request.computed_tokens)
            for request in self.running.values()
            if request.decoding or request.chunk_tokens
        ]
        preempted = [request.number for request in plan.preempted]
        tables = {}
        if paged:
            tables = {
                request.number: pool.block_tables(request.number)
                for request in self.running.values()
            }
        self._notes.append(Note(self._now(), scheduled, preempted, before, keys, tables))
        return plan


def request_table(rows: list[tuple[int, int, int, int]], horizon_ns: int = 0) -> RequestTable:
    """Build a table from rows (arrival ns, prompt, output, max_tokens or 0)."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    arrival, prompt, output, limit = (np.ascontiguousarray(column) for column in columns)
    return RequestTable(arrival, prompt, output, limit, np.arange(len(rows)), horizon_ns)


def segments_of(prompts: list[list[tuple[int, int]]], answer_seeds: list[int]) -> Segments:
    """Build the segments of prompts given as lists of (seed, tokens)."""
    flat = [pair for prompt in prompts for pair in prompt]
    ends = np.cumsum([0, *(len(prompt) for prompt in prompts)])
    columns = np.array(flat, dtype=np.int64).reshape(-1, 2)
    return Segments(ends, columns[:, 0], columns[:, 1], np.array(answer_seeds, dtype=np.int64))


def run(
    requests: RequestTable,
    config: EngineConfig,
    cost: StepCost,
    layout: Policy | None = None,
    replicas: int = 1,
    routing: Policy | None = None,
    until_ns: int | None = None,
    spy: bool = False,
    front_end: FrontEnd | None = None,
    scheduler: SchedulerPolicy | None = None,
    plans_ahead: bool = True,
) -> Trace:
    """Run a cluster and collect everything it records."""
    layout = layout or Paged()
    chunks: dict[str, list[np.ndarray]] = {name: [] for name in TABLES}
    notes: list = []

    def build_scheduler(config, allocator, waiting):
        if spy:
            return SpyScheduler(config, allocator, waiting, notes, lambda: cluster._clock.now)
        return (scheduler or Vllm()).build(config, allocator, waiting, BLOCK)

    fleet = Fleet(
        config,
        replicas,
        (routing or RoundRobin()).build(np.random.default_rng(0)),
        lambda oracle: layout.build(PoolShape.of(config, oracle)),
        cost,
        build_scheduler=build_scheduler,
        front_end=front_end,
        plans_ahead=plans_ahead,
    )
    cluster = Cluster(requests, fleet, lambda name, rows: chunks[name].append(rows))
    totals = cluster.run(until_ns)
    tables = {}
    for name, columns in TABLES.items():
        rows = np.concatenate([np.zeros((0, len(columns)), dtype=np.int64), *chunks[name]])
        tables[name] = {column.name: rows[:, index] for index, column in enumerate(columns)}
    return Trace(tables, totals, notes)


class LinearCost:
    """A step of `fixed + tokens + context` costs in integer nanoseconds: exact to compare."""

    def __init__(self, fixed_ns: int = 1, token_ns: int = 0, context_ns: int = 0) -> None:
        self.fixed_ns, self.token_ns, self.context_ns = fixed_ns, token_ns, context_ns

    def chunks_ns(self, chunks: Sequence[tuple[int, int]]) -> float:
        return float(sum(new + prefix for new, prefix in chunks) * self.context_ns)

    def step_ns(
        self, tokens: int, seqs: int, decode_seqs: int, decode_kv_tokens: int, chunks_ns: float
    ) -> int:
        context_ns = decode_kv_tokens * self.context_ns + int(chunks_ns)
        return self.fixed_ns + tokens * self.token_ns + context_ns

    def decode_steps_ns(self, seqs: int, decode_kv_tokens: int, steps: int) -> list[int]:
        contexts = range(decode_kv_tokens, decode_kv_tokens + steps * seqs, seqs)
        return [self.step_ns(seqs, seqs, seqs, tokens, 0.0) for tokens in contexts]
