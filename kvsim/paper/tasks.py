"""Simulations in memory: one variant at one load, or the highest rate that it sustains."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.metrics.latency import FINISHED, request_latency
from kvsim.metrics.summary import Summary, summarize
from kvsim.policy import Parameters
from kvsim.scenario.load import ScenarioFile, load_scenario
from kvsim.scenario.resolve import resolve
from kvsim.scenario.variant import ResolvedVariant
from kvsim.simulate import run_context, simulate
from kvsim.tables import TABLES, Columns
from kvsim.units import seconds_to_ns
from kvsim.workload.build import build_requests
from kvsim.workload.requests import RequestTable

Ints = NDArray[np.int64]
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


@dataclass(slots=True)
class Tables:
    """Takes the rows of a run as they come, and keeps those of all tables that aren't skipped."""

    skipped: tuple[str, ...] = ()
    chunks: dict[str, list[Ints]] = field(default_factory=lambda: {name: [] for name in TABLES})

    def __call__(self, table: str, rows: Ints) -> None:
        """Take rows of a table; see `kvsim.engine.recorder.Sink`."""
        if table not in self.skipped:
            self.chunks[table].append(rows.copy())

    def columns(self, table: str) -> Columns:
        """Return a table by its columns."""
        chunks, columns = self.chunks[table], TABLES[table]
        rows = np.concatenate(chunks) if chunks else np.empty((0, len(columns)), np.int64)
        return {column.name: rows[:, place] for place, column in enumerate(columns)}


def summary_of(path: Path, variant: str, changes: Mapping[str, Any]) -> Summary:
    """Simulate a variant of a scenario file, and return its figures.

    Args:
        path: The scenario file.
        variant: Name of the variant, or `base`.
        changes: Dotted path of a parameter → its value here, as `engine.block_size`.

    Raises:
        InputError: The file is wrong, or such a server would not start.
    """
    resolved, requests = ready(load_scenario(path), variant, changes)
    tables = Tables()
    simulated = simulate(resolved, requests, tables)
    requests_table, steps, events = (tables.columns(name) for name in TABLES)
    context = run_context(resolved, requests, simulated)
    return summarize(requests_table, steps, events, context)


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
        found[rate_per_s] = normalized_mean_s(*ready(file, variant, at_rate))
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


def normalized_mean_s(variant: ResolvedVariant, requests: RequestTable) -> float:
    """Return the mean normalized latency of all requests of a run that drains."""
    tables = Tables(skipped=("steps",))
    simulate(variant, requests, tables)
    latencies = request_latency(tables.columns("requests"), "normalized")
    return float(np.nanmean(latencies))


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
    resolved, requests = ready(file, variant, {**changes, **overload})
    tables = Tables(skipped=("steps",))
    simulate(resolved, requests, tables)
    finished = int((tables.columns("requests")["outcome"] == FINISHED).sum())
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


def ready(
    file: ScenarioFile, variant: str, changes: Mapping[str, Any]
) -> tuple[ResolvedVariant, RequestTable]:
    """Return a variant with changes, and the requests that it faces."""
    if variant not in file.variants:
        raise InputError(f"{file.base.name}: there is no variant {variant!r}")
    scenario: Any = file.variants[variant]
    for name, value in changes.items():
        scenario = _changed(scenario, name.split("."), value)
    requests = build_requests(scenario.workload, scenario.seed)
    until_s = scenario.max_simulated_s
    if until_s is not None:
        until_ns = seconds_to_ns(until_s)
        kept = requests.head(int(np.searchsorted(requests.arrival_ns, until_ns)))
        requests = replace(kept, horizon_ns=min(requests.horizon_ns, until_ns))
    return resolve(scenario, variant, file.base_dir), requests


def _changed(part: Parameters, path: list[str], value: Any) -> Parameters:
    """Return parameters in which the one at a path has another value."""
    name, *rest = path
    inner = _changed(getattr(part, name), rest, value) if rest else value
    return part.model_copy(update={name: inner})
