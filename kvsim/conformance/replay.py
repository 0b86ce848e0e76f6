"""Drives the engine that `kvsim run` uses through a recorded run, and notes what it decides."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.conformance.fields import OUTCOME_FIELDS, STEP_FIELDS, SUMMARY_FIELDS, unknown
from kvsim.conformance.observer import Call, Notes, ObservedScheduler, Pool
from kvsim.conformance.recording import Recording, to_ns
from kvsim.conformance.step_time import recorded_step_time
from kvsim.engine.allocators import KVAllocator, PoolShape
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.cluster import Cluster
from kvsim.engine.config import EngineConfig
from kvsim.engine.fleet import FINISHED, BuildScheduler, Fleet
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.engine.schedulers import WaitingQueue
from kvsim.engine.schedulers.vllm import VllmScheduler
from kvsim.errors import require
from kvsim.tables import TABLES
from kvsim.units import NS_PER_MS
from kvsim.workload.requests import RequestTable, Segments

STALLED = "stalled: nothing can be scheduled and no arrivals are left"

Values = dict[str, Any]  # by name of the field, as a recording holds them


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the engine did, in the terms of a recording; outcomes by number of the request."""

    steps: list[Values]
    outcome: dict[int, Values]
    summary: Values


def why_not_modeled(recording: Recording) -> str:
    """Say what in a recording the engine has no counterpart for; else ''."""
    config = recording.config
    if config.model_extra:
        return f"settings {', '.join(config.model_extra)}"
    outcome = next(iter(recording.outcome.values()))
    return (
        unknown(recording.steps[0], STEP_FIELDS, "a step")
        or unknown(outcome, OUTCOME_FIELDS, "an outcome")
        or unknown(recording.summary, SUMMARY_FIELDS, "the summary")
    )


def replay(recording: Recording) -> Replayed:
    """Run the recorded requests through one replica.

    Raises:
        InputError: The engine refuses the settings, as vLLM would.
        BrokenLawError: The engine contradicts itself.
    """
    notes = Notes(recording)

    def observed(
        config: EngineConfig, allocator: KVAllocator, waiting: WaitingQueue
    ) -> VllmScheduler:
        notes.scheduler = ObservedScheduler(config, allocator, waiting, notes)
        return notes.scheduler

    cluster, chunks = _cluster(recording, observed)
    notes.now_ns = lambda: cluster.now_ns
    cluster.run()
    tables = _columns(chunks)
    if recording.step_cost is not None and len(notes.calls) < notes.most_calls:
        # Observed, it takes its steps one by one; as users run it, it passes quiet ones at once.
        cluster, chunks = _cluster(recording, VllmScheduler)
        cluster.run()
        require(_columns(chunks) == tables, "steps passed at once are those taken one by one")
    return _Told(recording, notes, tables).replayed()


def _cluster(
    recording: Recording, build_scheduler: BuildScheduler
) -> tuple[Cluster, dict[str, list[NDArray[np.int64]]]]:
    """Return a replica and its requests, and where the chunks of its tables will be."""
    config = engine_config(recording)
    chunks: dict[str, list[NDArray[np.int64]]] = {name: [] for name in TABLES}
    fleet = Fleet(
        config,
        replicas=1,
        router=RoundRobin().build(np.random.default_rng(0)),
        build_allocator=lambda oracle: Paged().build(PoolShape.of(config, oracle)),
        cost=recorded_step_time(recording),
        build_scheduler=build_scheduler,
        refuses_hopeless=False,
    )
    requests = request_table(recording)
    return Cluster(requests, fleet, lambda name, rows: chunks[name].append(rows)), chunks


def engine_config(recording: Recording) -> EngineConfig:
    """Return the recorded settings; InputError if they contradict one another."""
    settings = dict(recording.config)
    policy = settings.pop("policy")
    windows = any(group.window_tokens for group in recording.config.groups)
    several = len(recording.config.groups) > 1
    settings["kv_groups"] = recording.config.groups if windows or several else ()
    known = [field.name for field in fields(EngineConfig) if field.name in settings]
    return EngineConfig(**{name: settings[name] for name in known}, scheduling_policy=policy)


def request_table(recording: Recording) -> RequestTable:
    """Return the requests as the engine takes them; they end by `max_tokens`."""
    requests = recording.requests

    def column(values: list[int]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64)

    limits = column([request.max_tokens for request in requests])
    pairs = [pair for request in requests for pair in request.prompt]
    ends = np.cumsum([0, *(len(request.prompt) for request in requests)], dtype=np.int64)
    segments = Segments(
        ends,
        column([seed for seed, _ in pairs]),
        column([tokens for _, tokens in pairs]),
        column([request.answer_seed for request in requests]),
    )
    return RequestTable(
        column([to_ns(request.arrival_ms) for request in requests]),
        column([request.prompt_tokens for request in requests]),
        limits,
        limits,
        np.arange(len(requests), dtype=np.int64),
        horizon_ns=0,
        segments=segments,
        priority=column([request.priority for request in requests]),
    )


def _ms(ns: int) -> float | None:
    """Return a time as a file holds it: the quotient is the number nearest to its decimals."""
    return None if ns < 0 else ns / NS_PER_MS


def _columns(chunks: dict[str, list[NDArray[np.int64]]]) -> dict[str, dict[str, list[int]]]:
    tables = {}
    for name, columns in TABLES.items():
        rows = np.concatenate([np.zeros((0, len(columns)), dtype=np.int64), *chunks[name]])
        tables[name] = {column.name: rows[:, at].tolist() for at, column in enumerate(columns)}
    return tables


class _Told:
    """Tells what the engine did in the terms of a recording."""

    def __init__(
        self, recording: Recording, notes: Notes, tables: dict[str, dict[str, list[int]]]
    ) -> None:
        self._recording = recording
        self._notes = notes
        self._tables = tables
        self._numbers = [request.number for request in recording.requests]

    def replayed(self) -> Replayed:
        """Return everything."""
        steps = list(self._steps())
        outcome = self._outcome()
        return Replayed(steps, outcome, self._summary(steps, outcome))

    def _steps(self) -> Iterator[Values]:
        calls, looks = self._notes.calls, self._notes.looks
        last = self._notes.most_calls
        starts_ns = deque(self._tables["steps"]["start_ns"])
        durations_ns = deque(self._tables["steps"]["duration_ns"])
        finished = self._finished()
        after = 0
        for call in calls[:last]:
            start_ns = end_ns = call.time_ns
            if call.scheduled:  # else it began no step
                start_ns = starts_ns.popleft()
                end_ns = start_ns + durations_ns.popleft()
            # The next call at the end of the step, or later, sees the pool as the step left it.
            after = max(after, call.look + 1)
            while after < len(looks) and looks[after][0] < end_ns:
                after += 1
            pool = looks[after][1] if after < len(looks) else self._notes.scheduler.pool()
            ended = [] if call.is_stall else finished.pop(end_ns, [])
            yield self._step(call, start_ns, end_ns, ended, pool)

    def _finished(self) -> dict[int, list[int]]:
        """Return who finished at which instant."""
        requests = self._tables["requests"]
        finished: dict[int, list[int]] = {}
        columns = (requests["request"], requests["finish_ns"], requests["outcome"])
        for number, finish_ns, outcome in zip(*columns, strict=True):
            if outcome == FINISHED:
                finished.setdefault(finish_ns, []).append(self._numbers[number])
        return finished

    def _step(
        self, call: Call, start_ns: int, end_ns: int, finished: list[int], after: Pool
    ) -> Values:
        numbers = self._numbers
        return {
            "time_ms": _ms(call.time_ns),
            "scheduled": [[numbers[request], *rest] for request, *rest in call.scheduled],
            "preempted": [numbers[request] for request in call.preempted],
            "finished": finished,
            "free_blocks": call.free_blocks,
            "free_blocks_after": after.free_blocks,
            "running": call.running,
            "waiting": call.waiting,
            "start_ms": _ms(start_ns),
            "end_ms": _ms(end_ns),
            "cached_hashes": after.cached_hashes,
            "block_tables": {
                str(numbers[seq]): groups for seq, groups in call.block_tables.items()
            },
            "free_queue": after.free_queue,
        }

    def _outcome(self) -> dict[int, Values]:
        cached_on_resume: dict[int, list[int]] = {}
        for number, _, cached_tokens in self._notes.resumptions:
            cached_on_resume.setdefault(number, []).append(cached_tokens)
        requests = self._tables["requests"]
        rows = zip(*requests.values(), strict=True)
        outcome = {}
        for row in (dict(zip(requests, values, strict=True)) for values in rows):
            number = row["request"]
            outcome[self._numbers[number]] = {
                "status": self._status(row),
                "first_token_ms": _ms(row["first_token_ns"]),
                "finish_ms": _ms(row["finish_ns"]),
                "n_output": row["output_tokens"],
                "n_preemptions": row["preemptions"],
                "cached_tokens": row["cached_tokens"] if row["admitted_ns"] >= 0 else None,
                "cached_tokens_on_resume": cached_on_resume.get(number, []),
            }
        return outcome

    def _status(self, row: dict[str, int]) -> str:
        if row["outcome"] == FINISHED:
            return "finished_length"
        running = self._notes.scheduler.running.values()
        if any(request.number == row["request"] for request in running):
            return "running"
        return "preempted" if row["preemptions"] else "waiting"

    def _summary(self, steps: list[Values], outcome: dict[int, Values]) -> Values:
        calls = self._notes.calls[: self._notes.most_calls]
        finishes_ms = [row["finish_ms"] for row in outcome.values() if row["finish_ms"] is not None]
        summary = {
            "steps": len(steps),
            "preemptions": sum(len(call.preempted) for call in calls),
            "makespan_ms": max(finishes_ms, default=0),
            "max_running": max((call.running for call in calls), default=0),
            "min_free_blocks": min((call.free_blocks for call in calls), default=None),
            "scheduled_tokens": sum(tokens for call in calls for _, tokens, _ in call.scheduled),
        }
        if self._recording.config.enable_prefix_caching:
            first, again = self._notes.admissions, self._notes.resumptions
            summary["prefix_cache"] = {
                **_counters("", first),
                **_counters("preempted_", again),
            }
        if self._recording.was_stopped:
            summary["note"] = self._recording.summary["note"]
        elif any(row["finish_ms"] is None for row in outcome.values()):
            summary["note"] = STALLED
        return summary


def _counters(prefix: str, lookups: list[tuple[int, int, int]]) -> dict[str, int]:
    """Return vLLM's counters of the prefix cache."""
    return {
        f"{prefix}requests": len(lookups),
        f"{prefix}queries": sum(known_tokens for _, known_tokens, _ in lookups),
        f"{prefix}hits": sum(cached_tokens for _, _, cached_tokens in lookups),
    }
