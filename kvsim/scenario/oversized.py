"""Requests that can never be served, found before the run."""

from collections.abc import Mapping

from kvsim.engine.clients import RequestReader
from kvsim.engine.cluster import why_never
from kvsim.errors import InputError, Problem
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.variant import ResolvedVariant
from kvsim.workload.requests import RequestTable

_LISTED = 10


def refuse_oversized(
    file: ScenarioFile, variants: Mapping[str, ResolvedVariant], requests: RequestTable
) -> None:
    """Refuse requests that can never be served, where the scenario says so.

    Raises:
        InputError: Lists the first such requests of each variant and counts the others; variants
            that would only repeat the base are left out.
    """
    problems: list[Problem] = []
    told: list[list[str]] = []
    for name, variant in variants.items():
        if variant.scenario.oversized_requests == "refuse":
            texts = _oversized(variant, requests)
            if texts in told:
                continue
            told.append(texts)
            found = [Problem(text) for text in texts]
            more = len(found) - _LISTED
            hint = f"and {more} more; " if more > 0 else ""
            if found:
                hint += "'oversized_requests: reject' lets them fail as on a server"
                found = [*found[:_LISTED], Problem(hint, path="oversized_requests")]
            problems += [file.located(problem, name) for problem in found]
    if problems:
        raise InputError(*problems)


def _oversized(variant: ResolvedVariant, requests: RequestTable) -> list[str]:
    """Return a sentence for each request that can never be served."""
    answers: dict[int, int] = {}
    allocator = variant.build_allocator(lambda request: answers[request.number])
    found = []
    reader = RequestReader(requests, variant.engine.max_model_len, with_contents=False)
    for row in range(len(requests)):
        request, answer_tokens = reader.read(row, row, 0)
        answers[request.number] = answer_tokens
        reason = why_never(request, variant.engine, allocator)
        if reason:
            found.append(f"request {request.number} can never be served: {reason}")
    return found
