"""Recorded schedules as files hold them; the format is described in `docs/conformance.md`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite, lcm
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from kvsim.conformance.fields import (
    OUTCOME_FIELDS,
    STEP_FIELDS,
    SUMMARY_FIELDS,
    AtLeastOne,
    Count,
    Ms,
    Number,
    check_rows,
    check_value,
    shown,
)
from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.memory.kv_groups import KVGroup
from kvsim.units import NS_PER_US
from kvsim.workload.files import decompressed, told_by_name

_LONGEST_PROMPT = 1 << 27
_LARGEST_BLOCK = 1 << 20  # tokens
_MOST_BLOCKS = 1 << 24
_LISTED = 20
_PLAINLY = {  # what pydantic says in Python's terms
    "model_type": "should be a mapping",
    "dict_type": "should be a mapping",
    "named_tuple_type": "should be a row: a list",
    "tuple_type": "should be a list",
    "missing_argument": "is missing in the row",
    "unexpected_positional_argument": "is one value too many in the row",
    "arguments_type": "should be a row: a list",
}
_ABOUT_THE_FILE = {  # told to readers: nothing to compare
    *("description", "vllm_version", "token_rule", "request_fields"),
    *("frontend_check", "startup_check", "grouping_check", "unit", "formula"),
}
_GROUPS = '["full"] or ["sliding", window], and as third item the block size if it differs'

Segment = tuple[Number, Annotated[int, Field(ge=0, le=_LONGEST_PROMPT, strict=True)]]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, strict=False)


class StepFormula(_Part):
    """How long a step lasts: T tokens, of requests that then have a context of C tokens in sum."""

    base: Count
    per_token: Count
    per_2_context: Count
    empty_step: AtLeastOne


class RecordedRequest(NamedTuple):
    """A request as its row tells it; tokens are told by segments (seed, tokens)."""

    number: Count
    arrival_ms: Ms
    prompt: list[Segment]
    answer_seed: Number
    max_tokens: AtLeastOne
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


def _known_group(group: list[Any]) -> list[Any]:
    kind, window, size, *more = [*group, None, None, None][: max(3, len(group))]
    windowed = {"full": window is None, "sliding": window is not None}
    counts = [each for each in (window, size) if each is not None]
    sized = all(type(each) is int and 0 < each <= _LONGEST_PROMPT for each in counts)
    sized = sized and (size is None or size <= _LARGEST_BLOCK)
    if more or not sized or not windowed.get(kind if isinstance(kind, str) else "", False):
        raise ValueError(f"a KV group is {_GROUPS}; not {shown(group)}")
    return group


class RecordedConfig(_Part):
    """The settings of the recorded engine, under vLLM's names; others are kept as extras."""

    block_size: Annotated[int, Field(ge=1, le=_LARGEST_BLOCK)]
    num_gpu_blocks: Annotated[int, Field(ge=2, le=_MOST_BLOCKS)]
    max_num_seqs: AtLeastOne
    max_num_batched_tokens: AtLeastOne
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
    prefill_schedule_interval: AtLeastOne = 1
    async_scheduling: bool = False
    kv_groups: Annotated[
        list[Annotated[list[Any], AfterValidator(_known_group)]], Field(min_length=1)
    ] = [["full"]]
    prefix_cache_retention_interval: Count | None = 0

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """The KV groups; `["full"]` or `["sliding", window]`, perhaps with a block size."""
        return tuple(self._group(*group) for group in self.kv_groups)

    @property
    def pool_block_tokens(self) -> int:
        """What a block of the pool counts for: a multiple of all groups' block sizes."""
        return lcm(*(group.block_size for group in self.groups))

    def _group(self, kind: str, window: int | None = None, size: int | None = None) -> KVGroup:
        return KVGroup(size or self.block_size, window or 0)


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
        unread: What the file says besides, and nobody looks at.
    """

    name: str
    config: RecordedConfig
    requests: tuple[RecordedRequest, ...]
    step_cost: StepFormula | None
    steps: tuple[dict[str, Any], ...]
    outcome: dict[int, dict[str, Any]]
    summary: dict[str, Any]
    unread: tuple[Problem, ...] = ()

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
    unread = _unread(path, "", document.model_extra, _Document)
    if document.step_cost is not None:
        unread += _unread(path, "step_cost.", document.step_cost.model_extra, StepFormula)
    for index, run in enumerate(document.runs):
        name = f"{path.name.partition('.')[0]}/{run.name}"
        requests = run.requests if run.requests is not None else document.requests
        try:
            if not requests:
                raise ValueError("has no requests, and the file has none for all runs")
            recording = _recording(name, run, requests, document.step_cost)
        except ValueError as error:
            raise InputError(Problem(f"run {shown(run.name)}: {error}", str(path))) from error
        others = _unread(path, f"runs.{index}.", run.model_extra, _Run)
        yield replace(recording, unread=(*unread, *others))


def _unread(
    path: Path, place: str, extra: Mapping[str, Any] | None, model: type[_Part]
) -> list[Problem]:
    """Return what is to be said of keys that nobody knows."""
    return [
        Problem(
            f"unknown, so not looked at{did_you_mean(key, model.model_fields)}",
            str(path),
            path=f"{place}{ascii(key)[1:-1]}",
        )
        for key in extra or ()
        if key not in _ABOUT_THE_FILE
    ]


def _document(path: Path) -> _Document:
    with decompressed(path) as file, told_by_name(path):
        content = file.read()
    try:
        loaded = json.loads(content, parse_constant=_refuse_constant, parse_float=_finite)
        return _Document.model_validate(loaded)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        problems = [
            Problem(_plainly(each["type"], each["msg"]), str(path), path=_place(each["loc"]))
            for each in found[:_LISTED]
        ]
        if len(found) > _LISTED:
            problems.append(Problem(f"{len(found) - _LISTED} more like these", str(path)))
        raise InputError(*problems) from error
    except (ValueError, RecursionError) as error:  # no JSON, no text, or nested too deeply
        raise InputError(Problem(f"is no recorded schedule: {error}", str(path))) from error


def _plainly(kind: str, message: str) -> str:
    return _PLAINLY.get(kind, message.removeprefix("Value error, "))


def _place(parts: Iterable[int | str]) -> str:
    return ".".join(ascii(part).strip("'") for part in parts)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise ValueError(f"{digits} is too large a number")
    return value


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
    check_rows("step", run.step_fields, run.steps, STEP_FIELDS)
    check_rows("outcome", run.outcome_fields, run.outcome, OUTCOME_FIELDS)
    for field, value in run.summary.items():
        check_value(f"summary: {field}", value, SUMMARY_FIELDS.get(field))
    outcome = {
        number: dict(zip(run.outcome_fields, row, strict=True))
        for number, row in zip(numbers, run.outcome, strict=True)
    }
    steps = tuple(_steps(run, set(numbers)))
    order = _by_rank if run.config.policy == "priority" else _by_arrival
    handed_over = tuple(sorted(requests, key=order))
    return Recording(name, run.config, handed_over, step_cost, steps, outcome, run.summary)


def _by_rank(request: RecordedRequest) -> tuple[float, str]:
    return request.rank


def _by_arrival(request: RecordedRequest) -> tuple[float, int]:
    return request.arrival_ms, request.number


def _steps(run: _Run, numbers: set[int]) -> Iterator[dict[str, Any]]:
    """Expand the rows of a run's steps; a bare number goes on where the request was."""
    missing = next((name for name in ("time_ms", "scheduled") if name not in run.step_fields), None)
    if missing is not None:
        raise ValueError(f"step_fields: {missing} isn't there")
    computed_tokens: dict[int, int] = {}
    for index, row in enumerate(run.steps):
        step = dict(zip(run.step_fields, row, strict=True))
        scheduled = []
        for entry in step["scheduled"]:
            bare = isinstance(entry, int)
            if bare and entry not in computed_tokens:
                raise ValueError(f"step {index}: {entry} goes on, but was never scheduled before")
            request, tokens, before = (entry, 1, computed_tokens[entry]) if bare else entry
            if request not in numbers:
                raise ValueError(f"step {index}: there is no request {request}")
            computed_tokens[request] = before + tokens
            scheduled.append([request, tokens, before])
        yield {**step, "scheduled": scheduled}
