"""What limits the run, by definition: shares of the time that requests wait and steps take."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kvsim.metrics import CostPart
from kvsim.metrics.catalog import percent
from kvsim.metrics.step_sums import StepSums
from kvsim.tables import EVENT_KINDS, HEAD_LACKS, Columns
from kvsim.units import NS_PER_S, format_duration

_COMPACTED = EVENT_KINDS.index("compacted")

# Requests that wait in less of the busy time than this don't make a queue the limit.
NEGLIGIBLE_WAITING = 0.05
# Requests that are longer in the front end on average wait for its thread: alone they take a tenth.
CROWDED_FRONT_END_S = 0.1

_CAUSES = {
    "nothing": "Scheduling order: the head of the queue lacked nothing",
    "kv_blocks": "KV cache space: the head of the queue lacked free KV slots",
    "hole": "Fragmentation: the head of the queue fitted the free KV slots in sum, but no hole,",
    "sequence_slot": "max_num_seqs: the head of the queue lacked a sequence slot",
    "token_budget": "max_num_batched_tokens: the head of the queue lacked token budget",
    "preempting": "Preemptions: the head of the queue was held back by one",
    "watermark": "watermark: the head of the queue lacked the KV slots that are kept back",
    "active_sequence_slot": "max_num_active_seqs: the head of the queue lacked a sequence slot",
    "scheduled_token_budget": "max_num_scheduled_tokens: the head of the queue lacked token budget",
    "prefill_step": "prefill_schedule_interval: the head of the queue awaited a step with prefills",
    "swapped": "Preemptions: the head of the queue was held back by swapped requests",
    "batch_end": "Static batching: the head of the queue awaited the end of the batch",
}
_BOUNDS = {
    "hbm": "HBM-bound",
    "compute": "compute-bound",
    "communication": "communication",
    "host": "host overhead",
    "host_link": "bound by the link to the host",
    "unknown": "of unknown bound",
}


class _Compaction(NamedTuple):
    """The copying of KV slots: it lengthens a step, but the cost model knows nothing of it."""

    component: str = "compaction"
    bound: str = "hbm"
    basis: str = "given"


class _Swapping(NamedTuple):
    """The copying of swapped blocks to the host and back, before the model runs."""

    component: str = "swapping"
    bound: str = "host_link"
    basis: str = "physical"


def limits(requests: Columns, sums: StepSums, events: Columns) -> dict[str, Any]:
    """Return what limits the run: `sentence`, and the shares named in `catalog.SHARE_METRICS`.

    All steps count, those after the horizon too, weighted by their duration; each dictionary of
    shares sums to one or is empty if there is no such time.
    """
    waiting = waiting_share(sums)
    parts_ns = _part_times_ns(events, sums)
    bound = _shares(parts_ns, lambda part: part.bound)
    return {
        "sentence": _before_the_queue(requests) + _sentence(waiting_fraction(sums), waiting, bound),
        "waiting_share": waiting,
        "bound_share": bound,
        "component_share": _shares(parts_ns, lambda part: part.component),
        "basis_share": _shares(parts_ns, lambda part: part.basis),
    }


def _before_the_queue(requests: Columns) -> str:
    """Return a sentence if requests wait for the front end, else nothing."""
    passed = requests["queued_ns"] >= 0
    if not passed.any():
        return ""
    front_end_s = float((requests["queued_ns"] - requests["arrival_ns"])[passed].mean()) / NS_PER_S
    if front_end_s < CROWDED_FRONT_END_S:
        return ""
    return f"Front end: requests are {format_duration(front_end_s)} in the API server on average. "


def waiting_fraction(sums: StepSums) -> float | None:
    """Return the share of the busy time in which requests wait; None if nothing ever ran."""
    return int(sums.waiting_ns.sum()) / sums.time_ns if sums.time_ns else None


def waiting_share(sums: StepSums) -> dict[str, float]:
    """Return what the head of the queue lacks, as shares of the time in which requests wait."""
    return _normalized(dict(zip(HEAD_LACKS, sums.waiting_ns.tolist(), strict=True)))


def _part_times_ns(events: Columns, sums: StepSums) -> list[tuple[CostPart, float]]:
    if not sums.parts:
        return []
    parts_ns = list(zip(sums.parts, sums.parts_ns.tolist(), strict=True))
    copies_ns = float(events["gap_ns"][events["event"] == _COMPACTED].sum())
    swaps_ns = float(sums.swap_ns)
    copies: list[tuple[CostPart, float]] = [(_Compaction(), copies_ns), (_Swapping(), swaps_ns)]
    return [*parts_ns, *((part, part_ns) for part, part_ns in copies if part_ns)]


def _shares(
    parts_ns: Sequence[tuple[CostPart, float]], key: Callable[[CostPart], str]
) -> dict[str, float]:
    time_ns: dict[str, float] = {}
    for part, part_ns in parts_ns:
        time_ns[key(part)] = time_ns.get(key(part), 0.0) + part_ns
    return _normalized(time_ns)


def _normalized(amounts: Mapping[str, float]) -> dict[str, float]:
    total = sum(amounts.values())
    return {name: amount / total for name, amount in amounts.items()} if total else {}


def _sentence(
    fraction: float | None, waiting: Mapping[str, float], bound: Mapping[str, float]
) -> str:
    if fraction is None:
        return "Nothing ran."
    steps = ""
    if bound:
        largest = max(bound, key=lambda name: bound[name])
        steps = f"; steps are {percent(bound[largest])} {_BOUNDS.get(largest, largest)}"
    if fraction == 0:
        return f"Nothing queues{steps}."
    if fraction < NEGLIGIBLE_WAITING:
        return f"Requests hardly wait ({percent(fraction)} of the busy time){steps}."
    cause = max(waiting, key=lambda name: waiting[name])
    share = percent(waiting[cause])
    return f"{_CAUSES[cause]} in {share} of the time in which requests waited{steps}."
