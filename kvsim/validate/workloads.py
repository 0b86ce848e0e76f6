"""A recorded client → the workload of a scenario, and its requests with what prompts share."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError, Problem
from kvsim.units import seconds_to_ns
from kvsim.validate.case import Client, ClosedLoop, Lengths, OpenLoop, Prompts, Replay
from kvsim.validate.deployments import validated
from kvsim.workload.build import build_requests
from kvsim.workload.files import decompressed
from kvsim.workload.parameters import Workload
from kvsim.workload.requests import RequestTable, Segments, sums_before

# Pause between two stages: long enough for any queue to drain that a served load leaves. The real
# client goes on 2 s after the last answer; an idle server doesn't notice.
DRAIN_S = 1800.0

_ARRIVALS = ("queued_s", "send_s", "arrival_s")
_OUTPUTS = ("output_tokens_generated", "output_tokens")

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a client sends.

    Attributes:
        workload: As a scenario says it.
        requests: Drawn or read; prompts that share something say so.
        stage_starts_ns: When each stage begins; one stage at 0 if there are none.
        warm_up_requests: So many that are sent first and don't count.
    """

    workload: Workload
    requests: RequestTable
    stage_starts_ns: Ints
    warm_up_requests: int = 0


def traffic_of(client: Client, seed: int) -> Traffic:
    """Return what a client sends, the same for the same seed.

    Raises:
        InputError: A trace can't be read, or the description can't be drawn.
    """
    if isinstance(client, Replay):
        try:
            return _replayed(client, seed)
        except (ValueError, TypeError, KeyError) as error:
            what = f"a value can't be understood: {error}"
            raise InputError(Problem(what, str(client.trace))) from error
    if isinstance(client, OpenLoop):
        return _open_loop(client, seed)
    return _closed_loop(client, seed)


# Recorded requests


def _replayed(client: Replay, seed: int) -> Traffic:
    rows = _rows(client.trace)
    names = list(rows[0])
    arrival = next((name for name in _ARRIVALS if name in names), None)
    output = next((name for name in _OUTPUTS if name in names), None)
    if arrival is None or output is None or "input_tokens" not in names:
        needed = "arrival_s, send_s or queued_s; input_tokens; output_tokens"
        raise InputError(Problem(f"a trace needs the columns {needed}", str(client.trace), 1))
    columns = {"arrival": arrival, "prompt_tokens": "input_tokens", "output_tokens": output}
    answered = [row for row in rows if row.get("failed", "0") in {"", "0", "False", "false"}]
    arrivals: dict[str, Any] = {"kind": "trace", "file": str(client.trace), "columns": columns}
    if len(answered) < len(rows):
        arrivals["where"] = {"failed": sorted({row["failed"] for row in answered})}
    workload = validated(
        Workload, {"arrivals": arrivals, "lengths": {"kind": "trace"}, "max_tokens": "output"}
    )
    requests = build_requests(workload, seed)
    seconds = np.array([float(row[arrival]) for row in answered])
    order = np.argsort(np.rint((seconds - seconds.min()) * 1e9), kind="stable")
    ordered = [answered[place] for place in order]
    segments = _recorded_contents(ordered, requests.prompt_tokens, client.prompts)
    stages = [int(row.get("stage") or 0) for row in ordered]
    first = [stages.index(stage) for stage in sorted(set(stages))]
    return Traffic(workload, replace(requests, segments=segments), requests.arrival_ns[first])


def _rows(trace: Path) -> list[dict[str, str]]:
    with decompressed(trace) as file:
        data = file.read()
    try:
        rows = list(csv.DictReader(io.StringIO(data.decode("utf-8"))))
    except (ValueError, csv.Error) as error:
        raise InputError(Problem(f"can't be read as CSV: {error}", str(trace))) from error
    if not rows:
        raise InputError(Problem("holds no request", str(trace)))
    return rows


def _recorded_contents(
    rows: Sequence[Mapping[str, str]], prompt_tokens: Ints, prompts: Prompts
) -> Segments | None:
    """Return what a trace tells of its prompts: equal slots, or prefixes shared with others."""
    if rows[0].get("prompt_slot"):
        slots = np.array([int(row["prompt_slot"]) for row in rows], dtype=np.int64)
        return contents_of_slots(slots, prompt_tokens, prompts)
    if "shared_prefix_with" in rows[0]:
        return _contents_of_prefixes(rows, prompt_tokens.tolist())
    return None


def contents_of_slots(slots: Ints, prompt_tokens: Ints, prompts: Prompts) -> Segments:
    """Return prompts that are equal where their slots are; slots share their group's beginning.

    Which slot belongs to which group isn't recorded: they are dealt out in turn.
    """
    requests = np.arange(len(slots), dtype=np.int64)
    groups = prompts.groups if prompts.system_tokens else 0
    system = np.minimum(prompts.system_tokens, prompt_tokens - 1) if groups else 0 * slots
    own = groups + slots
    seeds = np.stack([slots % max(groups, 1), own], axis=1)
    tokens = np.stack([system, prompt_tokens - system], axis=1)
    kept = tokens.ravel() > 0
    first = sums_before((tokens > 0).sum(axis=1))
    answers = int(own.max()) + 1 + requests
    return Segments(first, seeds.ravel()[kept], tokens.ravel()[kept], answers)


def _contents_of_prefixes(
    rows: Sequence[Mapping[str, str]], prompt_tokens: Sequence[int]
) -> Segments:
    """Return prompts that begin as a named earlier one does, and go on by themselves."""
    numbers = {row["request"]: place for place, row in enumerate(rows)}
    contents: list[list[tuple[int, int]]] = []
    for place, (row, tokens) in enumerate(zip(rows, prompt_tokens, strict=True)):
        other = numbers.get(row["shared_prefix_with"], place)
        shared = min(int(row["shared_prefix_tokens"] or 0), tokens) if other < place else 0
        beginning = _first_tokens(contents[other], shared) if shared else []
        rest = tokens - sum(length for _, length in beginning)
        contents.append([*beginning, (place, rest)] if rest else beginning)
    pairs = np.array([pair for content in contents for pair in content], dtype=np.int64)
    counts = np.array([len(content) for content in contents])
    answers = len(rows) + np.arange(len(rows), dtype=np.int64)
    return Segments(sums_before(counts), pairs[:, 0], pairs[:, 1], answers)


def _first_tokens(content: Sequence[tuple[int, int]], tokens: int) -> list[tuple[int, int]]:
    taken: list[tuple[int, int]] = []
    for seed, length in content:
        if tokens <= 0:
            break
        taken.append((seed, min(length, tokens)))
        tokens -= length
    return taken


# Described requests


def _open_loop(client: OpenLoop, seed: int) -> Traffic:
    stages: list[dict[str, Any]] = []
    starts_s: list[float] = []
    now_s = 0.0
    for stage in client.stages:
        if starts_s:
            stages.append({"rate_per_s": 0.0, "duration_s": DRAIN_S})
            now_s += DRAIN_S
        starts_s.append(now_s)
        stages.append({"rate_per_s": stage.rate_per_s, "duration_s": stage.duration_s})
        now_s += stage.duration_s
    values = {"arrivals": {"kind": "stages", "stages": stages}, "max_tokens": "output"}
    values |= _lengths(client.lengths)
    prompts = client.prompts
    if prompts.distinct:
        values["prompts"] = {"kind": "fixed_set", "distinct_prompts": prompts.distinct}
    workload = validated(Workload, values)
    requests = build_requests(workload, seed)
    starts_ns = np.array([seconds_to_ns(start_s) for start_s in starts_s], dtype=np.int64)
    if prompts.distinct and prompts.system_tokens:
        slots = _slots(requests.arrival_ns, starts_ns, prompts.distinct)
        segments = contents_of_slots(slots, requests.prompt_tokens, prompts)
        requests = replace(requests, segments=segments)
    return Traffic(workload, requests, starts_ns)


def _slots(arrival_ns: Ints, starts_ns: Ints, distinct: int) -> Ints:
    """Return the place in the set of prompts, which each stage goes through from its beginning."""
    stage = np.searchsorted(starts_ns, arrival_ns, side="right") - 1
    first = np.searchsorted(arrival_ns, starts_ns)
    slots: Ints = (np.arange(len(arrival_ns)) - first[stage]) % distinct
    return slots


def _lengths(parts: Sequence[Lengths]) -> dict[str, Any]:
    if len(parts) == 1:
        return {"lengths": _fixed(parts[0])}
    return {
        "classes": {
            f"lengths {number}": {"weight": part.weight, "lengths": _fixed(part)}
            for number, part in enumerate(parts)
        }
    }


def _fixed(part: Lengths) -> dict[str, Any]:
    lengths = {"prompt_tokens": part.prompt_tokens, "output_tokens": part.output_tokens}
    return {"kind": "fixed", **lengths}


def _closed_loop(client: ClosedLoop, seed: int) -> Traffic:
    concurrency = client.concurrency
    workload = validated(
        Workload,
        {
            "arrivals": {"kind": "closed_loop", "users": concurrency},
            "num_requests": (client.warm_up_rounds + client.rounds) * concurrency,
            "lengths": {
                "kind": "uniform",
                **_range("prompt", client.prompt_tokens, client.length_range_ratio),
                **_range("output", client.output_tokens, client.length_range_ratio),
            },
            "max_tokens": "output",
        },
    )
    return Traffic(
        workload,
        build_requests(workload, seed),
        np.zeros(1, dtype=np.int64),
        client.warm_up_rounds * concurrency,
    )


def _range(what: str, longest_tokens: int, ratio: float) -> dict[str, int]:
    shortest_tokens = max(int(longest_tokens * ratio), 1)
    return {f"{what}_min_tokens": shortest_tokens, f"{what}_max_tokens": longest_tokens}
