"""Recorded schedules as files hold them; the format is described in `docs/conformance.md`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvsim.errors import InputError, Problem
from kvsim.memory.kv_groups import KVGroup
from kvsim.units import NS_PER_US
from kvsim.workload.files import decompressed, told_by_name

_MOST = 1 << 40  # of anything counted: more is a mistake, and no array holds it
_LONGEST_PROMPT = 1 << 27
_MOST_BLOCKS = 1 << 24
_LATEST_MS = 1e12
_LISTED = 20

Count = Annotated[int, Field(ge=0, le=_MOST)]
Number = Annotated[int, Field(ge=-_MOST, le=_MOST)]
Ms = Annotated[float, Field(ge=0, le=_LATEST_MS, allow_inf_nan=False)]
Segment = tuple[Number, Annotated[int, Field(ge=0, le=_LONGEST_PROMPT)]]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, strict=False)


class StepFormula(_Part):
    """How long a step lasts: T tokens, of requests that then have a context of C tokens in sum."""

    base: Count
    per_token: Count
    per_2_context: Count
    empty_step: Annotated[int, Field(ge=1, le=_MOST)]


class RecordedRequest(NamedTuple):
    """A request as its row tells it; tokens are told by segments (seed, tokens)."""

    number: Count
    arrival_ms: Ms
    prompt: list[Segment]
    answer_seed: Number
    max_tokens: Annotated[int, Field(ge=1, le=_MOST)]
    priority: Number
    vllm_id: str = ""

    @property
    def prompt_tokens(self) -> int:
        """Prompt length."""
        return sum(tokens for _, tokens in self.prompt)

    @property
    def rank(self) -> tuple[float, str]:
        """Order among equals: by arrival, then by vLLM's request id, a string (R8)."""
        return self.arrival_ms, self.vllm_id or f"{self.number:05d}"


class RecordedConfig(_Part):
    """The settings of the recorded engine, under vLLM's names; others are kept as extras."""

    block_size: Annotated[int, Field(ge=1, le=_LONGEST_PROMPT)]
    num_gpu_blocks: Annotated[int, Field(ge=2, le=_MOST_BLOCKS)]
    max_num_seqs: Annotated[int, Field(ge=1, le=_MOST)]
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=_MOST)]
    max_model_len: Annotated[int, Field(ge=1, le=_LONGEST_PROMPT)]
    max_num_scheduled_tokens: Count | None = None
    max_num_active_seqs: Count | None = None
    enable_prefix_caching: bool = False
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: Count = 0
    long_prefill_token_threshold_adaptive: bool = False
    policy: Literal["fcfs", "priority"] = "fcfs"
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    scheduler_reserve_full_isl: bool = True
    prefill_schedule_interval: Annotated[int, Field(ge=1, le=_MOST)] = 1
    async_scheduling: bool = False
    kv_groups: list[list[str | int | None]] = [["full"]]
    prefix_cache_retention_interval: Count | None = 0

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """The KV groups; `["full"]` or `["sliding", window]`, perhaps with a block size."""
        return tuple(self._group(*group) for group in self.kv_groups)

    @property
    def pool_block_tokens(self) -> int:
        """What a block of the pool counts for: a multiple of all groups' block sizes."""
        return lcm(*(group.block_size for group in self.groups))

    def _group(
        self, kind: str | int | None, window: str | int | None = 0, size: str | int | None = None
    ) -> KVGroup:
        if kind not in {"full", "sliding"}:
            raise ValueError(f"knows KV groups full and sliding, not {kind}")
        return KVGroup(int(size or self.block_size), int(window or 0))


class _Run(_Part):
    name: str
    config: RecordedConfig
    requests: list[RecordedRequest] | None = None
    step_fields: list[str]
    steps: Annotated[list[list[Any]], Field(min_length=1)]
    outcome_fields: list[str]
    outcome: list[list[Any]]
    summary: dict[str, Any] = {}


class _Document(_Part):
    format: Literal["golden-schedule/1"]
    step_cost: StepFormula | None = None
    requests: list[RecordedRequest] | None = None
    runs: Annotated[list[_Run], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded run.

    Attributes:
        name: File and run.
        config: The engine's settings.
        requests: In the order in which they were handed over.
        step_cost: How long its steps lasted; None: as long as each step tells.
        steps: One a scheduling call: values by name of the field, as in the file, but each entry
            of `scheduled` is whole: [request, tokens, computed before].
        outcome: One a request, by number: values by name of the field.
        summary: Totals.
    """

    name: str
    config: RecordedConfig
    requests: tuple[RecordedRequest, ...]
    step_cost: StepFormula | None
    steps: tuple[dict[str, Any], ...]
    outcome: dict[int, dict[str, Any]]
    summary: dict[str, Any]

    @property
    def was_stopped(self) -> bool:
        """Whether the recording ends before the work does."""
        return str(self.summary.get("note", "")).startswith("stopped")


def to_ns(ms: float) -> int:
    """Return a recorded time on the engine's clock: whole microseconds."""
    return round(ms * 1000) * NS_PER_US


def read_recordings(path: Path) -> Iterator[Recording]:
    """Yield the runs of a file, plain or compressed by gzip, zstd or xz.

    Raises:
        InputError: It can't be read, or isn't in the format; all places are named.
    """
    document = _document(path)
    for run in document.runs:
        name = f"{path.name.partition('.')[0]}/{run.name}"
        requests = run.requests if run.requests is not None else document.requests
        try:
            if requests is None:
                raise ValueError("has no requests, and the file has none for all runs")
            yield _recording(name, run, requests, document.step_cost)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            reason = f"names {error}, which isn't there" if isinstance(error, KeyError) else error
            raise InputError(Problem(f"run {run.name}: {reason}", str(path))) from error


def _document(path: Path) -> _Document:
    with decompressed(path) as file, told_by_name(path):
        content = file.read()
    try:
        return _Document.model_validate(json.loads(content, parse_constant=_refuse_constant))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        problems = [
            Problem(each["msg"], str(path), path=".".join(map(str, each["loc"])))
            for each in found[:_LISTED]
        ]
        if len(found) > _LISTED:
            problems.append(Problem(f"{len(found) - _LISTED} more like these", str(path)))
        raise InputError(*problems) from error
    except (ValueError, RecursionError) as error:  # no JSON, no text, or nested too deeply
        raise InputError(Problem(f"is no recorded schedule: {error}", str(path))) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _recording(
    name: str, run: _Run, requests: list[RecordedRequest], step_cost: StepFormula | None
) -> Recording:
    if step_cost is None and "end_ms" not in run.step_fields:
        raise ValueError("has neither a step_cost nor end_ms of its steps: how long do they last?")
    numbers = [request.number for request in requests]
    if len(set(numbers)) < len(numbers):
        raise ValueError("two requests have the same number")
    if len(run.outcome) != len(requests):
        raise ValueError(f"has {len(run.outcome)} outcomes for {len(requests)} requests")
    outcome = {
        number: dict(zip(run.outcome_fields, row, strict=True))
        for number, row in zip(numbers, run.outcome, strict=True)
    }
    steps = tuple(_steps(run, set(numbers)))
    order = _by_rank if run.config.policy == "priority" else _by_arrival
    handed_over = tuple(sorted(requests, key=order))
    return Recording(name, run.config, handed_over, step_cost, steps, outcome, run.summary)


def _check_times(step: dict[str, Any]) -> None:
    for field in ("time_ms", *(field for field in ("start_ms", "end_ms") if field in step)):
        ms = step[field]
        if not (isinstance(ms, int | float) and 0 <= ms <= _LATEST_MS):
            raise ValueError(f"{field} {ms!r} is no time")


def _by_rank(request: RecordedRequest) -> tuple[float, str]:
    return request.rank


def _by_arrival(request: RecordedRequest) -> tuple[float, int]:
    return request.arrival_ms, request.number


def _steps(run: _Run, numbers: set[int]) -> Iterator[dict[str, Any]]:
    """Expand the rows of a run's steps; a bare number goes on where the request was."""
    computed_tokens: dict[int, int] = {}
    for index, row in enumerate(run.steps):
        try:
            step = dict(zip(run.step_fields, row, strict=True))
            _check_times(step)
            scheduled = []
            for entry in step["scheduled"]:
                bare = isinstance(entry, int)
                request, tokens, before = (entry, 1, computed_tokens[entry]) if bare else entry
                if request not in numbers:
                    raise ValueError(f"there is no request {request}")
                computed_tokens[request] = before + tokens
                scheduled.append([request, tokens, before])
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error} isn't there" if isinstance(error, KeyError) else error
            raise ValueError(f"step {index}: {reason}") from error
        yield {**step, "scheduled": scheduled}
