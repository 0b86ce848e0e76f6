"""Day curve: a rate that rises and falls, again every day, with noise on top."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvsim.policy import Parameters, Policy
from kvsim.rng import stream
from kvsim.units import NS_PER_S, seconds_to_ns
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.arrivals._rate_curve import RateCurve
from kvsim.workload.arrivals._renewal import modulated_arrivals
from kvsim.workload.limits import Burstiness, RateOrZero, Seconds, refuse_pieces

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S


class Point(Parameters):
    """The rate at one time of the day: give its `hour` or its `time_s`."""

    hour: float | None = Field(default=None, ge=0, le=1e6)
    """Hours after the period's start, 13.5 for half past one."""
    time_s: Seconds | None = None
    """Seconds after the period's start."""
    rate_per_s: RateOrZero
    """Mean requests per second at that time."""

    @model_validator(mode="after")
    def _one_time(self) -> "Point":
        if (self.hour is None) == (self.time_s is None):
            raise ValueError("give either hour or time_s")
        return self

    @property
    def at_s(self) -> float:
        """The point's time in seconds, however it was given."""
        return self.time_s if self.time_s is not None else (self.hour or 0.0) * _HOUR_S


class DayCurve(Policy):
    """A rate that is linear between its points, and repeats: after the last comes the first again.

    With `burstiness` 1 it's a Poisson process with that rate; other gaps are stretched where the
    rate is low.
    """

    kind: Literal["day_curve"] = "day_curve"
    points: list[Point] = Field(min_length=1, max_length=100_000)
    """Points of the curve, each with `hour` or `time_s`, and `rate_per_s`; times increase."""
    period_s: float = Field(default=_DAY_S, ge=1e-3, le=1e9)
    """The curve repeats after it, by default a day."""
    start_s: Seconds = 0.0
    """The run begins at this time of the curve."""
    rate_scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """2.0: twice the rate that the points say."""
    burstiness: Burstiness = 1.0
    """Below 1: in bursts; 1: Poisson; above 1: more evenly; as for arrivals of kind `gamma`."""
    noise_cv: float = Field(default=0.0, ge=0, le=10)
    """The rate is off the curve by a random factor of mean 1 (lognormal); this is its coefficient
    of variation."""
    noise_period_s: float = Field(default=300.0, ge=1e-3, le=1e9)
    """The factor is drawn anew after each such time."""

    @model_validator(mode="after")
    def _is_a_curve(self) -> "DayCurve":
        times_s, rates = self._points
        if (np.diff(times_s) <= 0).any():
            raise ValueError("the times of points must increase")
        if times_s[-1] >= self.period_s:
            raise ValueError(
                f"all points must lie before period_s ({self.period_s:g} s), where the curve "
                "comes back to its first point"
            )
        if not rates.any():
            raise ValueError("some point needs a rate above 0")
        return self

    @property
    def rate_per_s(self) -> float:
        """Mean rate over a period."""
        times_s, rates = self._points
        closed_s, closed = (
            np.append(times_s, times_s[0] + self.period_s),
            np.append(rates, rates[0]),
        )
        return float(np.trapezoid(closed, closed_s) / self.period_s)

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Draw the arrivals, a longer run's begin with a shorter one's; see `ArrivalProcess`."""
        seed = int(rng.integers(2**32))
        return modulated_arrivals(
            lambda size: rng.gamma(self.burstiness, 1 / self.burstiness, size),
            lambda end_ns: self._curve(seed, end_ns),
            count,
            duration_ns,
        )

    @property
    def _points(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return times and scaled rates of the points."""
        times_s = np.array([point.at_s for point in self.points])
        return times_s, self.rate_scale * np.array([point.rate_per_s for point in self.points])

    def _curve(self, seed: int, end_ns: int) -> RateCurve:
        """Return the curve with its noise until after `end_ns`."""
        bends_ns, noise_ns = self._bends_ns(end_ns), seconds_to_ns(self.noise_period_s)
        if self.noise_cv:
            refuse_pieces(end_ns / noise_ns, "a longer noise_period_s")
            steps_ns = np.arange(1, end_ns // noise_ns + 2) * noise_ns
            bends_ns = np.sort(np.concatenate([bends_ns, steps_ns]), kind="stable")
            bends_ns = bends_ns[np.diff(bends_ns, prepend=0) > 0]  # np.unique took ten times longer
        ends_ns = bends_ns[: int(np.searchsorted(bends_ns, end_ns, side="right")) + 1]
        starts_ns = np.append(0, ends_ns[:-1])
        factors = self._noise(seed, starts_ns // noise_ns)
        return RateCurve(ends_ns, self._rates(starts_ns) * factors, self._rates(ends_ns) * factors)

    def _bends_ns(self, end_ns: int) -> NDArray[np.int64]:
        """Return when the run passes points, in order, from after 0 to beyond `end_ns`."""
        period_ns, start_ns = seconds_to_ns(self.period_s), seconds_to_ns(self.start_s)
        first, last = start_ns // period_ns, (start_ns + end_ns) // period_ns + 1
        refuse_pieces((last - first) * len(self.points), "a longer period_s")
        periods = np.arange(first, last + 1)
        points_ns = np.rint(self._points[0] * NS_PER_S).astype(np.int64)
        bends_ns = (periods[:, None] * period_ns + points_ns).ravel() - start_ns
        return bends_ns[bends_ns > 0]

    def _rates(self, times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the curve's rates at times of the run."""
        phase_ns = (times_ns + seconds_to_ns(self.start_s)) % seconds_to_ns(self.period_s)
        return np.interp(phase_ns / NS_PER_S, *self._points, period=self.period_s)

    def _noise(self, seed: int, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the factor in each of the numbered steps of the noise."""
        if not self.noise_cv:
            return np.ones(len(steps))
        sigma = np.sqrt(np.log1p(self.noise_cv**2))
        normal = stream(seed, "noise").standard_normal(int(steps[-1]) + 1)
        factors: NDArray[np.float64] = np.exp(sigma * normal[steps] - sigma**2 / 2)
        return factors
