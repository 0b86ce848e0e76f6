"""Stages: one rate after another, as load generators step through them."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvsim.errors import InputError
from kvsim.policy import Parameters, Policy
from kvsim.units import NS_PER_S, seconds_to_ns
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.arrivals._rate_curve import RateCurve
from kvsim.workload.arrivals._renewal import Gaps, horizon_of, sum_gaps
from kvsim.workload.limits import LATEST_NS, MOST_REQUESTS, Burstiness, RateOrZero, why_too_many

_TINY = float(np.finfo(np.float64).tiny)


class Stage(Parameters):
    """A rate for a while: for `duration_s`, or until `num_requests` have come."""

    rate_per_s: RateOrZero
    """Mean requests per second; 0: a pause."""
    duration_s: float | None = Field(default=None, ge=1e-6, le=1e9)
    """How long the stage lasts."""
    num_requests: int | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    """In place of `duration_s`: as long as so many requests take at this rate."""
    spacing: Literal["constant", "poisson", "gamma"] = "poisson"
    """How requests follow each other."""
    burstiness: Burstiness = 1.0
    """Of spacing `gamma`: below 1 in bursts, above 1 more evenly."""
    ramp: bool = False
    """The rate goes linearly from that of the stage before (0 at first) to `rate_per_s`."""

    @model_validator(mode="after")
    def _has_an_end(self) -> "Stage":
        if (self.duration_s is None) == (self.num_requests is None):
            raise ValueError("give either duration_s or num_requests")
        if self.num_requests is not None and self.rate_per_s == 0:
            raise ValueError("num_requests never come at rate_per_s 0")
        if self.burstiness != 1 and self.spacing != "gamma":
            raise ValueError(f"burstiness has no meaning for spacing {self.spacing}")
        return self

    def length_s(self, first_per_s: float) -> float:
        """Return how long the stage lasts if its rate starts at `first_per_s`."""
        if self.num_requests is None:
            return self.duration_s or 0.0
        return self.num_requests / ((first_per_s + self.rate_per_s) / 2)

    def places(
        self, expected: float, exact_count: bool, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Draw where requests lie in the stage, counted in expected requests; increasing."""
        if exact_count:
            return expected * self._fractions(self.count(expected), rng)
        if self.spacing == "constant":
            return np.arange(np.ceil(expected), dtype=np.float64)
        return sum_gaps(self._gaps(rng), None, round(expected * NS_PER_S)) / NS_PER_S

    def count(self, expected: float) -> int:
        """Return how many requests a benchmark client sends: whole ones of those expected."""
        return self.num_requests or int(expected * (1 + 1e-12))  # 0.29 * 100 is 29

    def _fractions(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw so many places between 0 and 1, in order.

        A Poisson process whose count is given has independent uniform times. Sorted, they are
        sums of exponential gaps over the sum of one gap more, and so for other gaps.
        """
        if self.spacing == "constant":
            return np.arange(count) / max(count, 1)
        gaps = self._gaps(rng)(count + 1) + _TINY  # very bursty gaps round to 0
        sums: NDArray[np.float64] = np.cumsum(gaps) / gaps.sum()
        return sums[:-1]

    def _gaps(self, rng: np.random.Generator) -> Gaps:
        return lambda size: rng.gamma(self.burstiness, 1 / self.burstiness, size)


class Stages(Policy):
    """Stages of a load test, one after another, each drawn afresh.

    The run's horizon is the end of the last stage. A benchmark client sends rate × duration
    requests in each stage, no more and no less; so does this, unless `exact_count` is off. The
    workload's `num_requests` and `duration_s` may end the stages sooner.
    """

    kind: Literal["stages"] = "stages"
    stages: list[Stage] = Field(min_length=1, max_length=10_000)
    """Each with `rate_per_s`, `duration_s` or `num_requests`, and, where the defaults don't fit,
    `spacing` (`poisson`, `constant`, or `gamma` with its `burstiness`) and `ramp`."""
    exact_count: bool = True
    """Each stage has exactly the requests that its rate and duration promise, rounded down; off:
    only their mean is right."""

    @model_validator(mode="after")
    def _can_be_run(self) -> "Stages":
        length_s = sum(length_s for length_s, _, _ in self._timeline)
        if length_s * NS_PER_S > LATEST_NS:
            raise ValueError(f"the stages last {length_s:g} s, more than 1e9 s, the longest run")
        requests = self.rate_per_s * length_s
        too_many = why_too_many(requests)
        if too_many:
            raise ValueError(too_many)
        if requests == 0:
            raise ValueError("some stage needs a rate above 0")
        return self

    @property
    def rate_per_s(self) -> float:
        """Mean rate over all stages."""
        length_s = sum(length_s for length_s, _, _ in self._timeline)
        return sum(part_s * (a + b) / 2 for part_s, a, b in self._timeline) / length_s

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Draw the arrivals, those of a stage don't depend on later ones; see `ArrivalProcess`."""
        parts, end_ns = [], 0
        for stage, (length_s, first_per_s, last_per_s) in zip(
            self.stages, self._timeline, strict=True
        ):
            length_ns = max(seconds_to_ns(length_s), 1)
            curve = RateCurve(
                np.array([length_ns]), np.array([first_per_s]), np.array([last_per_s])
            )
            places = stage.places(float(curve.expected()[-1]), self.exact_count, rng)
            parts.append(end_ns + curve.when_ns(places))
            end_ns += length_ns
        times_ns = np.concatenate(parts)
        self._refuse_more(count, len(times_ns), duration_ns, end_ns)
        if duration_ns is not None:
            end_ns = duration_ns
            times_ns = times_ns[times_ns < end_ns]
        cut = count if count is not None and count < len(times_ns) else None
        return Arrivals(times_ns[:cut], horizon_of(times_ns[:cut], cut, end_ns))

    def _refuse_more(
        self, count: int | None, sent: int, duration_ns: int | None, end_ns: int
    ) -> None:
        """Refuse to draw more than the stages hold."""
        problems = []
        if count is not None and count > sent and self.exact_count:
            problems.append(f"num_requests is {count}, but the stages send {sent} requests")
        if duration_ns is not None and duration_ns > end_ns:
            problems.append(
                f"duration_s is {duration_ns / NS_PER_S:g}, but the stages last "
                f"{end_ns / NS_PER_S:g} s"
            )
        if problems:
            raise InputError(*problems)

    @property
    def _timeline(self) -> list[tuple[float, float, float]]:
        """Return of each stage how long it lasts (s), and its rates at its start and end."""
        spans: list[tuple[float, float, float]] = []
        before_per_s = 0.0
        for stage in self.stages:
            first_per_s = before_per_s if stage.ramp else stage.rate_per_s
            spans.append((stage.length_s(first_per_s), first_per_s, stage.rate_per_s))
            before_per_s = stage.rate_per_s
        return spans
