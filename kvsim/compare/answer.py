"""The answer in words: what differs, as far as this can tell, and on what that rests."""

from collections.abc import Sequence
from typing import Any

from kvsim.compare.change import Change
from kvsim.compare.figures import Against
from kvsim.compare.pairs import shares
from kvsim.compare.sides import Side
from kvsim.metrics.catalog import format_figure, metric_of, percent
from kvsim.names import short_name
from kvsim.report.sections import HARDLY_DIFFERENT, HEADLINES, times

NOISE = "as far as this can tell"
_ONLY_FIRST = "Only the first replication is compared; the SLO is judged on the mean over all."
SOONER = (("ttft", "first token"), ("e2e", "whole answer"))


def headline(one: Against) -> str:
    """Return the answer in one sentence."""
    base, other = short_name(one.base.name), short_name(one.other.name)
    return f"{_finding(one, base, other)} ({basis(one)}){_slo(one, base, other)}."


def _slo(one: Against, base: str, other: str) -> str:
    """Say who meets its SLO, if only one of both does."""
    met = [side.summary["verdict"]["met"] for side in (one.other, one.base)]
    if sorted(met, key=str) != [False, True]:
        return ""
    verbs = ("meets", "misses") if met[0] else ("misses", "meets")
    return f"; {other} {verbs[0]} its SLO, {base} {verbs[1]} it"


def basis(one: Against) -> str:
    """Say on what a comparison rests."""
    if one.basis == "replications":
        return f"paired over {one.count:,} replications with the same seed"
    if one.basis == "requests":
        return f"paired on {_counted(one.count)}"
    return "independent runs: they did not face the same requests"


def _counted(requests: int) -> str:
    return f"{requests:,} request{'' if requests == 1 else 's'}"


def _finding(one: Against, base: str, other: str) -> str:
    idle = [side for side in (one.base, one.other) if not finished(side)]
    if len(idle) == 2:
        return f"Neither {other} nor {base} finished a request"
    if idle:
        others = one.other if idle[0] is one.base else one.base
        done = f"{finished(others):,} of {total(others):,}"
        return f"{short_name(idle[0].name)} finished no request, {short_name(others.name)} {done}"
    if not any(change.difference for change in one.changes):
        return f"{other} and {base} don't differ: all {len(one.changes)} figures are the same"
    if all(change.standing == "alike" for change in one.changes):
        return f"{other} and {base} don't differ {NOISE}"
    return _differences(one, base, other)


def _differences(one: Against, base: str, other: str) -> str:
    main = [(words, change) for words, name in HEADLINES if (change := one.change(name))]
    has = [_amount(words, change) for words, change in main if change.standing != "alike"]
    same = [f"the same {words}" for words, change in main if change.difference == 0]
    alike = [words for words, change in main if change.standing == "alike" and change.difference]
    said = []
    if has:
        also = f", and {' and '.join(same)}" if same else ""
        said.append(f"{other} has {' and '.join(has)} of {base}{also}{_cost(one)}")
    elif same:
        said.append(f"{other} has {' and '.join(same)} as {base}{_cost(one)}")
    if alike:
        where = "it doesn't differ" if said else f"{other} doesn't differ from {base}"
        said.append(f"{where} in {' and '.join(alike)} {NOISE}")
    told = any(change.standing == "sure" and not _hardly(change) for _, change in main)
    if not told and (first := _first_sure(one)):
        what = f"{times(first.ratio)} that" if first.ratio else f"not that ({_values(first)})"
        said.append(f"{metric_of(first.name).label} is {what} of {base}")
    return "; ".join(said)


def _amount(words: str, change: Change) -> str:
    if change.ratio is None:
        return f"a {words} of {_values(change)}"
    if _hardly(change):
        return f"about the same {words}"
    return f"{times(change.ratio)} the {words}"


def _hardly(change: Change) -> bool:
    return change.ratio is not None and abs(change.ratio - 1) < HARDLY_DIFFERENT


def _values(change: Change) -> str:
    shown = (format_figure(change.name, value) for value in (change.other, change.base))
    return " instead of ".join(shown)


def _cost(one: Against) -> str:
    change = one.change("usd_per_hour")
    if change is None or change.ratio is None:
        return ""
    return ", at the same cost" if change.ratio == 1 else f", at {times(change.ratio)} the cost"


def _first_sure(one: Against) -> Change | None:
    return next((change for change in one.changes if change.standing == "sure"), None)


def finished(side: Side) -> int:
    """Return how many requests a run finished."""
    count: int = side.summary["figures"]["requests_finished"]
    return count


def total(side: Side) -> int:
    """Return how many requests arrived in a run."""
    count: int = side.summary["figures"]["requests_total"]
    return count


# More sentences


def cautions(found: Sequence[Against]) -> list[str]:
    """Return what speaks against taking the figures of a run at face value, of all runs."""
    sides = [found[0].base, *(one.other for one in found)]
    return [
        f"Mind, of {short_name(side.name)}: {caveat}"
        for side in sides
        for caveat in side.summary["caveats"]
    ]


def remarks(one: Against) -> list[str]:
    """Return what a reader must know beside the answer."""
    return [
        text
        for text in (
            *(_sooner(one, latency, words) for latency, words in SOONER),
            _apart(one),
            _first_only(one),
            _unknown(one),
        )
        if text
    ]


def _sooner(one: Against, latency: str, words: str) -> str:
    found = shares(one.pairs, latency) if one.pairs else None
    if found is None or not found.faster + found.slower:
        return ""
    when = ((found.faster, "earlier"), (found.slower, "later"), (found.same, "at the same time"))
    said = ", ".join(f"{percent(share)} {how}" for share, how in when if share)
    other = short_name(one.other.name)
    return f"Of {_counted(found.count)} the {words} came, in {other}: {said}."


def _apart(one: Against) -> str:
    """Say how many requests finished in only one of both, which latencies can't compare."""
    if one.pairs is None:
        return ""
    _, base_only, other_only = one.pairs.finished()
    counts = [
        f"{count:,} {what} only in {short_name(side.name)}"
        for what, numbers in (
            ("finished", (base_only, other_only)),
            ("were sent", (one.pairs.base_only, one.pairs.other_only)),
        )
        for count, side in zip(numbers, (one.base, one.other), strict=True)
        if count
    ]
    if not counts:
        return ""
    return f"Latencies are compared of the requests that have them in both: {', '.join(counts)}."


def _first_only(one: Against) -> str:
    """Say that charts and requests are of the first replication."""
    if max(side.summary["replications"] for side in (one.base, one.other)) == 1:
        return ""
    if one.basis == "replications":
        return "Single requests, and charts of them, are those of the first replication."
    return _ONLY_FIRST if one.basis == "requests" else ""


def _unknown(one: Against) -> str:
    count = sum(change.standing == "unknown" for change in one.changes)
    if not count:
        return ""
    figures = "1 figure differs" if count == 1 else f"{count} figures differ"
    return (
        f"{figures} without an interval: one run of each does not tell how surely. Run both with "
        "--replications to know."
    )


def noise(changes: Sequence[Change]) -> str:
    """Name the figures that don't differ, in a sentence; nothing if there are none."""
    names = [metric_of(change.name).label for change in changes if change.standing == "alike"]
    if not any(change.difference for change in changes):
        return ""  # which the answer says
    if not names:
        return ""
    what = "1 figure doesn't" if len(names) == 1 else f"{len(names)} figures don't"
    return f"{what} differ {NOISE}: {', '.join(names)}."


def as_dict(found: Sequence[Against]) -> dict[str, Any]:
    """Return a comparison ready for JSON: the base, and each other run beside it."""
    base = found[0].base
    return {"base": _side_dict(base), "others": [_against_dict(one) for one in found]}


def _side_dict(side: Side) -> dict[str, Any]:
    verdict = side.summary["verdict"]
    return {
        "name": side.name,
        "scenario": side.run.scenario,
        "variant": side.variant,
        "met": verdict["met"],
        "certain": verdict["certain"],
    }


def _against_dict(one: Against) -> dict[str, Any]:
    return {
        **_side_dict(one.other),
        "sentence": headline(one),
        "basis": one.basis,
        "count": one.count,
        "figures": {change.name: _change_dict(change) for change in one.changes},
    }


def _change_dict(change: Change) -> dict[str, Any]:
    return {
        "base": change.base,
        "other": change.other,
        "difference": change.difference,
        "interval": change.bounds,
        "ratio": change.ratio,
        "ratio_interval": change.ratio_bounds,
        "standing": change.standing,
    }
