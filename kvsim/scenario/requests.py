"""The requests of a scenario file, as all its variants will face them."""

from collections.abc import Mapping
from dataclasses import replace

from kvsim.errors import InputError
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.oversized import refuse_oversized
from kvsim.scenario.schema import BASE
from kvsim.scenario.variant import ResolvedVariant
from kvsim.workload.build import build_requests
from kvsim.workload.requests import RequestTable


def draw_requests(file: ScenarioFile, variants: Mapping[str, ResolvedVariant]) -> RequestTable:
    """Draw the requests, and refuse those that can never be served.

    Raises:
        InputError: A trace can't be read or is too short, or a request can never be served and
            the scenario does not say that such are rejected.
    """
    try:
        requests = build_requests(file.base.workload, file.base.seed)
    except InputError as error:
        problems = (
            problem if problem.file else file.located(replace(problem, path="workload"), BASE)
            for problem in error.problems
        )
        raise InputError(*problems) from error
    refuse_oversized(file, variants, requests)
    return requests
