"""The requests of a scenario file, as all its variants will face them."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kvsim.errors import InputError, Problem
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.oversized import refuse_oversized
from kvsim.scenario.schema import BASE
from kvsim.scenario.variant import ResolvedVariant
from kvsim.units import seconds_to_ns
from kvsim.workload.build import build_requests
from kvsim.workload.requests import RequestTable


def draw_requests(
    file: ScenarioFile, variants: Mapping[str, ResolvedVariant], replication: int = 0
) -> RequestTable:
    """Draw the requests that arrive before `max_simulated_s`; refuse what can never be served.

    Each replication is an independent draw of the same workload.

    Raises:
        InputError: A trace can't be read or is too short, no request arrives in time, or a request
            can never be served and the scenario does not say that such are rejected.
    """
    try:
        requests = build_requests(file.base.workload, file.base.seed, replication)
    except InputError as error:
        problems = (
            problem if problem.file else file.located(replace(problem, path="workload"), BASE)
            for problem in error.problems
        )
        raise InputError(*problems) from error
    if file.base.max_simulated_s is not None:
        requests = _cut(requests, seconds_to_ns(file.base.max_simulated_s))
        if not len(requests):
            problem = Problem("no request arrives before it", path="max_simulated_s")
            raise InputError(file.located(problem, BASE))
    refuse_oversized(file, variants, requests)
    return requests


def _cut(requests: RequestTable, until_ns: int) -> RequestTable:
    """Return the requests that arrive before `until_ns`, which ends their horizon."""
    kept = requests.head(int(np.searchsorted(requests.arrival_ns, until_ns)))
    return replace(kept, horizon_ns=min(requests.horizon_ns, until_ns))
