"""Results that were never simulated, for what is made of them."""

import math

from kvsim.metrics.catalog import METRICS
from kvsim.studies.sweep.answer import Answer, answer_of
from kvsim.studies.sweep.expand import points_of
from kvsim.studies.sweep.outcome import Outcome
from kvsim.studies.sweep.results import Results, collect
from kvsim.studies.sweep.schema import Sweep
from kvsim.study.tasks import Failure

SLO = {"ttft_p99_s": 1.0, "tpot_p99_s": 0.05}


def results_of(found, **parts) -> Results:
    """Return the results of a sweep; `found` gives an outcome or a failure for each point."""
    sweep = Sweep.model_validate({"scenario": "x.yaml", **parts})
    points = points_of(sweep)
    return collect(sweep, points, map(found, points))


def outcome(met: bool | None, cost: float | None, ttft_s: float | None, **more) -> Outcome:
    figures = {
        "usd_per_million_output_tokens": cost,
        "ttft_p99_s": ttft_s,
        "goodput_requests_per_s": 1.0,
        **more,
    }
    assert set(figures) <= set(METRICS)
    return Outcome(met, "A sentence.", {k: v for k, v in figures.items() if v is not None})


def queue(point):
    """Stand in for a server: load and cap decide latency and cost; some points fail."""
    load, cap = point.changes["a.load"], point.changes["b.cap"]
    if cap == 13:
        return Failure("refused", "unlucky <b>\nnumber")
    noise = 1 + 0.01 * math.sin(7 * point.replication + load)
    ttft_s = 0.1 * noise / max(1 - load / (2 * cap), 0.01)
    tpot_s = 0.01 + 0.001 * cap
    met = ttft_s <= 1 and tpot_s <= 0.05
    return outcome(met, 3.0 / load, ttft_s, tpot_p99_s=tpot_s, goodput_requests_per_s=load * noise)


def answer(**parts) -> Answer:
    """Return the answer of a sweep over two axes of such servers."""
    axes = {"a.load": [1, 2, 4, 8, 16], "b.cap": [1, 2, 5, 8, 13, 60]}
    return answer_of(results_of(queue, **({"axes": axes} | parts)), SLO)
