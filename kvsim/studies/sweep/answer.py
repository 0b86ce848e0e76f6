"""What a sweep says: how many points meet the SLO, which is the cheapest, what is on the front."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.catalog import METRICS, format_figure
from kvsim.studies.sweep.names import point_text
from kvsim.studies.sweep.results import Results

COST = "usd_per_million_output_tokens"
_WITHOUT_PRICE = "output_tokens_per_s"
_GOODPUT, _WITHOUT_SLO = "goodput_requests_per_s", "requests_per_s"
_LATENCIES = ("ttft_p99_s", "tpot_p99_s")


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The answer of a sweep.

    Attributes:
        results: On which it rests.
        cost: Metric by which points are ranked: dollars for a million output tokens, or output
            throughput where no price is known.
        latencies: Metrics of latency that are shown, the first the one weighed against the cost.
        rate: Metric of what is served: goodput, or throughput where there is no SLO.
        eligible: Settings that meet the SLO in all replications; where there is no SLO, those that
            ran. Shape (settings,).
        best: The cheapest eligible setting, None if there is none.
        front: Eligible settings that none other beats in both cost and latency, by rising latency.
    """

    results: Results
    cost: str
    latencies: tuple[str, ...]
    rate: str
    eligible: NDArray[np.bool_]
    best: int | None
    front: list[int]

    @property
    def metrics(self) -> list[str]:
        """The metrics that are shown."""
        return [self.cost, *self.latencies, self.rate]

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        total, failed = len(self.eligible), int(self.results.failed.sum())
        if failed == total:
            return f"None of {_points(total)} could be simulated"
        if not self.results.is_judged:
            ran = f"{total - failed:,} of {_points(total)} ran; no SLO is set"
            return f"{ran}; {self._best_words()}"
        count = int(self.eligible.sum())
        if self.best is None:
            return f"None of {_points(total)} meets the SLO{self._closest_words()}"
        verb = "meets" if count == 1 else "meet"
        several = self.results.sweep.replications
        always = f" in all {several} replications" if several > 1 else ""
        return f"{count:,} of {_points(total)} {verb} the SLO{always}; {self._best_words()}"

    def _best_words(self) -> str:
        if self.best is None:
            return "none has a cost to be compared"
        where = point_text(self.results.sweep, self.results.settings[self.best])
        value = format_figure(self.cost, self.results.mean(self.best, self.cost))
        if self.cost == COST:
            return f"the cheapest costs {value} per million output tokens, at {where}"
        return f"the fastest generates {value}, at {where}"

    def _closest_words(self) -> str:
        attained = self.results.means("slo_attainment_fraction")
        if np.isnan(attained).all():
            return ""
        closest = int(np.nanargmax(attained))
        where = point_text(self.results.sweep, self.results.settings[closest])
        share = format_figure("slo_attainment_fraction", float(attained[closest]))
        return f"; the closest keeps its bounds for {share} of the requests, at {where}"


def answer_of(results: Results, slo: Mapping[str, float] | None) -> Answer:
    """Judge the results.

    Args:
        results: Of all points.
        slo: Targets of the scenario; its latencies are shown.
    """
    cost = _WITHOUT_PRICE if np.isnan(results.of(COST)).all() else COST
    targets = tuple(name for name in slo or () if name in METRICS and name.endswith("_s"))
    latencies = targets[:2] or _LATENCIES
    rate = _GOODPUT if results.is_judged else _WITHOUT_SLO
    eligible = results.all_met if results.is_judged else ~results.failed
    front = _front(results, cost, latencies[0], eligible)
    best = _best(results, cost, latencies[0], eligible)
    return Answer(results, cost, latencies, rate, eligible, best, front)


def ranked(answer: Answer) -> list[int]:
    """Return all settings: eligible ones first, the cheapest of them before; failed ones last."""
    results = answer.results
    cost, failed = _lower_is_better(results, answer.cost), results.failed
    return [int(i) for i in np.lexsort((np.nan_to_num(cost, nan=np.inf), failed, ~answer.eligible))]


def _lower_is_better(results: Results, metric: str) -> NDArray[np.float64]:
    means = results.means(metric)
    return -means if METRICS[metric].better == "higher" else means


def _best(results: Results, cost: str, latency: str, eligible: NDArray[np.bool_]) -> int | None:
    costs, latencies = _lower_is_better(results, cost), results.means(latency)
    known = np.flatnonzero(eligible & ~np.isnan(costs))
    order = np.lexsort((np.nan_to_num(latencies[known], nan=np.inf), costs[known]))
    return int(known[order[0]]) if len(known) else None


def _front(results: Results, cost: str, latency: str, eligible: NDArray[np.bool_]) -> list[int]:
    """Return the settings that are not beaten in both; of equal ones the first."""
    costs, latencies = _lower_is_better(results, cost), results.means(latency)
    known = np.flatnonzero(eligible & ~np.isnan(costs) & ~np.isnan(latencies))
    front: list[int] = []
    lowest = np.inf
    for place in known[np.lexsort((costs[known], latencies[known]))]:
        if costs[place] < lowest:
            lowest = costs[place]
            front.append(int(place))
    return front


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count:,} points"
