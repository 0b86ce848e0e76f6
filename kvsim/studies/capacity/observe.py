"""What a search keeps of a simulation: series in the order of arrival, cut and averaged later.

Where the warm-up ends is known only when all replications of a value are there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics import RunContext
from kvsim.metrics.gaps import event_gaps, step_gaps
from kvsim.metrics.latency import request_latency
from kvsim.metrics.slo import meets_bounds
from kvsim.studies.capacity.bounds import Bound
from kvsim.tables import Columns
from kvsim.units import NS_PER_S

Floats = NDArray[np.float64]
_LEAST_COOL_DOWN, _MOST_COOL_DOWN = 0.05, 0.25  # of the requests
_READ = (
    *("class", "arrival_ns", "queued_ns", "admitted_ns", "first_token_ns", "finish_ns"),
    *("output_tokens", "outcome"),
)
DRAWN = ("ttft", "tpot", "e2e", "queue")  # latencies of which the page may draw percentiles
RANKS = (50, 95, 99)


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """What one bound averages: values, and how often each counts; both of shape (requests,)."""

    values: Floats
    weights: Floats

    @classmethod
    def of(cls, values: Floats) -> "Series":
        """Return values that count once each; NaN, which is none, not at all."""
        exists = ~np.isnan(values)
        return cls(np.where(exists, values, 0.0), exists.astype(np.float64))

    def mean(self, window: slice) -> float:
        """Return the mean within a window; NaN if nothing counts there."""
        values, weights = self.values[window], self.weights[window]
        weight = float(weights.sum())
        return float((values * weights).sum()) / weight if weight else float("nan")

    def largest(self, window: slice) -> float:
        """Return the largest value within a window; NaN if nothing counts there."""
        values = self.values[window][self.weights[window] > 0]
        return float(values.max()) if len(values) else float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """One simulation, in the order of arrival; arrays have shape (requests,).

    Attributes:
        arrival_s: When the requests arrived.
        present: How many were in the system when each arrived.
        stay_s: How long each was in the system, NaN for who never left.
        series: Of each bound, by its name, but for that of kind `growth`.
        latencies_s: Of `DRAWN`, NaN where there is none.
        good: Who finished within all bounds of the SLO.
        first: First request after the scenario's own warm-up.
        end: First request of the cool-down: from there on the system empties. In a run whose
            horizon is the question there is none.
        refusal: Why such a server would not start; then all else is empty.
    """

    arrival_s: Floats
    present: Floats
    stay_s: Floats
    series: Mapping[str, Series]
    latencies_s: Mapping[str, Floats]
    good: NDArray[np.bool_]
    first: int
    end: int
    refusal: str = ""

    @classmethod
    def refused(cls, why: str) -> "Observed":
        """Return what is observed of a server that doesn't start."""
        none = np.empty(0)
        return cls(none, none, none, {}, {}, none.astype(np.bool_), 0, 0, why)

    def mean(self, bound: Bound, warmup: int) -> float:
        """Return what a bound is about, without so many requests at the beginning; NaN: nothing."""
        if bound.kind == "growth":
            return self.growth()
        series, window = self.series[bound.name], slice(warmup, self.end)
        return series.largest(window) if bound.kind == "largest" else series.mean(window)

    def growth(self) -> float:
        """Return the share of what arrives in the second half that stays in the system.

        It is the rise of the number present, from the tenth of the requests after the middle to the
        last one before the cool-down, over the arrivals between.
        """
        tenth = self.end // 10
        if tenth < 1:
            return 0.0
        middle, late = self.end // 2, self.end - tenth
        rise = self.present[late : self.end].mean() - self.present[middle : middle + tenth].mean()
        return float(rise) / (late - middle)


def observe(
    tables: Mapping[str, Columns], bounds: Sequence[Bound], context: RunContext, steady: bool
) -> Observed:
    """Return the series of a finished simulation.

    Args:
        tables: `requests`; with bounds on ITL also `steps` and `events`.
        bounds: What is averaged.
        context: Of the run.
        steady: Whether the run is a piece of a steady state, not the question itself. Requests
            that arrive after the horizon (late turns of sessions) and the cool-down are left out.
    """
    requests = _in_order(tables["requests"], context.horizon_ns if steady else 0)
    arrival_ns, finish_ns = requests["arrival_ns"], requests["finish_ns"]
    count = len(arrival_ns)
    left = np.sort(finish_ns[finish_ns >= 0])
    present = np.arange(count) - np.searchsorted(left, arrival_ns, side="right")
    stay_s = np.where(finish_ns >= 0, (finish_ns - arrival_ns) / NS_PER_S, np.nan)
    busy = present[count // 2 :].mean() if count else 0.0
    share = min(max(float(busy) / max(count, 1), _LEAST_COOL_DOWN), _MOST_COOL_DOWN)
    return Observed(
        arrival_s=arrival_ns / NS_PER_S,
        present=present.astype(np.float64),
        stay_s=stay_s,
        series={
            bound.name: _series(bound, requests, tables)
            for bound in bounds
            if bound.kind != "growth"
        },
        latencies_s={name: request_latency(requests, name) for name in DRAWN},
        good=meets_bounds(requests, context.slo or {}),
        first=0 if steady else int(np.searchsorted(arrival_ns, context.warmup_ns)),
        end=count - round(share * count) if steady else count,
    )


def _in_order(requests: Columns, horizon_ns: int) -> Columns:
    """Return what is read of the requests, in the order of arrival, until the horizon if any."""
    order = np.argsort(requests["arrival_ns"], kind="stable")
    if horizon_ns:
        order = order[requests["arrival_ns"][order] <= horizon_ns]
    return {name: requests[name][order] for name in _READ}


def _series(bound: Bound, requests: Columns, tables: Mapping[str, Columns]) -> Series:
    if bound.latency != "itl":
        return Series.of(bound.values(requests))
    gaps_ns, counts, times_ns = _gaps(tables["steps"], tables["events"])
    values = gaps_ns / NS_PER_S
    if bound.kind == "beyond":
        values = (values > bound.limit_s).astype(np.float64)
    arrival_ns = requests["arrival_ns"]
    place = np.maximum(np.searchsorted(arrival_ns, times_ns, side="right") - 1, 0)
    weights = np.bincount(place, counts, len(arrival_ns)).astype(np.float64)
    if bound.kind == "largest":
        highest = np.zeros(len(arrival_ns))
        np.maximum.at(highest, place, values)
        return Series(highest, weights)
    sums = np.bincount(place, counts * values, len(arrival_ns))
    return Series(sums / np.maximum(weights, 1), weights)


def _gaps(steps: Columns, events: Columns) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return all gaps between tokens (ns), how often each occurs, and when."""
    gaps_ns, counts = step_gaps(steps, 0)
    longer_ns, more = event_gaps(events, 0)
    at_ns, _ = event_gaps({**events, "gap_ns": events["time_ns"]}, 0)
    return (
        np.concatenate([gaps_ns, longer_ns]).astype(np.float64),
        np.concatenate([counts, more]).astype(np.float64),
        np.concatenate([steps["start_ns"], at_ns]),
    )
