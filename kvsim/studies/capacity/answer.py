"""What a search for capacity answers: a limit with its interval, how it was found, why it ended."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["met", "missed", "undecided", "unstable", "refused"]
Reason = Literal["precise", "resolution", "replications", "budget", "range", "never"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulation: a value of what was varied, and one replication of the traffic.

    Attributes:
        value: The value that was tried.
        replication: Number of the replication; equal ones face the same draws at every value.
        requests: How many were measured, warm-up and cool-down left out.
        warmup_requests: How many were left out at the beginning.
        growth: Share of what arrives that stays in the system for good: 0 in a steady state.
        means: What each target bounds, by its name: for a percentile the share of requests beyond
            the bound, for a mean the mean in seconds; None where no request has such a value.
        latencies_s: Percentiles of latencies, for the picture: `ttft_p50_s` and others.
        goodput_per_s: Requests/s that finished within every bound.
        refusal: Why such a server would not start; empty if it does.
    """

    value: float
    replication: int
    requests: int
    warmup_requests: int
    growth: float
    means: Mapping[str, float | None]
    latencies_s: Mapping[str, float | None]
    goodput_per_s: float | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """All replications at one value, of the longest runs there: what can be said of it.

    Attributes:
        value: The value that was tried.
        replications: How many there are.
        status: `met` only if the worse end of every target's interval is within its bound, `missed`
            only if the better end of one isn't, `unstable` if the queue still grows at the end.
        worst: The target that is nearest to its bound, or furthest beyond; of an undecided value
            one that is undecided.
        mean: Its mean over what is allowed: 1 at the bound; None: beyond all numbers, or no value.
        low, high: Interval of this mean.
    """

    value: float
    replications: int
    status: Status
    worst: str
    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """The highest load, or another value, that meets the SLO.

    Attributes:
        path: Dotted path of what was varied, as in the scenario.
        unit: Of the value: `requests/s`, `users`, or nothing.
        value: The best estimate of the limit; None if no value meets the SLO.
        low, high: The interval of the limit; None where no value that may be tried bounds it.
        feasible: Its worse end, the value to plan with: there the worse end of each target's
            interval meets the target. None if no value does.
        confidence: Of the interval; None where nothing is random (a recorded trace): the interval
            is the search's resolution then.
        limited_by: The target that sets the limit.
        stopped: Why the search ended.
        sentence: The answer in words.
        notes: What has to be known of it: how long the runs were, what was left out.
        rising: Whether larger values are harder to serve.
        slo: The targets, with the classes that they are of.
        allowed: What each mean may be, by the name of its target; see `Trial.means`.
        tried: Every value that was tried, in rising order.
        trials: Every simulation.
    """

    path: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    feasible: float | None
    confidence: float | None
    limited_by: str | None
    stopped: Reason
    sentence: str
    notes: Sequence[str]
    rising: bool
    slo: Mapping[str, float]
    allowed: Mapping[str, float]
    tried: Sequence[Tried]
    trials: Sequence[Trial]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, ready for JSON."""
        return asdict(self)
