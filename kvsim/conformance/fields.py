"""The fields of steps, outcomes and totals, and what their values are."""

from collections.abc import Iterable, Mapping, Sequence
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

_MOST = 1 << 40  # of anything counted: more is a mistake, and no array holds it
_LATEST_MS = 1e12
_SHOWN = 60  # characters of a value that is told

Count = Annotated[int, Field(ge=0, le=_MOST, strict=True)]
AtLeastOne = Annotated[int, Field(ge=1, le=_MOST, strict=True)]
Number = Annotated[int, Field(ge=-_MOST, le=_MOST, strict=True)]
Ms = Annotated[float, Field(ge=0, le=_LATEST_MS, allow_inf_nan=False, strict=True)]
Text = Annotated[str, Field(strict=True)]

_COUNTERS = Literal[
    "requests",
    "queries",
    "hits",
    "preempted_requests",
    "preempted_queries",
    "preempted_hits",
]


class Kind(NamedTuple):
    """What a value is: its type, and how a message says it."""

    type: Any
    says: str


_COUNT = Kind(Count, "a whole number, 0 or more")
_MS = Kind(Ms, "a time in ms")
_MS_OR_NEVER = Kind(Ms | None, "a time in ms, or null")
_REQUESTS = Kind(list[Number], "a list of requests, by their numbers")
_TEXT = Kind(Text, "a text")

STEP_FIELDS: Mapping[str, Kind] = {
    "time_ms": _MS,
    "scheduled": Kind(
        list[Number | tuple[Number, Count, Count]],
        "a list of [request, tokens, computed before], or numbers of requests",
    ),
    "preempted": _REQUESTS,
    "finished": _REQUESTS,
    "free_blocks": _COUNT,
    "free_blocks_after": _COUNT,
    "running": _COUNT,
    "waiting": _COUNT,
    "start_ms": _MS,
    "end_ms": _MS,
    "cached_hashes": _COUNT,
    "block_tables": Kind(dict[str, list[list[Count]]], "a mapping: request to its block tables"),
    "free_queue": Kind(list[Count], "a list of blocks"),
}
OUTCOME_FIELDS: Mapping[str, Kind] = {
    "status": _TEXT,
    "first_token_ms": _MS_OR_NEVER,
    "finish_ms": _MS_OR_NEVER,
    "n_output": _COUNT,
    "n_preemptions": _COUNT,
    "cached_tokens": Kind(Count | None, "a whole number, 0 or more, or null"),
    "cached_tokens_on_resume": Kind(list[Count], "a list of whole numbers"),
}
SUMMARY_FIELDS: Mapping[str, Kind] = {
    "steps": _COUNT,
    "preemptions": _COUNT,
    "makespan_ms": _MS,
    "max_running": _COUNT,
    "min_free_blocks": _COUNT,
    "scheduled_tokens": _COUNT,
    "prefix_cache": Kind(dict[_COUNTERS, Count] | None, "a mapping of vLLM's six counters"),
    "note": _TEXT,
}


def check_rows(
    what: str, names: Sequence[str], rows: Sequence[Sequence[Any]], kinds: Mapping[str, Kind]
) -> None:
    """Check that each row has a value of its kind for each name; unknown names may have any.

    Raises:
        ValueError: Names the row, from 0, and the field.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{what}: the field {twice!r} is named twice")
    for index, row in enumerate(rows):
        if len(row) != len(names):
            raise ValueError(f"{what} {index}: has {len(row)} values for {len(names)} fields")
    types = tuple(kinds[name].type if name in kinds else Any for name in names)
    table: Any = GenericAlias(list, (GenericAlias(tuple, types),))
    try:
        TypeAdapter(table).validate_python(rows)
    except ValidationError as error:
        index, at = map(int, error.errors(include_url=False)[0]["loc"][:2])
        told = f"must be {kinds[names[at]].says}, not {shown(rows[index][at])}"
        raise ValueError(f"{what} {index}: {names[at]} {told}") from error


def check_value(name: str, value: Any, kind: Kind | None) -> None:
    """Check a value; None: nobody knows what it must be.

    Raises:
        ValueError: It isn't of its kind.
    """
    if kind is None:
        return
    try:
        TypeAdapter(kind.type).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{name} must be {kind.says}, not {shown(value)}") from error


def unknown(names: Iterable[str], kinds: Mapping[str, Kind], of_what: str) -> str:
    """Say which of the names are no fields; '' if all are."""
    others = [name for name in names if name not in kinds]
    return f"fields {', '.join(others)} of {of_what}" if others else ""


def shown(value: Any) -> str:
    """Return a value as a message shows it: on one line, not too long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
