"""Single-step requests on servers of batch one: M/M/c and M/D/1, exactly and by their formulas.

A request of one output token is one step that lasts as long as its prompt is. `simulate` gives what
the engine would, bit for bit, by the recursions of Lindley and of Kiefer and Wolfowitz.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvsim.metrics import RunContext
from kvsim.metrics.latency import FINISHED
from kvsim.rng import stream
from kvsim.studies.capacity.observe import Observed, observe
from kvsim.studies.capacity.simulation import Ask, Question
from kvsim.workload.arrivals.poisson import Poisson
from tests.engine.oracles import erlang_c

TOKEN_NS = 100_000
MEAN_TOKENS = 10_000  # a service lasts a second on average


def exponential_rows(count: int = 20_000) -> np.ndarray:
    """Prompt lengths whose empirical law is the exponential one: middles of its quantiles."""
    middles = (np.arange(count) + 0.5) / count
    return np.maximum(np.rint(-np.log1p(-middles) * MEAN_TOKENS), 1).astype(np.int64)


@dataclass(frozen=True)
class Queue:
    """c servers behind one queue; services all alike, or exponential as rows of a file say."""

    servers: int
    rows: tuple[int, ...] = ()

    @cached_property
    def _rows(self) -> np.ndarray:
        return np.array(self.rows, dtype=np.int64)

    def services_ns(self, seed: int, replication: int, count: int) -> np.ndarray:
        rng = stream(seed, "lengths", replication)
        if not self.rows:
            return np.full(count, MEAN_TOKENS * TOKEN_NS)
        return self._rows[rng.integers(0, len(self._rows), count)] * TOKEN_NS

    def waits_ns(self, arrivals: np.ndarray, services: np.ndarray) -> np.ndarray:
        """Waits of runs of equal length, one a row."""
        if self.servers == 1:  # Lindley, with the minimum of the sums so far instead of a loop
            before = np.cumsum(services, axis=1) - services
            return before - arrivals + np.maximum.accumulate(arrivals - before, axis=1)
        return _kiefer_wolfowitz(arrivals, services, self.servers)

    def simulate(self, question: Question, seed: int, asks: Sequence[Ask]) -> list[Observed]:
        if not asks:
            return []
        drawn = [
            Poisson(rate_per_s=ask.value).arrivals(
                ask.requests, None, stream(seed, "arrivals", ask.replication)
            )
            for ask in asks
        ]
        arrivals = np.array([one.times_ns for one in drawn])
        services = np.array([self.services_ns(seed, ask.replication, ask.requests) for ask in asks])
        admitted = arrivals + self.waits_ns(arrivals, services)
        return [
            _observed(question, one.horizon_ns, *rows)
            for one, *rows in zip(drawn, arrivals, admitted, admitted + services, strict=True)
        ]

    def beyond(self, rate_per_s: float, wait_s: float) -> float:
        """Probability that a request waits longer."""
        if self.rows:
            decay = self.servers - rate_per_s
            return erlang_c(self.servers, rate_per_s) * math.exp(-decay * wait_s)
        return 1 - _waits_md1(rate_per_s, wait_s)

    def wait_s(self, rate_per_s: float, share: float) -> float:
        """The wait that this share of the requests exceeds."""
        return _root(lambda wait: share - self.beyond(rate_per_s, wait), 0.0, 200.0)


def _observed(question, horizon_ns, arrivals, admitted, finished) -> Observed:
    ones = np.ones_like(arrivals)
    requests = {
        "class": 0 * ones,
        "arrival_ns": arrivals,
        "queued_ns": arrivals,
        "admitted_ns": admitted,
        "first_token_ns": finished,
        "finish_ns": finished,
        "output_tokens": ones,
        "outcome": FINISHED * ones,
    }
    context = RunContext(horizon_ns, 0, 0.0, 1, slo=question.file.base.slo)
    return observe({"requests": requests}, question.bounds, context, question.steady)


def _kiefer_wolfowitz(arrivals: np.ndarray, services: np.ndarray, servers: int) -> np.ndarray:
    """Waits behind one queue, of all rows at once: each takes the server that is free first."""
    free = [np.zeros(len(arrivals), dtype=np.int64) for _ in range(servers)]  # in rising order
    waits = np.empty_like(arrivals.T)
    for place, (arrival, service) in enumerate(
        zip(arrivals.T.copy(), services.T.copy(), strict=True)
    ):
        start = np.maximum(arrival, free[0])
        waits[place] = start - arrival
        end = start + service
        for server in range(servers - 1):
            free[server] = np.minimum(free[server + 1], end)
            end = np.maximum(free[server + 1], end)
        free[-1] = end
    return waits.T


def _waits_md1(rate: float, wait: float) -> float:
    """P(W <= wait) of M/D/1 with services of a second (Erlang 1909), in exact fractions.

    The terms alternate and are far larger than their sum.
    """
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 60
        r, w = Decimal(rate), Decimal(wait)
        terms = (
            (r * (k - w)) ** k / math.factorial(k) * (r * (w - k)).exp()
            for k in range(int(wait) + 1)
        )
        return float((1 - r) * sum(terms, Decimal(0)))


def _root(rising, low, high):
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
