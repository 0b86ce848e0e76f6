"""Latencies of requests and of the gaps between tokens, and their statistics."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics import Figures
from kvsim.metrics.catalog import STATISTICS, latency_and_statistic
from kvsim.metrics.sample import Sample
from kvsim.metrics.uncertainty import Intervals, interval_of
from kvsim.tables import OUTCOMES, Columns
from kvsim.units import NS_PER_S

FINISHED = OUTCOMES.index("finished")
REQUEST_LATENCIES = ("ttft", "tpot", "e2e", "normalized", "queue")

# By latency, by the name of the statistic: seconds, None if there are no values.
Statistics = Mapping[str, Mapping[str, float | None]]


def request_latency(requests: Columns, name: str) -> NDArray[np.float64]:
    """Return one of `REQUEST_LATENCIES` of each request in seconds, NaN where it has none.

    The array has shape (requests,), in the order of the rows; warm-up is not cut.
    """
    if name == "ttft":
        first_ns = requests["first_token_ns"]
        return _seconds(first_ns - requests["arrival_ns"], first_ns >= 0)
    if name == "queue":
        admitted_ns = requests["admitted_ns"]
        return _seconds(admitted_ns - requests["queued_ns"], admitted_ns >= 0)
    finished = requests["outcome"] == FINISHED
    if name in {"e2e", "normalized"}:
        e2e_s = _seconds(requests["finish_ns"] - requests["arrival_ns"], finished)
        return e2e_s if name == "e2e" else e2e_s / np.maximum(requests["output_tokens"], 1)
    more_tokens = requests["output_tokens"] - 1
    decode_ns = requests["finish_ns"] - requests["first_token_ns"]
    return _seconds(decode_ns, finished & (more_tokens > 0)) / np.maximum(more_tokens, 1)


def _seconds(duration_ns: NDArray[np.int64], exists: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.where(exists, duration_ns / NS_PER_S, np.nan)


def by_arrival(requests: Columns, warmup_ns: int = 0) -> NDArray[np.int64]:
    """Return the rows of the requests that arrive after the warm-up, in the order in which."""
    arrival_ns = requests["arrival_ns"]
    order = np.argsort(arrival_ns, kind="stable")
    return order[np.searchsorted(arrival_ns[order], warmup_ns) :]


def request_statistics(
    requests: Columns, warmup_ns: int, slo: Mapping[str, float] | None
) -> tuple[dict[str, dict[str, float | None]], Intervals]:
    """Return the statistics of all latencies of requests, and how sure they are.

    One latency at a time is in memory. Intervals are by the names of figures, `ttft_p99_s`.
    """
    found, intervals = {}, {}
    order = by_arrival(requests, warmup_ns)
    for latency in REQUEST_LATENCIES:
        series = request_latency(requests, latency)[order]
        series = series[~np.isnan(series)]
        sample = Sample.of(series)
        found[latency] = {name: sample.statistic(name) for name in asked(latency, slo)}
        for name, value in found[latency].items():
            interval = interval_of(name, value, series, sample.values)
            if interval is not None:
                intervals[f"{latency}_{name}_s"] = interval
    return found, intervals


def asked(latency: str, slo: Mapping[str, float] | None) -> Sequence[str]:
    """Return which statistics of a latency are told: those of the catalog, and of targets."""
    parts = (latency_and_statistic(target) or ("", "") for target in slo or {})
    return list(dict.fromkeys((*STATISTICS, *(name for of, name in parts if of == latency))))


def latency_figures(statistics: Statistics) -> Figures:
    """Return the statistics of each latency under the names of the catalog."""
    return {
        f"{latency}_{name}_s": values[name]
        for latency, values in statistics.items()
        for name in STATISTICS
    }
