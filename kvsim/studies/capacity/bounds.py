"""The targets of an SLO as bounds on means, since means have intervals.

A percentile of a sample is biased and its interval is hard to tell; that p99 is within its bound is
the same as that at most 1 % of the requests are beyond it, and a share is a mean.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError, Problem
from kvsim.metrics.catalog import latency_and_statistic
from kvsim.metrics.latency import FINISHED, request_latency
from kvsim.metrics.slo import meets_bounds, request_bounds_s
from kvsim.scenario.schema import Scenario
from kvsim.tables import Columns

Kind = Literal["beyond", "mean", "largest", "failed", "not_good", "growth"]
GROWTH = "steady queue"
_MOST_GROWTH = 0.01  # of what arrives may stay: a finite run of a steady queue moves by that much


@dataclass(frozen=True, slots=True)
class Bound:
    """A mean that may reach a value, and no more.

    Attributes:
        name: The target as in the SLO; with its class before it, if it is of one.
        kind: `beyond`: the share of requests (ITL: of gaps) with a latency beyond `limit_s`;
            `mean`, `largest`: of a latency; `failed`: the share of requests that did not finish;
            `not_good`: the share of those that did not finish within all bounds; `growth`: the
            share of what arrives that stays in the system for good.
        allowed: The most that the mean may be: a share, or seconds for `mean` and `largest`.
        latency: Which latency is meant; empty where none is.
        limit_s: Of a single request, for `beyond`.
        class_code: Which class of traffic it is about; None: all.
        slo: The targets that a good request keeps, for `not_good`.
    """

    name: str
    kind: Kind
    allowed: float
    latency: str = ""
    limit_s: float = 0.0
    class_code: int | None = None
    slo: tuple[tuple[str, float], ...] = ()

    def values(self, requests: Columns) -> NDArray[np.float64]:
        """Return what is averaged, of each request, NaN where there is none; shape (requests,).

        ITL has values of gaps and not of requests: see `kvsim.studies.capacity.observe`.
        """
        found: NDArray[np.float64]
        if self.kind == "failed":
            found = (requests["outcome"] != FINISHED).astype(np.float64)
        elif self.kind == "not_good":
            found = (~meets_bounds(requests, dict(self.slo))).astype(np.float64)
        else:
            found = request_latency(requests, self.latency)
            if self.kind == "beyond":
                found = np.where(np.isnan(found), np.nan, found > self.limit_s)
        if self.class_code is not None:
            found = np.where(requests["class"] == self.class_code, found, np.nan)
        return found


def bounds_of(
    scenario: Scenario, goodput: float | None = None, steady: bool = True
) -> Sequence[Bound]:
    """Return the bounds that the targets of a scenario and of its classes are.

    Args:
        scenario: Has the targets.
        goodput: The share of requests that must keep all bounds, instead of the targets that bind
            single requests.
        steady: Whether the answer is about a steady state: then its queue must not grow.

    Raises:
        InputError: There is no target, or one that means nothing in a steady state.
    """
    names = list(scenario.workload.class_names)
    parts: list[tuple[str, int | None, Mapping[str, float]]] = [("", None, scenario.slo or {})]
    parts += [(f"{name}: ", names.index(name), slo) for name, slo in scenario.class_slos.items()]
    found = [bound for prefix, code, slo in parts for bound in _of_slo(slo, prefix, code, goodput)]
    if not found:
        raise InputError(
            Problem("say what a feasible load has to meet, such as ttft_p99_s", path="slo")
        )
    largest = [bound.name for bound in found if bound.kind == "largest" and steady]
    if largest:
        raise InputError(
            *(
                Problem(
                    "the largest of all values grows with the length of a run: name a percentile, "
                    "such as p99.9",
                    path=f"slo.{name}",
                )
                for name in largest
            )
        )
    return [*found, Bound(GROWTH, "growth", _MOST_GROWTH)] if steady else found


def _of_slo(
    slo: Mapping[str, float], prefix: str, code: int | None, goodput: float | None
) -> Iterator[Bound]:
    if goodput is not None and request_bounds_s(slo):
        name, most = f"{prefix}goodput", 1 - goodput
        yield Bound(name, "not_good", most, class_code=code, slo=tuple(slo.items()))
    for target, bound in slo.items():
        name = prefix + target
        latency, statistic = latency_and_statistic(target) or ("", "")
        if not latency:
            yield Bound(name, "failed", bound, class_code=code)
        elif statistic == "mean":
            yield Bound(name, "mean", bound, latency, class_code=code)
        elif goodput is not None and latency != "itl":
            continue
        elif statistic in {"max", "p100"}:
            yield Bound(name, "largest", bound, latency, class_code=code)
        else:
            beyond = round(1 - float(statistic[1:]) / 100, 12)
            yield Bound(name, "beyond", beyond, latency, bound, class_code=code)
