"""Which targets an SLO may name; knows no tables, so that a scenario is checked quickly."""

from collections.abc import Mapping

from kvsim.errors import InputError, Problem
from kvsim.metrics.catalog import latency_and_statistic


def check_targets(slo: Mapping[str, float]) -> None:
    """Refuse targets that no figure stands for.

    Raises:
        InputError: Names every target that is not understood.
    """
    problems = [
        Problem(
            "not a target; known are max_failed_fraction and (ttft, tpot, itl, e2e, queue)_"
            "(mean, max, p50, p99, ...)_s",
            path=f"slo.{name}",
        )
        for name in slo
        if name != "max_failed_fraction" and latency_and_statistic(name) is None
    ]
    if problems:
        raise InputError(*problems)
