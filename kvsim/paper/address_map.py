"""The physical address space of a KV cache, looked at from time to time during a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.allocators import KVAllocator
from kvsim.engine.allocators.contiguous import Contiguous
from kvsim.engine.cluster import Cluster
from kvsim.engine.fleet import BuildAllocator
from kvsim.engine.request import RequestView
from kvsim.scenario.load import load_scenario
from kvsim.simulate import fleet_of
from kvsim.study.point import KeptTables, Point, make_ready
from kvsim.tables import Columns
from kvsim.units import seconds_to_ns

STATES = ("free", "lost to rounding", "reserved", "tokens")
FREE, ROUNDING, RESERVED, TOKENS = range(4)
LOOKS = 160
CELL_TOKENS = 64  # slots that the picture shows as one, by what most of them are

States = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Taken:
    """Slots that a sequence has: of which request, and where; the pieces in order of position."""

    request: int
    pieces: tuple[tuple[int, int], ...]  # first slot, slots


@dataclass(frozen=True, slots=True)
class AddressMap:
    """What the cells of the address space are at each look: indices into `STATES`."""

    times_s: list[float]
    cells: list[list[int]]  # by address, then by time
    shares: Mapping[str, list[float]]  # of all slots, by state, at each look


def address_map(path: Path, variant: str, begin_s: float, end_s: float) -> AddressMap:
    """Simulate a variant up to `end_s`, and look at its first replica from `begin_s` on.

    Where an engine passes a quiet stretch of steps as one, blocks that are taken in it are seen at
    its end.

    Raises:
        InputError: The file is wrong, or such a server would not start.
    """
    ready = make_ready(load_scenario(path), Point({"max_simulated_s": end_s}, variant))
    kept = KeptTables(["requests"])
    times_s = np.linspace(begin_s, end_s, LOOKS, endpoint=False)
    watch = _Watch([seconds_to_ns(float(time_s)) for time_s in times_s])
    fleet = fleet_of(ready.variant)
    fleet = replace(fleet, build_allocator=watch.over(fleet.build_allocator))
    cluster = Cluster(ready.requests, fleet, kept)
    watch.now_ns = lambda: cluster.now_ns
    cluster.run(seconds_to_ns(end_s))
    watch.look()
    layout = ready.variant.scenario.kv_cache
    rounds = isinstance(layout, Contiguous) and layout.placement == "buddy"
    progress = _progress(kept.columns("requests"), seconds_to_ns(end_s))
    states = np.stack(
        [
            _states(taken, time_ns, cluster.kv_capacity_tokens, rounds, progress)
            for taken, time_ns in zip(watch.looks, watch.times_ns, strict=True)
        ]
    )
    shares = {name: (states == code).mean(axis=1).tolist() for code, name in enumerate(STATES)}
    return AddressMap(times_s.tolist(), _cells(states).T.tolist(), shares)


class _Watch:
    """Looks at an allocator before its first change after each of some times."""

    def __init__(self, times_ns: list[int]) -> None:
        self.times_ns = times_ns
        self.looks: list[list[Taken]] = []
        self.now_ns: Callable[[], int] = lambda: 0
        self._allocators: list[KVAllocator] = []
        self._requests: dict[int, int] = {}  # by sequence

    def over(self, build: BuildAllocator) -> BuildAllocator:
        """Return what builds the same allocator, watched."""

        def watched(answer_tokens: Callable[[RequestView], int]) -> KVAllocator:
            allocator = build(answer_tokens)
            self._allocators.append(allocator)
            return cast("KVAllocator", _Watched(allocator, self))

        return watched

    def owns(self, seq: int, request: int) -> None:
        """Note whose sequence has slots from now on."""
        self._requests[seq] = request

    def forget(self, seq: int) -> None:
        """Note that a sequence has none anymore."""
        self._requests.pop(seq, None)

    def look(self) -> None:
        """Take down who has which slots, for each time that has passed."""
        now_ns = self.now_ns()
        while len(self.looks) < len(self.times_ns) and self.times_ns[len(self.looks)] <= now_ns:
            allocator = self._allocators[0]
            self.looks.append(
                [Taken(n, _pieces(allocator, seq)) for seq, n in self._requests.items()]
            )


class _Watched:
    """An allocator that tells its watch before it changes."""

    def __init__(self, allocator: KVAllocator, watch: _Watch) -> None:
        self._allocator = allocator
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._allocator, name)

    def allocate(self, request: RequestView, seq: int, tokens: int) -> bool:
        self._watch.look()
        granted = self._allocator.allocate(request, seq, tokens)
        if granted:
            self._watch.owns(seq, request.number)
        return granted

    def append(self, seq: int, tokens: int) -> bool:
        self._watch.look()
        return self._allocator.append(seq, tokens)

    def free(self, seq: int) -> None:
        self._watch.look()
        self._watch.forget(seq)
        self._allocator.free(seq)


def _pieces(allocator: KVAllocator, seq: int) -> tuple[tuple[int, int], ...]:
    slots, block = allocator.slots_tokens(seq), allocator.block_tokens
    if not block:
        return ((allocator.slot(seq, 0), slots),)
    return tuple((allocator.slot(seq, position), block) for position in range(0, slots, block))


def _progress(requests: Columns, end_ns: int) -> Callable[[int, int], float]:
    """Return what tells how many tokens a request has at a time, as if they came evenly."""
    place = {number: row for row, number in enumerate(requests["request"].tolist())}

    def tokens_at(request: int, time_ns: int) -> float:
        row = {name: int(column[place[request]]) for name, column in requests.items()}
        first_ns, finish_ns = row["first_token_ns"], row["finish_ns"]
        if first_ns < 0 or time_ns <= first_ns:
            return row["prompt_tokens"]
        until_ns = finish_ns if finish_ns > 0 else end_ns
        share = min(1.0, (time_ns - first_ns) / max(1, until_ns - first_ns))
        return row["prompt_tokens"] + share * row["output_tokens"]

    return tokens_at


def _states(
    looked: list[Taken],
    time_ns: int,
    capacity: int,
    rounds: bool,
    tokens_at: Callable[[int, int], float],
) -> States:
    """Return what each slot is at one look."""
    states = np.full(capacity, FREE, dtype=np.int8)
    for taken in looked:
        left = round(tokens_at(taken.request, time_ns))
        for start, slots in taken.pieces:
            if rounds:
                states[start : start + (1 << (slots - 1).bit_length())] = ROUNDING
            states[start : start + slots] = RESERVED
            states[start : start + min(slots, max(0, left))] = TOKENS
            left -= slots
    return states


def _cells(states: States) -> States:
    """Return what most slots of each cell are, [looks, cells]."""
    looks, capacity = states.shape
    whole = states[:, : capacity // CELL_TOKENS * CELL_TOKENS].reshape(looks, -1, CELL_TOKENS)
    counts = np.stack([(whole == code).sum(axis=2) for code in range(len(STATES))])
    return np.asarray(counts.argmax(axis=0), dtype=np.int8)
