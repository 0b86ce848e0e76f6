"""Parameters of a workload and a seed → the request table."""

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

import kvsim.workload.arrivals
import kvsim.workload.lengths
from kvsim.errors import InputError
from kvsim.policy import Parameters, union_of
from kvsim.rng import stream
from kvsim.units import seconds_to_ns
from kvsim.workload.arrivals import ArrivalProcess, Arrivals
from kvsim.workload.files import ReadsFile, content_digest
from kvsim.workload.lengths import LengthLaw
from kvsim.workload.limits import why_too_many
from kvsim.workload.requests import NO_LIMIT, RequestTable

if TYPE_CHECKING:
    AnyArrivals = ArrivalProcess
    AnyLengths = LengthLaw
else:
    AnyArrivals = union_of(kvsim.workload.arrivals)
    AnyLengths = union_of(kvsim.workload.lengths)

_LARGEST_LIMIT_TOKENS = 10**9  # some clients say it for "no limit"


class Workload(Parameters):
    """What the clients send. The same requests are shown to all variants of a scenario."""

    arrivals: AnyArrivals
    """When requests arrive."""
    lengths: AnyLengths
    """How long prompts and answers are."""
    num_requests: int | None = Field(default=None, ge=1, le=10**8)
    """So many requests; null: as many as arrive within `duration_s` or the trace holds."""
    duration_s: float | None = Field(default=None, gt=0, le=1e9)
    """Arrivals stop after it, and it is the horizon of all rates; null: the arrivals decide."""
    n: int = Field(default=1, ge=1, le=1024)
    """Samples of each request (parallel sampling): answers to one prompt."""
    max_tokens: int | Literal["output"] | None = None
    """The client's limit on the answer: a number; "output": exactly the true length, as benchmark
    clients with `ignore_eos` ask for; null: what the context length leaves."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "Workload":
        if self.keeps_recorded_lengths and self.arrivals.kind != "trace":
            raise ValueError("lengths of kind trace need a file, or arrivals of kind trace")
        too_many = why_too_many(self.foreseen_requests)
        if too_many:
            raise ValueError(too_many)
        return self

    @field_validator("max_tokens")
    @classmethod
    def _limit_in_range(cls, limit: int | str | None) -> int | str | None:
        if isinstance(limit, int) and not 1 <= limit <= _LARGEST_LIMIT_TOKENS:
            raise ValueError(f"must be from 1 to {_LARGEST_LIMIT_TOKENS}, not {limit}")
        return limit

    @property
    def foreseen_requests(self) -> float:
        """Mean number of requests, samples included, before any is drawn; 0 if a trace decides."""
        rate_per_s = getattr(self.arrivals, "rate_per_s", 0.0)
        ends = [float(self.num_requests)] if self.num_requests is not None else []
        if self.duration_s is not None:
            ends.append(rate_per_s * self.duration_s)
        return min(ends, default=0.0) * self.n

    @property
    def keeps_recorded_lengths(self) -> bool:
        """Whether requests have the lengths that were recorded with their arrivals."""
        return self.lengths.kind == "trace" and getattr(self.lengths, "file", None) is None


def build_requests(workload: Workload, seed: int, replication: int = 0) -> RequestTable:
    """Draw all requests of a run.

    Arrivals, lengths, and the lengths of further samples each have a stream of their own, so that
    a change in one leaves the others alone.

    Args:
        workload: What to draw.
        seed: Root seed of the scenario.
        replication: Number of the repetition, each with independent draws.

    Raises:
        InputError: If a trace can't be read or is too short, nothing ends the arrivals, or
            there are more requests than a run holds.
    """
    _refuse_many(workload.foreseen_requests)
    duration_ns = None if workload.duration_s is None else seconds_to_ns(workload.duration_s)
    arrivals = workload.arrivals.arrivals(
        workload.num_requests, duration_ns, stream(seed, "arrivals", replication)
    )
    if not len(arrivals.times_ns):
        raise InputError("no request arrives within duration_s")
    _refuse_many(len(arrivals.times_ns) * workload.n)
    recorded = arrivals.recorded if workload.keeps_recorded_lengths else None
    if recorded is not None:
        prompt, output = recorded.prompt_tokens, recorded.output_tokens
    else:
        prompt, output = workload.lengths.lengths_tokens(
            len(arrivals.times_ns), stream(seed, "lengths", replication)
        )
    more = _further_samples(
        workload, output, recorded is not None, stream(seed, "samples", replication)
    )
    return _table(workload, arrivals, prompt, np.column_stack([output, more]))


def file_digests(workload: Workload) -> dict[str, str]:
    """Return the SHA-256 of each file that the workload reads, by its path as written."""
    digests: dict[str, str] = {}
    for part in (workload.arrivals, workload.lengths):
        if isinstance(part, ReadsFile) and part.file is not None:
            digests[part.file] = content_digest(part.path)
    return digests


def _refuse_many(requests: float) -> None:
    too_many = why_too_many(requests)
    if too_many:
        raise InputError(too_many)


def _further_samples(
    workload: Workload, output: NDArray[np.int64], recorded: bool, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the answer lengths of all samples but the first, shape (requests, n - 1).

    They come from the same law, without regard to the prompt: of recorded requests only one
    answer is known.
    """
    shape = (len(output), workload.n - 1)
    if recorded or workload.n == 1:
        return rng.choice(output, size=shape)
    return workload.lengths.lengths_tokens(shape[0] * shape[1], rng)[1].reshape(shape)


def _table(
    workload: Workload,
    arrivals: Arrivals,
    prompt: NDArray[np.int64],
    outputs: NDArray[np.int64],
) -> RequestTable:
    output = outputs.reshape(-1)
    if workload.max_tokens == "output":
        limit = output.copy()
    else:
        limit = np.full(len(output), workload.max_tokens or NO_LIMIT, dtype=np.int64)
    return RequestTable(
        arrival_ns=np.repeat(arrivals.times_ns, workload.n),
        prompt_tokens=np.repeat(prompt, workload.n),
        output_tokens=output,
        max_tokens=limit,
        group=np.repeat(np.arange(len(prompt), dtype=np.int64), workload.n),
        horizon_ns=arrivals.horizon_ns,
    )
