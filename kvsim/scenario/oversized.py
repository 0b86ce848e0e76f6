"""Requests that can never be served, found before the run."""

from collections.abc import Iterator, Mapping

import numpy as np

from kvsim.engine.fleet import why_never
from kvsim.engine.reader import RequestReader
from kvsim.errors import InputError, Problem
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.variant import ResolvedVariant
from kvsim.workload.requests import NO_LIMIT, RequestTable

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
    if requests.prompt_tokens.min(initial=1) > 0 and not list(
        _reasons(variant, _largest(requests))
    ):
        return []
    return [
        f"request {row} can never be served: {reason}"
        for row, reason in _reasons(variant, requests)
    ]


def _largest(requests: RequestTable) -> RequestTable:
    """Return a request that is as long as the longest prompt and answer together.

    What it needs is at least what any other does: no policy reserves less for more tokens.
    """

    def single(tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([tokens], dtype=np.int64)

    limits = requests.max_tokens
    return RequestTable(
        arrival_ns=single(0),
        prompt_tokens=single(requests.prompt_tokens.max(initial=1)),
        output_tokens=single(requests.output_tokens.max(initial=1)),
        max_tokens=single(NO_LIMIT if (limits == NO_LIMIT).any() else limits.max(initial=1)),
        group=single(0),
        horizon_ns=0,
    )


def _reasons(variant: ResolvedVariant, requests: RequestTable) -> Iterator[tuple[int, str]]:
    """Yield the row of each request that can never be served, and why."""
    answers: dict[int, int] = {}
    allocator = variant.build_allocator(lambda request: answers[request.number])
    reader = RequestReader(requests, variant.engine.max_model_len, with_contents=False)
    for row in range(len(requests)):
        request, answers[row] = reader.read(row, row, 0)
        reason = why_never(request, variant.engine, allocator)
        if reason:
            yield row, reason
