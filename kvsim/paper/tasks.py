"""Simulations in memory: one variant at one load, or the highest rate that it sustains."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import InputError
from kvsim.metrics.latency import FINISHED, request_latency
from kvsim.metrics.summary import Summary
from kvsim.scenario.load import ScenarioFile, load_scenario
from kvsim.study.point import Point, Ready, make_ready, run_point, run_ready
from kvsim.tables import Columns

PRECISION = 0.02  # of a rate that is searched
BRACKET = 1.1  # first steps of a search
LOWER_SHARES = (0.5, 0.8)  # of the rate found
OVERLOAD, OVERLOADED_S = 8.0, 600.0  # times the file's rate, for so long, to guess the capacity


@dataclass(frozen=True, slots=True)
class Task:
    """One call that a process makes; function and arguments can be sent to it."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]

    def run(self) -> Any:
        """Make the call."""
        return self.call(*self.arguments)


def summary_of(path: Path, variant: str, changes: Mapping[str, Any]) -> Summary:
    """Simulate a variant of a scenario file, and return its figures.

    Args:
        path: The scenario file.
        variant: Name of the variant, or `base`.
        changes: Values that differ from the file, as of `Point`.

    Raises:
        InputError: The file is wrong, or such a server would not start.
    """
    return run_point(load_scenario(path), Point(changes, variant)).summary()


def sustained_rate(
    path: Path,
    variant: str,
    changes: Mapping[str, Any],
    normalized_s: float,
    lower_shares: Sequence[float] = LOWER_SHARES,
) -> list[tuple[float, float]]:
    """Search the highest rate at which the mean normalized latency stays within a bound.

    The search begins at what the server completes while far more comes than it can take, and halves
    intervals in the logarithm of the rate. Some lower rates are there for the picture.

    Args:
        path: The scenario file; its arrivals have a `rate_per_s`.
        variant: Name of the variant, or `base`.
        changes: As in `summary_of`.
        normalized_s: The bound, in seconds a token.
        lower_shares: Of the rate that is found: which lower ones are tried, too.

    Returns:
        Each rate that was tried, in requests/s, with the latency there, in rising order.

    Raises:
        InputError: As `summary_of`.
    """
    file = load_scenario(path)
    found: dict[float, float] = {}

    def meets(rate_per_s: float) -> bool:
        at_rate = {**changes, "workload.arrivals.rate_per_s": rate_per_s}
        found[rate_per_s] = normalized_mean_s(make_ready(file, Point(at_rate, variant)))
        return found[rate_per_s] <= normalized_s

    capacity = _capacity_per_s(file, variant, changes)
    low, high = _bracket(capacity, meets)
    while high / low > 1 + PRECISION:
        middle = _rounded((low * high) ** 0.5)
        low, high = (middle, high) if meets(middle) else (low, middle)
    for share in lower_shares:
        meets(_rounded(share * low))
    return sorted(found.items())


def rate_at(trials: list[tuple[float, float]], normalized_s: float) -> float:
    """Return the rate at which latency reaches a bound, between two rates that were tried."""
    below = max((trial for trial in trials if trial[1] <= normalized_s), default=trials[0])
    above = min((trial for trial in trials if trial[1] > normalized_s), default=trials[-1])
    if below[0] >= above[0]:
        return below[0]
    share = np.log(normalized_s / below[1]) / np.log(above[1] / below[1])
    return float(below[0] * (above[0] / below[0]) ** share)


def normalized_mean_s(ready: Ready) -> float:
    """Return the mean normalized latency of all requests of a run that drains."""
    return float(np.nanmean(request_latency(_requests_of(ready), "normalized")))


def _requests_of(ready: Ready) -> Columns:
    return run_ready(ready, keep=["requests"]).tables["requests"]


def _capacity_per_s(file: ScenarioFile, variant: str, changes: Mapping[str, Any]) -> float:
    """Return how many requests/s a server completes that is far beyond what it can take."""
    rate = getattr(file.base.workload.arrivals, "rate_per_s", None)
    if rate is None:
        raise InputError(f"{file.base.name}: arrivals need a rate_per_s to search")
    overload = {
        "workload.arrivals.rate_per_s": OVERLOAD * rate,
        "workload.duration_s": OVERLOADED_S,
        "max_simulated_s": OVERLOADED_S,
    }
    requests = _requests_of(make_ready(file, Point({**changes, **overload}, variant)))
    finished = int((requests["outcome"] == FINISHED).sum())
    return _rounded(max(finished, 1) / OVERLOADED_S)


def _bracket(rate: float, meets: Callable[[float], bool]) -> tuple[float, float]:
    """Return two rates, a step apart, of which only the lower one meets the bound."""
    low = high = rate
    if meets(rate):
        while meets(high := _rounded(BRACKET * low)):
            low = high
    else:
        while not meets(low := _rounded(high / BRACKET)):
            high = low
    return low, high


def _rounded(rate: float) -> float:
    return float(f"{rate:.4g}")
