"""What a scenario may say of its traffic."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

import kvsim.workload.arrivals
import kvsim.workload.lengths
import kvsim.workload.prompts
from kvsim.policy import OneOf, Parameters, Policy
from kvsim.workload.arrivals import ArrivalProcess
from kvsim.workload.files import ReadsFile, content_digest
from kvsim.workload.lengths import LengthLaw
from kvsim.workload.limits import MOST_REQUESTS, Seconds, printable, why_too_many
from kvsim.workload.prompts import PromptLaw

if TYPE_CHECKING:
    AnyArrivals = ArrivalProcess
    AnyLengths = LengthLaw
    AnyPrompts = PromptLaw
else:
    AnyArrivals = Annotated[Policy, OneOf(kvsim.workload.arrivals)]
    AnyLengths = Annotated[Policy, OneOf(kvsim.workload.lengths)]
    AnyPrompts = Annotated[Policy, OneOf(kvsim.workload.prompts)]

_LARGEST_LIMIT_TOKENS = 10**9  # some clients say it for "no limit"

Timeout = Annotated[float, Field(ge=1e-6, le=1e9)]
ClassName = Annotated[str, Field(min_length=1, max_length=40), AfterValidator(printable)]


class Retries(Parameters):
    """What a client does after it gave up: it waits, and sends the request again."""

    max_retries: int = Field(ge=1, le=20)
    """Further attempts after the first."""
    backoff_s: Seconds = 1.0
    """Wait before the first retry."""
    multiplier: float = Field(default=2.0, ge=1, le=100)
    """Each further wait is so many times longer."""
    max_backoff_s: Seconds = 60.0
    """Longest wait."""
    jitter: float = Field(default=0.0, ge=0, le=1)
    """Random share of each wait: it is multiplied by a uniform draw from 1 − jitter to 1."""


class ClientParameters(Parameters):
    """What requests are like; a class of traffic may say it differently from the workload."""

    lengths: AnyLengths | None = None
    """How long prompts and answers are; with a `prompts` law that repeats something, the length
    of what is new in a prompt."""
    prompts: AnyPrompts | None = None
    """What prompts have in common, and conversations; null: what a trace recorded of it, else
    nothing."""
    max_tokens: int | Literal["output"] | None = None
    """The client's limit on the answer: a number; "output": exactly the true length, as benchmark
    clients with `ignore_eos` ask for; null: what the context length leaves."""
    timeout_s: Timeout | None = None
    """A client gives up if its answer isn't complete so long after it sent; null: never."""
    retries: Retries | None = None
    """What a client does then; null: nothing, the request has failed."""

    @field_validator("max_tokens")
    @classmethod
    def _limit_in_range(cls, limit: int | str | None) -> int | str | None:
        if isinstance(limit, int) and not 1 <= limit <= _LARGEST_LIMIT_TOKENS:
            raise ValueError(f"must be from 1 to {_LARGEST_LIMIT_TOKENS}, not {limit}")
        return limit


class TrafficClass(ClientParameters):
    """A class of traffic: what it doesn't say is as in the workload (null is said, too)."""

    weight: float | None = Field(default=None, gt=0, le=1e6)
    """Its part of the workload's sessions, relative to the other classes' weights; null: 1."""
    arrivals: AnyArrivals | None = None
    """Arrivals of its own, beside those of the workload, instead of a weight."""
    num_requests: int | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    """So many requests; only with arrivals of its own."""
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    """Smaller is served first, if the engine's scheduling_policy is priority."""

    @model_validator(mode="after")
    def _comes_one_way(self) -> Self:
        if self.arrivals is not None and self.weight is not None:
            raise ValueError("has arrivals of its own: a weight would mean nothing")
        if self.arrivals is None and self.num_requests is not None:
            raise ValueError("num_requests needs arrivals of its own; say a weight instead")
        return self


class Workload(ClientParameters):
    """What the clients send. The same requests are shown to all variants of a scenario."""

    arrivals: AnyArrivals | None = None
    """When sessions begin: requests, unless `prompts` says that they are conversations."""
    classes: dict[ClassName, TrafficClass] = Field(default_factory=dict)
    """Classes of traffic by name; results are told for each."""
    num_requests: int | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    """So many requests, further turns of conversations included; null: as many as arrive within
    `duration_s` or the trace holds."""
    duration_s: float | None = Field(default=None, ge=1e-9, le=1e9)
    """Arrivals stop after it, and it is the horizon of all rates; null: the arrivals decide."""
    n: int = Field(default=1, ge=1, le=1024)
    """Samples of each request (parallel sampling): answers to one prompt."""
    samples_alike: bool = False
    """All samples of a request are as long as the first, as where a benchmark sets their length
    (ignore_eos and one max_tokens); false: each has a length of its own."""
    beam_width: int = Field(default=1, ge=1, le=64)
    """Candidates of beam search: each request is decoded as so many sequences of the same length,
    each with a row of its own in the results; 1: it samples."""
    beam_turnover: float = Field(default=1.0, ge=0, le=1)
    """In beam search, the probability that a candidate goes on from any candidate, all alike, and
    not from itself. Scores aren't known, so this is an assumption: try 0.25 to 1."""
    max_concurrency: int | None = Field(default=None, ge=1, le=10**6)
    """Most requests in flight, as `vllm bench serve --max-concurrency`: others wait at the client,
    and their latencies start when they are sent; null: no limit."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        sources = self.sources()
        if sources[0].name and (self.arrivals is not None or self.num_requests is not None):
            raise ValueError(
                "all classes have arrivals of their own: arrivals and num_requests of the "
                "workload would mean nothing"
            )
        for source in sources:
            for member in source.members:
                wrong = _why_not(self, source, member)
                if wrong:
                    raise ValueError(f"class {member.name}: {wrong}" if member.name else wrong)
        if self.n > 1 and self.beam_width > 1:
            raise ValueError("n and beam_width: a request samples or searches; leave one out")
        too_many = why_too_many(self.foreseen_requests)
        if too_many:
            raise ValueError(too_many)
        return self

    @model_serializer(mode="wrap")
    def _leave_out_unused(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what only beam search, or samples of equal length, make a difference to."""
        written: dict[str, Any] = dump(self)
        unused = set() if self.samples_alike else {"samples_alike"}
        unused |= set() if self.beam_width > 1 else {"beam_width", "beam_turnover"}
        return {name: value for name, value in written.items() if name not in unused}

    @property
    def samples(self) -> int:
        """Sequences of each request: answers to one prompt, or candidates for one."""
        return max(self.n, self.beam_width)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; none if all traffic is alike."""
        return tuple(self.classes)

    def sources(self) -> list["Source"]:
        """Return who sends: the workload's own arrivals first, then those of classes."""
        if not self.classes:
            return [Source("", self.arrivals, self.num_requests, (Member("", 0, 1.0, 0, self),))]
        members = [
            Member(name, index, traffic.weight or 1.0, traffic.priority, _filled(traffic, self))
            for index, (name, traffic) in enumerate(self.classes.items())
        ]
        common = tuple(m for m in members if self.classes[m.name].arrivals is None)
        shared = [Source("", self.arrivals, self.num_requests, common)] if common else []
        return shared + [
            Source(m.name, own.arrivals, own.num_requests, (m,))
            for m in members
            if (own := self.classes[m.name]).arrivals is not None
        ]

    @property
    def foreseen_requests(self) -> float:
        """Mean number of requests, samples included, before any is drawn; 0 if a trace decides."""
        total = 0.0
        for source in self.sources():
            rate_per_s = getattr(source.arrivals, "rate_per_s", 0.0)
            ends = [float(source.num_requests)] if source.num_requests is not None else []
            if self.duration_s is not None:
                ends.append(rate_per_s * self.duration_s)
            total += min(ends, default=0.0) * self.samples
        return total

    def policies(self) -> Iterator[object]:
        """Yield all arrival processes, length laws and prompt laws."""
        yield from (self.arrivals, self.lengths, self.prompts)
        for traffic in self.classes.values():
            yield from (traffic.arrivals, traffic.lengths, traffic.prompts)


@dataclass(frozen=True, slots=True)
class Member:
    """A class within its source: its parameters, with what it doesn't say from the workload."""

    name: str
    index: int
    weight: float
    priority: int
    parameters: ClientParameters

    @property
    def keeps_recorded_lengths(self) -> bool:
        """Whether requests have the lengths that were recorded with their arrivals."""
        lengths = self.parameters.lengths
        recorded = lengths is not None and lengths.kind == "trace"
        return recorded and getattr(lengths, "file", None) is None


@dataclass(frozen=True, slots=True)
class Source:
    """Arrivals, and the classes that share them."""

    name: str
    arrivals: AnyArrivals | None
    num_requests: int | None
    members: tuple[Member, ...]


def files_read(workload: Workload) -> dict[str, Path]:
    """Return where each file lies that the workload reads, by its path as written."""
    readers = (part for part in workload.policies() if isinstance(part, ReadsFile))
    return {part.file: part.path for part in readers if part.file is not None}


def file_digests(workload: Workload) -> dict[str, str]:
    """Return the SHA-256 of each file that the workload reads, by its path as written."""
    return {name: content_digest(path) for name, path in files_read(workload).items()}


def _filled(traffic: TrafficClass, workload: Workload) -> ClientParameters:
    """Return what a class says, and what the workload says where it is silent."""
    values = {
        name: getattr(traffic if name in traffic.model_fields_set else workload, name)
        for name in ClientParameters.model_fields
    }
    return ClientParameters.model_construct(**values)


def _why_not(workload: Workload, source: Source, member: Member) -> str:
    """Say why a class can't be drawn; nothing if it can."""
    if source.arrivals is None:
        return "arrivals are missing: say when requests come"
    if member.parameters.lengths is None:
        return "lengths are missing: say how long prompts and answers are"
    if member.keeps_recorded_lengths and source.arrivals.kind != "trace":
        return "lengths of kind trace need a file, or arrivals of kind trace"
    if source.arrivals.kind == "closed_loop" and workload.max_concurrency is not None:
        return "a closed loop has at most `users` requests in flight: leave out max_concurrency"
    if member.parameters.retries is not None and member.parameters.timeout_s is None:
        return "retries follow a timeout: set timeout_s"
    return ""
