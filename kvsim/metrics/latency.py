"""Latencies of requests and of the gaps between tokens, and their statistics."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics import Figures
from kvsim.metrics.catalog import LATENCIES, STATISTICS
from kvsim.metrics.pauses import pauses
from kvsim.tables import EVENT_KINDS, OUTCOMES, Columns
from kvsim.units import NS_PER_S

FINISHED = OUTCOMES.index("finished")
_RESUMED = EVENT_KINDS.index("resumed")
_SWAPPED_IN = EVENT_KINDS.index("swapped_in")


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A multiset of values, each with how often it occurs, in ascending order."""

    values: NDArray[np.float64]
    counts: NDArray[np.int64]
    ends: NDArray[np.int64]  # running sum of the counts

    @classmethod
    def of(cls, values: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> "Sample":
        """Sort values; without `counts` each occurs once."""
        if counts is None:
            values, counts = np.sort(values), np.ones(len(values), dtype=np.int64)
        else:
            order = np.argsort(values[counts > 0], kind="stable")
            values, counts = values[counts > 0][order], counts[counts > 0][order]
        return cls(values, counts, np.cumsum(counts))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def statistic(self, name: str) -> float | None:
        """Return `mean`, `max` or a percentile such as `p99`; None if there are no values."""
        if not len(self):
            return None
        if name == "mean":
            return float((self.values * self.counts).sum() / len(self))
        return float(self.values[-1]) if name == "max" else self.percentile(float(name[1:]))

    def percentile(self, percent: float) -> float:
        """Return numpy's linear percentile of the multiset, to the bit, without expanding it."""
        position = (len(self) - 1) * (percent / 100)
        below = int(position)
        ranks = np.array((below, min(below + 1, len(self) - 1)))
        pair = self.values[np.searchsorted(self.ends, ranks, side="right")]
        return float(np.quantile(pair, position - below))


def request_latencies(requests: Columns) -> dict[str, NDArray[np.float64]]:
    """Return each latency of each request in seconds, NaN where it has none; ITL is by steps.

    The arrays have shape (requests,), in the order of the rows; warm-up is not cut.
    """
    finished = requests["outcome"] == FINISHED
    arrival, first = requests["arrival_ns"], requests["first_token_ns"]
    admitted, finish = requests["admitted_ns"], requests["finish_ns"]
    output_tokens = requests["output_tokens"]
    more_tokens = output_tokens - 1
    e2e = _seconds(finish - arrival, finished)
    return {
        "ttft": _seconds(first - arrival, first >= 0),
        "tpot": _seconds(finish - first, finished & (more_tokens > 0)) / np.maximum(more_tokens, 1),
        "e2e": e2e,
        "normalized": e2e / np.maximum(output_tokens, 1),
        "queue": _seconds(admitted - requests["queued_ns"], admitted >= 0),
    }


def _seconds(duration_ns: NDArray[np.int64], exists: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.where(exists, duration_ns / NS_PER_S, np.nan)


def token_gaps(
    steps: Columns, events: Columns, warmup_ns: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the gaps between tokens in seconds, and how many there are of each.

    A step of duration d with n decoding sequences is n gaps of d; a discarded token makes none.
    The chunk that computes a preempted request again is no decode row, so the event `resumed` adds
    that one longer gap. The event `swapped_in` takes the place of one in its step. Who paused
    before a step (V0) has waited since the first step that left it out.
    """
    after = steps["start_ns"] >= warmup_ns
    absent = np.isin(events["event"], (_RESUMED, _SWAPPED_IN))
    long_ns = events["gap_ns"][absent & (events["time_ns"] >= warmup_ns)]
    tokens = steps["decode_seqs"] - steps["discarded_seqs"] - _swapped_in(steps, events)
    paused_ns, paused_tokens, after_pause = pauses(steps, tokens)
    own = np.bincount(after_pause, paused_tokens, minlength=len(tokens)).astype(np.int64)
    counted = after[after_pause]
    gaps_ns = np.concatenate((steps["duration_ns"][after], long_ns, paused_ns[counted]))
    ones = np.ones(len(long_ns), dtype=np.int64)
    counts = np.concatenate(((tokens - own)[after], ones, paused_tokens[counted]))
    return gaps_ns / NS_PER_S, counts


def _swapped_in(steps: Columns, events: Columns) -> NDArray[np.int64]:
    """Return how many sequences each step has that were swapped in for it."""
    back = events["event"] == _SWAPPED_IN
    count = np.zeros(len(steps["step"]), dtype=np.int64)
    for replica in np.unique(events["replica"][back]):
        rows = np.flatnonzero(steps["replica"] == replica)
        numbers = events["step"][back & (events["replica"] == replica)]
        np.add.at(count, rows[np.searchsorted(steps["step"][rows], numbers)], 1)
    return count


def request_samples(requests: Columns, warmup_ns: int = 0) -> dict[str, Sample]:
    """Return the latencies of requests in seconds, those of the warm-up left out."""
    measured = requests["arrival_ns"] >= warmup_ns
    return {
        name: Sample.of(values[measured & ~np.isnan(values)])
        for name, values in request_latencies(requests).items()
    }


def latency_samples(
    requests: Columns, steps: Columns, events: Columns, warmup_ns: int = 0
) -> dict[str, Sample]:
    """Return the values of each of `LATENCIES` in seconds, those of the warm-up left out."""
    samples = request_samples(requests, warmup_ns)
    samples["itl"] = Sample.of(*token_gaps(steps, events, warmup_ns))
    return {name: samples[name] for name in LATENCIES}


def latency_figures(samples: Mapping[str, Sample]) -> Figures:
    """Return the statistics of each latency under the names of the catalog."""
    return {
        f"{latency}_{statistic}_s": sample.statistic(statistic)
        for latency, sample in samples.items()
        for statistic in STATISTICS
    }
