"""A finished search → its answer: the sentence, what has to be known of it, what was tried."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kvsim.metrics import finite_or_none
from kvsim.report.figure import Table
from kvsim.studies.capacity.answer import CapacityAnswer, Reason, Trial, Tried
from kvsim.studies.capacity.estimate import Estimate
from kvsim.studies.capacity.knob import Knob
from kvsim.studies.capacity.limit import Found, Search
from kvsim.studies.capacity.observe import DRAWN, RANKS, Observed
from kvsim.studies.capacity.simulation import Question

_DIGITS = 4  # of the ends of an interval, rounded so that it holds the exact ones


def answer_of(question: Question, search: Search, found: Found) -> CapacityAnswer:
    """Return the answer that a search has found."""
    knob = question.knob
    ends = [_value(knob, place, way) for place, way in ((found.easy, -1), (found.hard, 1))]
    low, high = ends if knob.rising else reversed(ends)
    answer = CapacityAnswer(
        path=knob.path,
        unit=knob.unit,
        value=_value(knob, found.place, 0),
        low=low,
        high=high,
        feasible=ends[0],
        confidence=search.terms.confidence,
        limited_by=found.bound.name if found.bound and found.stopped != "range" else None,
        stopped=found.stopped,
        sentence="",
        notes=list(_notes(question, search, found)),
        rising=knob.rising,
        slo=question.slo,
        allowed={bound.name: bound.allowed for bound in search.bounds},
        tried=_tried(search),
        trials=_trials(search),
    )
    return replace(answer, sentence=sentence_of(answer, knob))


def _value(knob: Knob, place: float | None, harder: int) -> float | None:
    """Return the value at a place; ends of an interval are rounded outwards."""
    if place is None:
        return None
    value = knob.value(place)
    if knob.whole:
        return knob.inwards(value)
    if not harder or not value:
        return float(f"{value:.{_DIGITS}g}")
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - _DIGITS + 1)
    upwards = (harder > 0) == knob.rising
    units = math.ceil(value / unit - 1e-9) if upwards else math.floor(value / unit + 1e-9)
    return float(f"{units * unit:.{_DIGITS}g}")


# The answer in words


def sentence_of(answer: CapacityAnswer, knob: Knob) -> str:
    """Return the answer in one or two sentences."""
    if answer.stopped == "never":
        return _never(answer, knob)
    if answer.feasible is None:
        return (
            f"The search ended before it found a value that surely meets the SLO "
            f"({_REASONS[answer.stopped]})."
        )
    side = "Up to" if knob.rising else "From"
    plural = "" if knob.rising else " on"
    start = f"{side} {knob.show(answer.feasible)}{plural} the SLO is met"
    if answer.stopped == "range":
        return f"{start}: nothing that was tried surely misses it."
    why = _REASONS[answer.stopped]
    limit, vague = "the limit was not reached", f" ({why})"
    if answer.limited_by is not None:
        limit = f"{answer.limited_by} sets the limit"
        vague = f", which is not told more exactly ({why})"
    harder = answer.high if knob.rising else answer.low
    if answer.confidence is None:
        missed = "" if harder is None else f", at {knob.show(harder)} it is missed"
        return f"{start}{missed}; {limit}."
    if answer.value is None or answer.low is None or answer.high is None:
        return f"{start}; {limit}{vague}."
    interval = f"{100 * answer.confidence:g} % interval {_range(answer.low, answer.high, knob)}"
    return (
        f"{start}; the limit is {knob.show(answer.value)} ({interval}), set by {answer.limited_by}."
    )


_REASONS: Mapping[Reason, str] = {
    "precise": "the interval is narrow enough",
    "resolution": "the search is fine enough",
    "replications": "no more replications were allowed",
    "budget": "the time was up",
    "range": "no value that may be tried surely misses the SLO",
    "never": "no value that may be tried meets the SLO",
}


def _range(low: float, high: float, knob: Knob) -> str:
    return f"{knob.figure(low)} to {knob.figure(high)}"


def _never(answer: CapacityAnswer, knob: Knob) -> str:
    easiest, *_, hardest = sorted(
        [*answer.tried, *answer.tried], key=lambda one: knob.place(one.value)
    )
    why = {
        "unstable": "the queue grows without end",
        "refused": next((one.refusal for one in answer.trials if one.refusal), ""),
    }.get(easiest.status, f"{easiest.worst} is missed")
    if hardest.status == "met":
        larger, instead = ("harder", "with") if knob.rising else ("easier", "without")
        return (
            f"Larger is not {larger} here: at {knob.show(easiest.value)} {why}, at "
            f"{knob.show(hardest.value)} the SLO is met. Ask {instead} --smallest."
        )
    return f"No value that was tried meets the SLO: at {knob.show(easiest.value)} {why}."


def _notes(question: Question, search: Search, found: Found) -> Iterator[str]:
    terms = search.terms
    yield f"Stopped: {_REASONS[found.stopped]}."
    if question.steady:
        longest = max(requests or 0 for _, requests in search.observed)
        yield (
            f"Steady state: runs of up to {longest:,} requests, whatever the scenario says of "
            "their length. The warm-up is cut by MSER-5, and the end, where servers empty."
        )
    else:
        yield (
            "No steady state: every run is the scenario's own, from an empty server to its end, "
            "without what arrives before warmup_s."
        )
    if terms.confidence is None:
        yield (
            "Nothing in this traffic is random: the interval is the search's resolution, and no "
            "statistical uncertainty is in it."
        )
    unstable = [one for one in _tried(search) if one.status == "unstable"]
    if unstable:
        knob = question.knob
        first = (min if knob.rising else max)(unstable, key=lambda one: one.value)
        at = knob.show(first.value)
        yield f"At {at} the queue is unstable: it still grows at the end of a run."
    yield from _refused(question.knob, search)
    yield from _unjudged(search)
    yield from _not_monotone(question.knob, search)


def _refused(knob: Knob, search: Search) -> Iterator[str]:
    """Say why the easiest of the values that were refused is."""
    refused = [
        (value, one.refusal)
        for (value, _), observed in search.observed.items()
        for one in observed
        if one.refusal
    ]
    if refused:
        value, why = min(refused, key=lambda each: knob.place(each[0]))
        yield f"At {knob.show(value)} it is refused: {why.splitlines()[0].rstrip('.')}."


def _unjudged(search: Search) -> Iterator[str]:
    """Name the targets of which no simulation had a value."""
    estimates = [search.estimate(value, requests, None) for value, requests in search.observed]
    for place, bound in enumerate(search.bounds):
        if all(np.isnan(one.means[place]).all() for one in estimates if not one.refusal):
            yield f"{bound.name} can't be judged: no request has such a value."


def _not_monotone(knob: Knob, search: Search) -> Iterator[str]:
    """Warn if a harder value met the SLO where an easier one missed it."""
    tried = sorted(_tried(search), key=lambda one: knob.place(one.value))
    missed = None
    for one in tried:
        if one.status in {"missed", "unstable", "refused"}:
            missed = missed or one
        elif one.status == "met" and missed is not None:
            yield (
                f"Not monotone: {knob.show(one.value)} meets the SLO, {knob.show(missed.value)} "
                "does not. `kvsim sweep` shows the whole range."
            )
            return


# What was tried


def tried_table(answer: CapacityAnswer) -> Table:
    """Return what was tried as text, one value a row."""
    header = [answer.unit or answer.path.rpartition(".")[2], "runs", "", "nearest target"]
    header += ["of its bound", "interval"]
    rows = []
    for one in answer.tried:
        shown = "–" if one.mean is None else _times(one.mean)
        known = one.low is not None and one.high is not None and answer.confidence is not None
        interval = f"{_times(one.low or 0)} to {_times(one.high or 0)}" if known else "–"
        value = f"{one.value:.4g}" if one.value < 1e6 else f"{one.value:,.0f}"
        rows.append([value, str(one.replications), one.status, one.worst, shown, interval])
    return Table(header, rows)


def _times(excess: float) -> str:
    return f"{excess:.2f}" if excess < 100 else f"{excess:.0f}"


def _tried(search: Search) -> Sequence[Tried]:
    """Return each value once, by its longest runs."""
    longest: dict[float, int | None] = {}
    for value, requests in search.observed:
        longest[value] = max(requests or 0, longest.get(value) or 0) or None
    found = []
    for value in sorted(longest):
        one = search.estimate(value, longest[value], None)
        place = _telling(one)
        mean, low, high = map(finite_or_none, one.excess(place))
        worst = one.bounds[place].name
        found.append(Tried(value, one.replications, one.status, worst, mean, low, high))
    return found


def _telling(one: Estimate) -> int:
    """Return the worst bound; of an undecided value one that is undecided."""
    if one.status != "undecided" or one.excess(one.worst)[2] > 1:
        return one.worst
    return int(np.nanargmax([one.excess(place)[2] for place in range(len(one.bounds))]))


def _trials(search: Search) -> Sequence[Trial]:
    found = []
    for (value, requests), observed in sorted(
        search.observed.items(), key=lambda item: (item[0][0], item[0][1] or 0)
    ):
        together = search.estimate(value, requests, None)
        found += [_trial(together, number, one) for number, one in enumerate(observed)]
    return found


def _trial(together: Estimate, number: int, one: Observed) -> Trial:
    window = slice(together.warmup, max(one.end, together.warmup))
    span_s = float(np.ptp(one.arrival_s[window])) if one.arrival_s[window].size else 0.0
    return Trial(
        value=together.value,
        replication=number,
        requests=window.stop - window.start,
        warmup_requests=together.warmup,
        growth=one.growth(),
        means={
            bound.name: finite_or_none(float(together.means[place, number]))
            for place, bound in enumerate(together.bounds)
        },
        latencies_s=_percentiles(one, window),
        goodput_per_s=float(one.good[window].sum()) / span_s if span_s else None,
        refusal=one.refusal,
    )


def _percentiles(one: Observed, window: slice) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for latency in DRAWN:
        values = one.latencies_s.get(latency, np.empty(0))[window]
        values = values[~np.isnan(values)]
        for rank in RANKS:
            name = f"{latency}_p{rank}_s"
            found[name] = float(np.percentile(values, rank)) if values.size else None
    return found
