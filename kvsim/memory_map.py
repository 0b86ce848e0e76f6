"""The memory map: what lies where in the KV cache of a run's first replica, from time to time.

The result tables don't tell, and the compiled loop has no allocator to ask. So the beginning of the
run is simulated once more, step by step, while somebody looks on: the same requests, the same bits.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.allocators._slot_runs import NOBODY, SlotRuns
from kvsim.engine.cluster import Cluster
from kvsim.engine.fleet import Fleet
from kvsim.scenario.variant import ResolvedVariant
from kvsim.simulate import Simulated, fleet_of
from kvsim.table_files import TableWriter, chunks
from kvsim.tables import FREE, HOLES, MAP_TABLES, REUSABLE, SLOT_USES, Columns
from kvsim.workload.replay import as_sent, order_sent
from kvsim.workload.requests import RequestTable

MOST_VARIANTS = 3
LOOKS = 100
# What is simulated once more ends with so many requests admitted, or steps.
MOST_REQUESTS = 2_000
MOST_STEPS = 6_000
MOST_ARRIVALS = 30_000
MOST_RUNS = 20_000  # of a variant, in all looks
CELLS = 1024  # that the slots are put together to, where there are more runs; or half of it, ...

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at an instant."""

    time_ns: int
    runs: SlotRuns


def write_memory_map(
    folder: Path,
    variants: Mapping[str, ResolvedVariant],
    requests: RequestTable,
    tables: Mapping[str, Mapping[str, Columns]],
    simulated: Mapping[str, Simulated],
) -> None:
    """Look at the first variants of a finished run, and write the tables `kvsim.tables.MAP_TABLES`.

    Args:
        folder: Where the files go.
        variants: As resolved, the base first.
        requests: What they face.
        tables: The result tables by variant.
        simulated: Totals by variant.

    Raises:
        OSError: The disk refuses.
    """
    names = variants_seen(variants)
    scenes = {
        name: Scene.of(fleet_of(variants[name]), requests, tables[name], simulated[name])
        for name in names
    }
    until_ns = max(simulated[name].totals.end_ns for name in names)
    until_ns = min(scene.bound_ns(until_ns) for scene in scenes.values())
    with ExitStack() as open_files:
        writers = {}
        for table, columns in MAP_TABLES.items():
            writers[table] = TableWriter(folder / f"{table}.parquet", columns)
            open_files.callback(writers[table].close)
        for name, scene in scenes.items():
            looks = scene.look_on(until_ns)
            writers["memory_looks"].write(name, np.array([*map(_look_row, looks)], np.int64))
            writers["memory_map"].write(name, _map_rows(looks))


def variants_seen(variants: Mapping[str, ResolvedVariant]) -> list[str]:
    """Return the variants that are looked at: the base, and first those of another layout."""
    base, *others = variants
    layout = variants[base].scenario.kv_cache
    others.sort(key=lambda name: variants[name].scenario.kv_cache == layout)
    return [base, *others[: MOST_VARIANTS - 1]]


@dataclass(frozen=True, slots=True)
class Scene:
    """What is simulated once more.

    If there are several replicas, and what was sent to the first one is all that decides what it
    does, it plays alone: what the others do takes no time.

    Attributes:
        fleet: Replicas.
        requests: What they face.
        tables: Result tables of the finished run.
        retried_rows: Of the request table, of each request beyond its last row.
        is_solo: Whether the first replica plays alone.
    """

    fleet: Fleet
    requests: RequestTable
    tables: Mapping[str, Columns]
    retried_rows: Ints
    is_solo: bool

    @classmethod
    def of(
        cls,
        fleet: Fleet,
        requests: RequestTable,
        tables: Mapping[str, Columns],
        simulated: Simulated,
    ) -> "Scene":
        """Return the scene of a variant."""
        # Who gives up in the queue was sent to a replica that the tables don't tell.
        is_plain = requests.timeout_ns is None and requests.beams is None
        is_solo = fleet.replicas > 1 and is_plain and not fleet.router.shares_queue
        retried_rows = np.array(simulated.totals.retried_rows, dtype=np.int64)
        return cls(fleet, requests, tables, retried_rows, is_solo)

    def bound_ns(self, until_ns: int) -> int:
        """Return an instant, or an earlier one if much happens before."""
        table = self.tables["requests"]
        admitted_ns = table["admitted_ns"]
        seen = (table["replica"] == 0) if self.is_solo else (admitted_ns >= 0)
        until_ns = min(until_ns, _nth(admitted_ns[seen], MOST_REQUESTS, until_ns))
        starts_ns = np.zeros(0, dtype=np.int64)
        for chunk in chunks(self.tables["steps"], ("replica", "start_ns")):
            seen = (chunk["replica"] == 0) | (not self.is_solo)
            starts_ns = np.concatenate([starts_ns, chunk["start_ns"][seen]])
            if len(starts_ns) > MOST_STEPS:
                break
        return min(until_ns, _nth(starts_ns, MOST_STEPS, until_ns))

    def look_on(self, until_ns: int) -> list[Look]:
        """Simulate up to an instant; see what there is in the middle of equal spans of time."""
        if not self.is_solo:
            return look_on(self.fleet, self.requests, until_ns)
        table, requests = self.tables["requests"], self.requests
        mine = (table["replica"] == 0) & (table["arrival_ns"] < until_ns)
        sent = table["request"][mine], table["arrival_ns"][mine], self.retried_rows
        order, row = order_sent(requests, *sent)
        kept = {
            name: column[row]
            for name in ("priority", "prefix_tokens")
            if (column := getattr(requests, name)) is not None
        }
        solo = replace(as_sent(requests, *sent), **kept)
        looks = look_on(replace(self.fleet, replicas=1), solo, until_ns)
        number = np.append(sent[0][order], NOBODY)
        return [
            Look(look.time_ns, replace(look.runs, owner=number[look.runs.owner])) for look in looks
        ]


def look_on(fleet: Fleet, requests: RequestTable, until_ns: int) -> list[Look]:
    """Simulate up to an instant; see what the first replica has at about `LOOKS` instants."""
    count = int(np.searchsorted(requests.arrival_ns, until_ns))
    if fleet.config.scheduling_policy == "fcfs":  # nobody else is admitted until then
        count = min(count, MOST_ARRIVALS)
    times_ns = np.unique((2 * np.arange(LOOKS) + 1) * until_ns // (2 * LOOKS)).tolist()
    seen: list[SlotRuns] = []
    # A step at a time: a stretch of steps tells how many blocks were taken, but not in which order.
    cluster = Cluster(requests.head(count), replace(fleet, plans_ahead=False), lambda *_: None)
    cluster.look_at(times_ns, seen.append)
    cluster.run(until_ns)
    return [Look(*look) for look in zip(times_ns, seen, strict=True)]


def _nth(times_ns: Ints, place: int, otherwise_ns: int) -> int:
    """Return the time at a place in order of time, if there are so many."""
    return int(np.partition(times_ns, place)[place]) if len(times_ns) > place else otherwise_ns


def _look_row(look: Look) -> list[int]:
    """Return a row of the looks: sums by use, and what is free in one piece."""
    runs = look.runs
    holes = runs.length[np.isin(runs.use, [HOLES, REUSABLE, FREE])]
    return [look.time_ns, *runs.sums().tolist(), len(holes), int(holes.max(initial=0))]


def _map_rows(looks: Sequence[Look]) -> Ints:
    """Return the rows of the map: all runs or, if they are too many, cells of many slots."""
    cells, drawn = CELLS, looks
    while sum(len(look.runs.use) for look in drawn) > MOST_RUNS:
        drawn = [Look(look.time_ns, in_cells(look.runs, cells)) for look in looks]
        cells //= 2
    rows = [
        np.stack(
            [
                np.full(len(look.runs.use), look.time_ns),
                *(look.runs.start, look.runs.length, look.runs.use, look.runs.owner),
            ],
            axis=1,
        )
        for look in drawn
    ]
    return np.concatenate([np.zeros((0, 5), dtype=np.int64), *rows])


def in_cells(runs: SlotRuns, cells: int) -> SlotRuns:
    """Put neighboring slots together to so many cells at most, of equal size.

    A cell is what most of its slots are; it has an owner if all its slots with one have the same.
    """
    capacity = int(runs.length.sum())
    size = -(-capacity // cells)
    edges = np.arange(0, capacity, size)
    # Of pieces that lie in one run, and in one cell; some are empty.
    start = np.sort(np.concatenate([runs.start, edges]), kind="stable")
    length = np.diff(start, append=capacity)
    run = np.searchsorted(runs.start, start, side="right") - 1
    use, owner, cell = runs.use[run], runs.owner[run], start // size
    uses = len(SLOT_USES)
    counts = np.bincount(cell * uses + use, length, len(edges) * uses).reshape(-1, uses)
    first = np.searchsorted(cell, np.arange(len(edges)))
    highest = np.maximum.reduceat(owner, first)
    is_owned = owner != NOBODY
    lowest = np.minimum.reduceat(np.where(is_owned, owner, np.iinfo(np.int64).max), first)
    most = counts.argmax(axis=1)
    owned = (lowest == highest) & (most < HOLES)
    whole = np.diff(edges, append=capacity)
    return SlotRuns.of(whole, most, np.where(owned, highest, NOBODY)).merged()
