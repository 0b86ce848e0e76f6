"""The result of one benchmark of a server, in kvsim's words, whatever client it comes from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.validate.fields import Fields
from kvsim.workload.limits import MOST_REQUESTS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """What a client sent, and how long the server took.

    Attributes:
        name: Of the file, and the number in it if it holds several.
        model: As the client calls it; None where it doesn't say.
        prompt_tokens: Of each request that was answered, or the mean for each.
        output_tokens: The same of the answers.
        measured_ms: Means by figure: `ttft_mean`, `e2e_mean`, and two that clients call TPOT or ITL
            as they like: `tpot_mean`, the mean over requests of the time from the first to the last
            token by the gaps between, and `itl_mean_reported`, all of that time by all gaps.
        max_concurrency: Most requests in flight; None: no limit.
        rate_per_s: Mean rate at which requests were sent; None: as soon as they may.
        burstiness: Shape of the gamma law of the gaps; 1: Poisson; None: even gaps.
        sent_s: When each request was sent, if the client wrote it down.
        failed: Requests that were not answered.
    """

    name: str
    model: str | None
    prompt_tokens: Ints
    output_tokens: Ints
    measured_ms: Mapping[str, float]
    max_concurrency: int | None = None
    rate_per_s: float | None = None
    burstiness: float | None = 1.0
    sent_s: Floats | None = None
    failed: int = 0

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def load(self) -> str:
        """How hard the client pressed, in words."""
        parts = [f"{self.rate_per_s:g} requests/s"] if self.rate_per_s is not None else []
        if self.max_concurrency is not None:
            parts.append(f"concurrency {self.max_concurrency}")
        return ", ".join(parts) or "all at once"


def equal_lengths(requests: int, prompt_tokens: float, output_tokens: float) -> tuple[Ints, Ints]:
    """Return the lengths of requests of which only the mean is known."""
    prompts = np.full(requests, max(round(prompt_tokens), 1), dtype=np.int64)
    return prompts, np.full(requests, max(round(output_tokens), 1), dtype=np.int64)


def figures_ms(found: Mapping[str, float | None]) -> dict[str, float]:
    """Return the figures that a client has measured; zeros stand for what it could not.

    Where answers were not streamed, the first token seems to come with the last: no TTFT.

    Raises:
        InputError: None at all.
    """
    figures = {name: value for name, value in found.items() if value is not None and value > 0}
    if "e2e_mean" in figures and figures.get("ttft_mean") == figures["e2e_mean"]:
        del figures["ttft_mean"]
    if not figures:
        raise InputError("holds no mean TTFT, TPOT, ITL or E2E latency")
    return figures


def needed(fields: Fields, *names: str) -> list[float]:
    """Return positive numbers that a result can't do without.

    Raises:
        InputError: Some are missing or can't be understood.
    """
    values = {name: fields.positive(name) for name in names}
    missing = [f"{name} is missing" for name, value in values.items() if value is None]
    refuse(fields.unclear or missing)
    return [value for value in values.values() if value is not None]


def refuse(problems: Iterable[str]) -> None:
    """Raise InputError if there are problems."""
    found = list(problems)
    if found:
        raise InputError(*found)


def refuse_count(requests: float) -> int:
    """Return the number of requests; InputError if a simulation can't hold so many."""
    if not 1 <= requests <= MOST_REQUESTS:
        raise InputError(f"holds {requests:g} requests; from 1 to {MOST_REQUESTS} can be simulated")
    return round(requests)
