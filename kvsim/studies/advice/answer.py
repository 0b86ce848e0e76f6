"""What was found, as rows of a table: `kvsim.tables.ADVICE`, the largest effect first."""

import math
from collections.abc import Iterator, Mapping

from kvsim.metrics.bottleneck import NEGLIGIBLE_WAITING
from kvsim.metrics.catalog import percent
from kvsim.metrics.summary import Summary
from kvsim.studies.advice.candidates import Change, settings_of
from kvsim.studies.advice.search import AS_IT_IS, Advice, Seen
from kvsim.studies.capacity.answer import CapacityAnswer
from kvsim.table_files import Facts
from kvsim.tables import ADVICE

Range = tuple[float | None, float | None, float | None]  # low end, value, high end

_LEAST_BASIS = 0.05  # of the time; smaller shares of a basis aren't told
_LACKS = {
    "nothing": "order of scheduling",
    "kv_blocks": "KV space",
    "hole": "fragmentation",
    "sequence_slot": "max_num_seqs",
    "token_budget": "max_num_batched_tokens",
    "preempting": "preemptions",
    "watermark": "watermark",
    "active_sequence_slot": "max_num_active_seqs",
    "scheduled_token_budget": "max_num_scheduled_tokens",
    "prefill_step": "prefill_schedule_interval",
    "swapped": "swapping",
    "batch_end": "static batches",
}
_BOUNDS = {
    "hbm": "HBM bandwidth",
    "compute": "compute",
    "communication": "communication",
    "host": "host overhead",
    "host_link": "link to the host",
    "unknown": "time of a step",
}


def rows_of(advice: Advice) -> list[Facts]:
    """Return one row a change, after that of the scenario as it is, the largest effect first."""
    unit_factor = _in_requests(advice)
    if advice.base is None:
        late = f"the time ({advice.budget_s:g} s) was up before its capacity was known; "
        late += "--advise-budget-s gives more"
        rows = [_row(AS_IT_IS, outcome="late", why=late)]
    else:
        rows = [_seen_row(advice.base, advice.base, unit_factor)]
        seen = [_seen_row(one, advice.base, unit_factor) for one in advice.seen]
        rows += sorted(seen, key=_effect, reverse=True)
    why = f"the time ({advice.budget_s:g} s) was up"
    rows += [_row(change, outcome="late", why=why) for change in advice.late]
    for one in advice.declined:
        rows.append(_row(Change(one.key, one.words, {}), outcome="declined", why=one.why))
    return rows


def _effect(row: Facts) -> tuple[float, float]:
    return row["ratio"] or 0.0, row["capacity"] or 0.0


def _row(change: Change, **known: object) -> Facts:
    """Return a row of what is known, and nothing where it isn't."""
    nothing = {column.name: "" if column.unit == "text" else None for column in ADVICE}
    settings = ", ".join(settings_of(change.changes))
    about = {"key": change.key, "change": change.words, "settings": settings}
    return {**nothing, **about, "caveat": change.caveat, **known}


def _seen_row(seen: Seen, base: Seen, unit_factor: float | None) -> Facts:
    answer, summary = seen.answer, seen.summary
    low, capacity, high = capacity_of(answer)
    ratio_low, ratio, ratio_high = ratio_of(answer, base.answer)
    if seen is base and ratio is not None:
        ratio_low, ratio_high = 1.0, 1.0
    unit, factor = (answer.unit, 1.0) if unit_factor is None else ("requests/s", unit_factor)
    return _row(
        seen.change,
        outcome=_outcome(answer),
        why="" if answer.value is not None else answer.sentence,
        unit=unit,
        capacity=_times(capacity, factor),
        capacity_low=_times(low, factor),
        capacity_high=_times(high, factor),
        ratio=ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        confidence=answer.confidence,
        limited_by=answer.limited_by or "",
        simulations=float(len(answer.trials)),
        **({} if summary is None else _at_capacity(summary, seen.gpus)),
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _outcome(answer: CapacityAnswer) -> str:
    if answer.value is not None:
        return "found"
    if answer.feasible is not None:
        return "at_least"
    return "never" if answer.stopped == "never" else "unknown"


def _at_capacity(summary: Summary, gpus: int) -> Mapping[str, object]:
    figures = summary["figures"]
    return {
        "gpus": float(gpus),
        "usd_per_hour": figures["usd_per_hour"],
        "usd_per_million_output_tokens": figures["usd_per_million_output_tokens"],
        "limit": _limit(summary),
        "basis": ", ".join(_basis(summary["limits"]["basis_share"])),
    }


def _limit(summary: Summary) -> str:
    """Return what requests wait for, or what bounds the steps where they hardly wait."""
    limits = summary["limits"]
    waiting, bounds = limits["waiting_share"], limits["bound_share"]
    if (summary["figures"]["waiting_fraction"] or 0) >= NEGLIGIBLE_WAITING and waiting:
        largest = max(waiting, key=lambda name: waiting[name])
        return _LACKS[largest]
    return _BOUNDS[max(bounds, key=lambda name: bounds[name])] if bounds else ""


def _basis(shares: Mapping[str, float]) -> Iterator[str]:
    for basis, share in sorted(shares.items(), key=lambda item: -item[1]):
        if share >= _LEAST_BASIS:
            yield f"{basis} {percent(round(share, 2))}"


def _in_requests(advice: Advice) -> float | None:
    """Return how many requests/s one unit of the capacities is; None where it is no rate."""
    if advice.base is None or advice.base.answer.unit == "users":
        return None
    if advice.base.answer.unit == "requests/s":
        return 1.0
    sent_per_s = advice.own_requests_per_s
    return None if sent_per_s is None else sent_per_s / advice.own_load


# Ratios


def capacity_of(answer: CapacityAnswer) -> Range:
    """Return a capacity with the ends of its interval; without a limit, the most that is met."""
    if answer.value is None:
        return answer.feasible, answer.feasible, None
    return answer.low, answer.value, answer.high


def ratio_of(answer: CapacityAnswer, base: CapacityAnswer) -> Range:
    """Return how many times the load of the base fits, with the ends of its interval.

    The interval is that of the difference of two logarithms from the interval of each (MOVER: Zou
    and Donner, Statistics in Medicine 27, 2008), as if the two were independent. They face the same
    draws, which makes their errors alike: the interval is rather too wide. Where nothing is random,
    the intervals are what the searches did not tell apart, and all combinations of their ends are
    possible.
    """
    low, value, high = capacity_of(answer)
    base_low, base_value, base_high = base.low, base.value, base.high
    if value is None or not base_value:
        return None, None, None
    ratio = value / base_value
    add = math.hypot if answer.confidence is not None else _sum
    ends: list[float | None] = []
    for way, mine, other in ((-1, low, base_high), (1, high, base_low)):
        if not mine or not other:
            ends.append(None)
            continue
        off = add(abs(math.log(mine / value)), abs(math.log(other / base_value)))
        ends.append(ratio * math.exp(way * off))
    return ends[0], ratio, ends[1]


def _sum(one: float, other: float) -> float:
    return one + other
