"""Inter-token latency: the gaps between tokens, of which a run has hundreds of millions.

A step of duration d with n decoding sequences is n gaps of d; a discarded token makes none. The
chunk that computes a preempted request again is no decode row, so the event `resumed` adds that one
longer gap. Who was swapped in or paused before a step is late in it: the events `swapped_in` and
`delayed` tell these gaps. Percentiles are exact: gaps are counted in bins of about 0.1 % of their
length, then the bins that hold a wanted percentile are looked at once more.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics import RunContext
from kvsim.metrics.cut import YIELDED_AT_THE_END, cut_steps
from kvsim.metrics.sample import Sample
from kvsim.table_files import batches, row_count
from kvsim.tables import EVENT_KINDS, RETURNS, Columns
from kvsim.units import NS_PER_S

_DELAYED = EVENT_KINDS.index("delayed")
_READ = ("start_ns", "duration_ns", *YIELDED_AT_THE_END)
_BATCH_ROWS = 65_536
_DROPPED_BITS = 13  # of the 23 of a float's mantissa: what remains tells 0.1 % apart

Ints = NDArray[np.int64]


class GapCounts:
    """Gaps between tokens: how many there are, their sum, the longest, and how many by bin."""

    def __init__(self) -> None:
        self.gaps = 0
        self.total_ns = 0
        self.longest_ns = 0
        self.by_bin = np.zeros(_BINS, dtype=np.int64)

    def add(self, gaps_ns: Ints, counts: Ints) -> None:
        """Count gaps, each as often as told."""
        gaps_ns, counts = gaps_ns[counts > 0], counts[counts > 0]
        if not len(gaps_ns):
            return
        self.gaps += int(counts.sum())
        self.total_ns += _product(gaps_ns, counts)
        self.longest_ns = max(self.longest_ns, int(gaps_ns.max()))
        bins = _bins(gaps_ns)
        first = int(bins.min())
        found = np.bincount(bins - first, counts).astype(np.int64)
        self.by_bin[first : first + len(found)] += found


def _product(values: Ints, counts: Ints) -> int:
    """Return the sum of values × counts; exact, by halves that leave room in 64 bits."""
    high, low = values >> 24, values & (2**24 - 1)
    return (int((high * counts).sum()) << 24) + int((low * counts).sum())


def _bins(gaps_ns: Ints) -> NDArray[np.int32]:
    """Return the bin of each gap: a floating-point number's first bits, which never decrease."""
    return gaps_ns.astype(np.float32).view(np.int32) >> _DROPPED_BITS


def _least_ns(bins: NDArray[np.integer]) -> Ints:
    """Return about the shortest gap of each bin: longer than all of the bins before it."""
    return (bins.astype(np.int32) << _DROPPED_BITS).view(np.float32).astype(np.int64)


_BINS = int(_bins(np.array([2**63 - 1]))[0]) + 1


def step_gaps(steps: Columns, warmup_ns: int) -> tuple[Ints, Ints]:
    """Return the duration of each step that starts after the warm-up, and how many gaps it is."""
    after = steps["start_ns"] >= warmup_ns
    tokens = steps["decode_seqs"] - steps["discarded_seqs"] - steps["late_seqs"]
    return steps["duration_ns"][after], tokens[after]


def event_gaps(events: Columns, warmup_ns: int) -> tuple[Ints, Ints]:
    """Return the gaps around preemptions and pauses that end after the warm-up."""
    kinds, after = events["event"], events["time_ns"] >= warmup_ns
    counts = np.where(kinds == _DELAYED, events["tokens"], np.isin(kinds, RETURNS))
    told = after & (counts > 0)
    return events["gap_ns"][told], counts[told].astype(np.int64)


def itl_statistics(
    steps: Columns, events: Columns, context: RunContext, found: GapCounts, names: Sequence[str]
) -> dict[str, float | None]:
    """Return statistics of the gaps, in seconds, by their names; None if there is no gap.

    Args:
        steps: The steps table.
        events: The events table.
        context: Says where the warm-up ends, and whether the run was cut.
        found: The gaps of all steps, to which those around preemptions are added.
        names: `mean`, `max`, percentiles such as `p99`.
    """
    longer = event_gaps(events, context.warmup_ns)
    found.add(*longer)
    if not found.gaps:
        return dict.fromkeys(names)
    known: dict[str, float | None] = {
        "mean": found.total_ns / found.gaps / NS_PER_S,
        "max": float(found.longest_ns) / NS_PER_S,
    }
    percentiles = [name for name in names if name not in known]
    sample = _sample_for(percentiles, found, _all_gaps(steps, longer, context))
    return {name: known[name] if name in known else sample.statistic(name) for name in names}


def _all_gaps(
    steps: Columns, longer: tuple[Ints, Ints], context: RunContext
) -> Iterator[tuple[Ints, Ints]]:
    """Yield all gaps once more: those around preemptions, then those of the steps by batches."""
    yield longer
    rows = row_count(steps)
    sizes = [min(_BATCH_ROWS, rows - start) for start in range(0, rows, _BATCH_ROWS)]
    for batch in batches(steps, _READ, sizes):
        cut = batch if context.end_ns is None else cut_steps(batch, None, context.end_ns)[0]
        yield step_gaps(cut, context.warmup_ns)


def _sample_for(
    percentiles: Sequence[str], found: GapCounts, gaps: Iterable[tuple[Ints, Ints]]
) -> Sample:
    """Return a sample that has these percentiles: elsewhere one value stands for all of a bin."""
    ends = np.cumsum(found.by_bin)
    ranks = np.array([rank for name in percentiles for rank in _ranks(name, found.gaps)])
    wanted = np.zeros(_BINS, dtype=np.bool_)
    wanted[np.searchsorted(ends, ranks, side="right")] = True
    others = np.flatnonzero((found.by_bin > 0) & ~wanted)
    values, counts = _least_ns(others), found.by_bin[others]
    for gaps_ns, times in gaps:
        chosen = wanted[_bins(gaps_ns)]
        values, counts = _merged(values, counts, gaps_ns[chosen], times[chosen])
    return Sample.of(values / NS_PER_S, counts)


def _ranks(name: str, count: int) -> tuple[int, int]:
    below, _ = Sample.place(float(name[1:]), count)
    return below, min(below + 1, count - 1)


def _merged(values: Ints, counts: Ints, more: Ints, times: Ints) -> tuple[Ints, Ints]:
    """Add values to a multiset, each as often as told."""
    merged, total = np.concatenate((values, more)), np.concatenate((counts, times))
    if not len(merged):
        return merged, total
    order = np.argsort(merged, kind="stable")
    merged, total = merged[order], total[order]
    firsts = np.flatnonzero(np.diff(merged, prepend=merged[0] - 1))
    return merged[firsts], np.add.reduceat(total, firsts)
