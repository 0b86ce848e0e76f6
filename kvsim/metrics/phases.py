"""Where the time of requests goes: of the median one, and of the 95th percentile, by E2E latency.

One request at a rank would be an accident, so the mean is over all in a small band of ranks: of n
finished requests that arrive after the warm-up, in ascending order of E2E latency (equal ones in
the order of the table, ranks from 0), those whose rank is at most `BAND` · n from q · (n − 1), and
at least the nearest one.

A request is in one phase at a time:

- front end: from the arrival to the engine's queue;
- queue: until it is first scheduled;
- prefill: until its first token, or until it is preempted before that;
- preempted: from such a preemption to the first token, and later the gaps between the tokens around
  each preemption or swap: waiting, and computing again (or copying back) what was lost;
- stalled by the prefills of others: of each step in which it decodes, or is paused, while prompts
  are computed, the duration beyond the price of the same step without the prompts. Copies of
  swapped blocks are not in it; those of compaction are, since an admission calls for them;
- decode: what is left until its last token.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics import RunContext, StepCosts
from kvsim.metrics.catalog import PHASE_METRICS
from kvsim.metrics.latency import FINISHED
from kvsim.table_files import chunks
from kvsim.tables import LOSSES, RETURNS, Columns
from kvsim.units import NS_PER_S

PHASES = tuple(name.removesuffix("_s") for name in PHASE_METRICS)
QUANTILES = {"p50": 0.5, "p95": 0.95}
BAND = 0.025  # of the requests, to each side

_STAMPS = ("arrival_ns", "queued_ns", "admitted_ns", "first_token_ns", "finish_ns")
_OF_CHUNKS = (
    "prefill_seqs",
    "prefill_tokens",
    "prefill_kv_tokens",
    "prefill_pairs",
    "prefill_attention_ns",
)
_OF_STEPS = ("replica", "start_ns", "duration_ns", "swap_ns", "decode_seqs", "decode_kv_tokens")

Ints = NDArray[np.int64]
CostsOf = Callable[[Columns], StepCosts]
Phases = dict[str, dict[str, float | int | None]]


def phases(requests: Columns, steps: Columns, events: Columns, context: RunContext) -> Phases:
    """Return the phases of the requests at each of `QUANTILES`; nothing if none has finished.

    Of each there are `requests` (how many the mean is over), `e2e_s`, and the seconds in each of
    `PHASES`, which add up to it. Without costs `stalled_s` is None, and that time is in `decode_s`.
    """
    bands = _bands(requests, context.warmup_ns)
    if not bands:
        return {}
    rows = np.flatnonzero(np.any(list(bands.values()), axis=0))
    rows = rows[np.argsort(requests["request"][rows])]
    names = ("request", "replica", "prompt_tokens", *_STAMPS)
    chosen = {name: requests[name][rows] for name in names}
    times_ns = phase_times_ns(chosen, steps, events, context.costs_of)
    e2e_ns = chosen["finish_ns"] - chosen["arrival_ns"]
    found: Phases = {}
    for quantile, band in bands.items():
        inside = band[rows]
        found[quantile] = {"requests": int(inside.sum()), "e2e_s": _mean_s(e2e_ns[inside])}
        for phase in PHASES:
            phase_ns = times_ns[phase]
            mean_s = None if phase_ns is None else _mean_s(phase_ns[inside])
            found[quantile][f"{phase}_s"] = mean_s
    return found


def _mean_s(values_ns: Ints) -> float:
    return int(values_ns.sum()) / len(values_ns) / NS_PER_S


def _bands(requests: Columns, warmup_ns: int) -> dict[str, NDArray[np.bool_]]:
    """Tell which requests are at each quantile, shape (requests,); nothing if none counts."""
    counts = (requests["outcome"] == FINISHED) & (requests["arrival_ns"] >= warmup_ns)
    rows = np.flatnonzero(counts)
    if not len(rows):
        return {}
    e2e_ns = requests["finish_ns"][rows] - requests["arrival_ns"][rows]
    ordered = rows[np.argsort(e2e_ns, kind="stable")]
    reach, bands = max(BAND * len(rows), 0.5), {}
    for name, quantile in QUANTILES.items():
        bands[name] = np.zeros(len(counts), dtype=np.bool_)
        distance = np.abs(np.arange(len(rows)) - quantile * (len(rows) - 1))
        bands[name][ordered[distance <= reach]] = True
    return bands


def phase_times_ns(
    requests: Mapping[str, Ints], steps: Columns, events: Columns, costs_of: CostsOf | None
) -> dict[str, Ints | None]:
    """Return the time that each request was in each phase, in ns; they add up to its E2E latency.

    Args:
        requests: Finished ones, in ascending order of their numbers.
        steps: The steps table; it is read once, chunk by chunk.
        events: The events table.
        costs_of: Prices steps; without it nobody is known to be stalled: None.
    """
    arrival_ns, queued_ns, admitted_ns, first_ns, finish_ns = (requests[name] for name in _STAMPS)
    lost_ns = _lost_ns(requests, events)
    place, end_ns, gap_ns = _gaps(requests["request"], events)
    gaps_ns = _sums(place, gap_ns, len(first_ns))
    decode_ns = finish_ns - first_ns - gaps_ns
    stalled_ns = None
    if costs_of is not None:
        replica = requests["replica"]
        spans = [(replica, first_ns, finish_ns), (replica[place], end_ns - gap_ns, end_ns)]
        whole_ns, inside_ns = _stalled_ns(steps, spans, costs_of)
        stalled_ns = whole_ns - _sums(place, inside_ns, len(first_ns))
        decode_ns = decode_ns - stalled_ns
    return {
        "front_end": queued_ns - arrival_ns,
        "queue": admitted_ns - queued_ns,
        "prefill": lost_ns - admitted_ns,
        "decode": decode_ns,
        "stalled": stalled_ns,
        "preempted": first_ns - lost_ns + gaps_ns,
    }


def _lost_ns(requests: Mapping[str, Ints], events: Columns) -> Ints:
    """Return when each request first lost its cache before its first token; else when that came.

    With all of the prompt computed the first token is on its way, and comes nonetheless (R42).
    """
    lost_ns = requests["first_token_ns"].copy()
    place, chosen = _places(requests["request"], events, LOSSES)
    early = events["tokens"][chosen] < requests["prompt_tokens"][place]
    np.minimum.at(lost_ns, place[early], events["time_ns"][chosen][early])
    return lost_ns


def _gaps(numbers: Ints, events: Columns) -> tuple[Ints, Ints, Ints]:
    """Return the gaps around preemptions: place of the request, end, and length."""
    place, chosen = _places(numbers, events, RETURNS)
    return place, events["time_ns"][chosen], events["gap_ns"][chosen]


def _places(numbers: Ints, events: Columns, kinds: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the events of some kinds that concern these requests: place of the request, row."""
    rows = np.flatnonzero(np.isin(events["event"], kinds))
    asked = events["request"][rows]
    place = np.minimum(np.searchsorted(numbers, asked), len(numbers) - 1)
    known = numbers[place] == asked
    return place[known], rows[known]


def _sums(place: Ints, values: Ints, count: int) -> Ints:
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, place, values)
    return sums


def _stalled_ns(
    steps: Columns, spans: Sequence[tuple[Ints, Ints, Ints]], costs_of: CostsOf
) -> list[Ints]:
    """Return for how long prompts lengthened the steps of replicas that end within spans of time.

    Each of `spans` is replicas, instants after which they begin, and instants up to which they go.
    """
    replicas = np.concatenate([part for replica, _, _ in spans for part in (replica, replica)])
    instants_ns = np.concatenate([part for _, begin, end in spans for part in (begin, end)])
    upto_ns = _stalled_upto_ns(steps, replicas, instants_ns, costs_of)
    found, start = [], 0
    for replica, _, _ in spans:
        begin, end = np.split(upto_ns[start : start + 2 * len(replica)], 2)
        found.append(end - begin)
        start += 2 * len(replica)
    return found


def _stalled_upto_ns(steps: Columns, replicas: Ints, instants_ns: Ints, costs_of: CostsOf) -> Ints:
    """Return for how long prompts have lengthened the steps of a replica that ended by an instant.

    A running sum over the steps, known up to a constant of the replica. A step is added at the
    first instant of its replica that isn't before its end; so steps may come in any order.
    """
    sorted_ns, places = np.sort(instants_ns), len(instants_ns) + 1
    keys = replicas * places + np.searchsorted(sorted_ns, instants_ns)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    added = np.zeros(places, dtype=np.int64)
    for chunk in chunks(steps, ("prefill_seqs", *_OF_STEPS)):
        with_prompts = np.flatnonzero(chunk["prefill_seqs"] > 0)
        those = {name: chunk[name][with_prompts] for name in _OF_STEPS}
        end_place = np.searchsorted(sorted_ns, those["start_ns"] + those["duration_ns"])
        place = np.searchsorted(ordered, those["replica"] * places + end_place)
        np.add.at(added, place, lengthened_ns(those, costs_of))
    upto_ns = np.empty_like(keys)
    upto_ns[order] = np.cumsum(added)[:-1]
    return upto_ns


def lengthened_ns(steps: Columns, costs_of: CostsOf) -> Ints:
    """Return by how much prompts lengthen each step that computes some; all if nobody decodes."""
    decoding = np.flatnonzero(steps["decode_seqs"] > 0)
    left_ns = steps["duration_ns"] - steps["swap_ns"]
    if len(decoding):
        alone = {name: steps[name][decoding] for name in _OF_STEPS}
        alone |= dict.fromkeys(_OF_CHUNKS, np.zeros_like(decoding))
        price_ns = np.sum([part_ns for _, part_ns in costs_of(alone).parts_ns], axis=0)
        left_ns[decoding] -= np.rint(price_ns).astype(np.int64)
    lengthened: Ints = np.maximum(left_ns, 0)
    return lengthened
