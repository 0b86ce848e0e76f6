"""The same requests in two runs: which rows of their tables belong together, and what changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.compare.change import Change, paired
from kvsim.compare.parts import Estimate, Floats, Ints, series_mean, series_percentiles
from kvsim.compare.sides import Side
from kvsim.metrics.latency import FINISHED, request_latency
from kvsim.metrics.sample import Sample
from kvsim.statistics import BATCHES
from kvsim.tables import ChosenRows, Columns

LATENCIES = ("ttft", "tpot", "e2e", "queue")
STATISTICS = ("mean", "p50", "p95", "p99")
FEWEST_BEYOND = 10  # requests beyond a percentile; with fewer its interval can't be trusted
WORST = 10


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Requests that were sent in both runs, in the order of their arrival.

    The tables have a row for each; those before either run's warm-up are left out.

    Attributes:
        base: Their rows in the base's table of requests; likewise `other`.
        base_only: How many the base alone sent (a further turn, a retry); likewise `other_only`.
        latencies_s: By name of the latency, of the base and of the other, NaN where there is none.
    """

    base: Columns
    other: Columns
    base_only: int
    other_only: int
    latencies_s: Mapping[str, tuple[Floats, Floats]]

    def __len__(self) -> int:
        return len(self.base["request"])

    def finished(self) -> tuple[int, int, int]:
        """Return how many finished in both runs, in the base only, in the other only."""
        base, other = (table["outcome"] == FINISHED for table in (self.base, self.other))
        return int((base & other).sum()), int((base & ~other).sum()), int((other & ~base).sum())

    def of(self, latency: str) -> tuple[Floats, Floats]:
        """Return a latency of the requests that have it in both runs, in seconds."""
        base_s, other_s = self.latencies_s[latency]
        both = ~np.isnan(base_s + other_s)
        return base_s[both], other_s[both]

    def chosen(self, which: NDArray[np.bool_]) -> "Pairs":
        """Return some of the pairs, shape (pairs,)."""
        latencies = {name: (a[which], b[which]) for name, (a, b) in self.latencies_s.items()}
        base, other = ChosenRows(self.base, which), ChosenRows(self.other, which)
        return Pairs(base, other, 0, 0, latencies)


def pairs_of(base: Side, other: Side) -> Pairs:
    """Find the requests that two runs of the same request table share.

    A first attempt is known by its number. Retries are numbered as they come, so that one is known
    by its client, by how often that had tried before, and among its samples by their order. The
    order of arrival is that of the mean over both runs: whichever of them is the base.
    """
    tables = base.requests, other.requests
    keys = _keys(*tables)
    _, *rows = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    arrivals = [table["arrival_ns"][those] for table, those in zip(tables, rows, strict=True)]
    measured = (arrivals[0] >= base.warmup_ns) & (arrivals[1] >= other.warmup_ns)
    order = np.argsort(arrivals[0] + arrivals[1], kind="stable")
    order = order[measured[order]]
    taken, taken_other = (
        {name: table[name][those[order]] for name in _KEPT}
        for table, those in zip(tables, rows, strict=True)
    )
    latencies = {
        name: (request_latency(taken, name), request_latency(taken_other, name))
        for name in LATENCIES
    }
    only, other_only = (len(key) - len(those) for key, those in zip(keys, rows, strict=True))
    return Pairs(taken, taken_other, only, other_only, latencies)


_KEPT = (
    *("request", "class", "attempt", "prompt_tokens", "output_tokens", "outcome", "preemptions"),
    *("arrival_ns", "queued_ns", "admitted_ns", "first_token_ns", "finish_ns"),
)


def _keys(*tables: Columns) -> list[Ints]:
    """Return what tells the requests apart in all of some tables, as one number each."""
    named = [_named(table) for table in tables]
    sizes = [1 + max(int(names[:, i].max(initial=0)) for names in named) for i in range(3)]
    return [(names[:, 0] * sizes[1] + names[:, 1]) * sizes[2] + names[:, 2] for names in named]


def _named(requests: Columns) -> Ints:
    """Return attempt, number or client, and the place among the client's samples."""
    attempt, number, group = requests["attempt"], requests["request"], requests["group"]
    order = np.lexsort((number, group, attempt))
    new = np.diff(group[order], prepend=-1) != 0
    new |= np.diff(attempt[order], prepend=-1) != 0
    place = np.zeros(len(order), dtype=np.int64)
    rank = np.arange(len(order))
    place[order] = rank - np.maximum.accumulate(np.where(new, rank, 0))
    first = attempt == 0
    return np.stack(
        [attempt, np.where(first, number, group), np.where(first, 0, place)], axis=1
    ).astype(np.int64)


# What changed


def latency_changes(pairs: Pairs) -> dict[str, Change]:
    """Return what became of the statistics of each latency, by the names of the figures."""
    found: dict[str, Change] = {}
    for latency in LATENCIES:
        found |= _changes(latency, *pairs.of(latency))
    return found


def _changes(latency: str, base_s: Floats, other_s: Floats) -> dict[str, Change]:
    told = [statistic for statistic in STATISTICS if _tells(statistic, len(base_s))]
    estimates = zip(*(_estimates(told, series) for series in (base_s, other_s)), strict=True)
    sample, sample_other = Sample.of(base_s), Sample.of(other_s)
    found = {}
    for statistic in STATISTICS:
        name = f"{latency}_{statistic}_s"
        if statistic in told:
            found[name] = paired(name, *next(estimates))
        else:
            values = sample.statistic(statistic), sample_other.statistic(statistic)
            found[name] = Change(name, values[0], values[1])
    return found


def _tells(statistic: str, count: int) -> bool:
    """Tell whether so many requests suffice for an interval."""
    if statistic == "mean":
        return count >= BATCHES
    percent = float(statistic[1:])
    return round(count * min(percent, 100 - percent) / 100) >= FEWEST_BEYOND


def _estimates(statistics: Sequence[str], series: Floats) -> list[Estimate]:
    """Return statistics that a series tells; the mean is the first of them, if any is."""
    if not statistics:
        return []
    percents = [float(name[1:]) for name in statistics if name != "mean"]
    return [series_mean(series), *series_percentiles(series, percents)]


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the requests that have a latency in both runs, how many were faster in the other one."""

    count: int
    faster: float
    slower: float
    same: float


def shares(pairs: Pairs, latency: str) -> Shares | None:
    """Return which shares of the requests got faster and slower; None if there is none."""
    base_s, other_s = pairs.of(latency)
    if not len(base_s):
        return None
    changed = (other_s < base_s, other_s > base_s, other_s == base_s)
    return Shares(len(base_s), *(float(which.mean()) for which in changed))


def worst(pairs: Pairs) -> Ints:
    """Return the pairs whose end-to-end latency grew most, the worst first; at most `WORST`."""
    base_s, other_s = pairs.latencies_s["e2e"]
    grown = np.nan_to_num(other_s - base_s, nan=0.0)
    order = np.argsort(-grown, kind="stable")[:WORST]
    return order[grown[order] > 0]
