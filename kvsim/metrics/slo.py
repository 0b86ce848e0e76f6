"""The verdict: does the run meet its targets, by what margin, said in one sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics import Figures, finite_or_none
from kvsim.metrics.catalog import (
    format_figure,
    format_number,
    format_range,
    latency_and_statistic,
    metric_of,
    percent,
)
from kvsim.metrics.latency import FINISHED, Statistics, request_latency
from kvsim.metrics.targets import check_targets
from kvsim.metrics.uncertainty import Intervals, across
from kvsim.statistics import Interval
from kvsim.tables import Columns


@dataclass(frozen=True, slots=True)
class Target:
    """One target of the SLO: a bound on a figure, which has the target's name without its `max_`.

    `value` and `met` are None if no request has such a figure: it can't be judged.
    `margin` is (bound − value) / bound: what is left of the bound, negative if it is missed;
    None without a value, or if the bound is missed and 0, or next to it.
    `low` and `high` are the ends of the value's 95 % interval, None where it is open: so few
    independent observations (`count`) do not bound it. `certain` tells whether the SLO's bound lies
    outside of the interval, None if nothing is known of it.
    """

    name: str
    figure: str
    value: float | None
    bound: float
    margin: float | None
    met: bool | None
    low: float | None = None
    high: float | None = None
    count: int | None = None
    certain: bool | None = None

    @property
    def label(self) -> str:
        """What the target bounds, as it stands within a sentence."""
        label = metric_of(self.figure).label
        return label if label[:2].isupper() else label[0].lower() + label[1:]

    def show(self, value: float | None) -> str:
        """Show a value or bound of this target with its unit."""
        return format_figure(self.figure, value)

    @property
    def found(self) -> str:
        """The value with its unit and its interval, as far as it is known."""
        interval = format_range(self.figure, self.low, self.high)
        value = self.show(self.value)
        return f"{value} ({interval})" if interval and interval != value else value


def request_bounds_s(slo: Mapping[str, float]) -> dict[str, float]:
    """Return the bound in seconds that each latency of a single request has to keep.

    It is the bound of the highest percentile that the SLO names: with targets for p50 and p99,
    half of the requests may exceed the one for p50. Means and ITL bind no single request.
    """
    highest: dict[str, tuple[float, float]] = {}
    for name, bound_s in slo.items():
        latency, statistic = latency_and_statistic(name) or ("", "")
        if latency in {"", "itl"} or statistic == "mean":
            continue
        rank = 100.0 if statistic == "max" else float(statistic[1:])
        highest[latency] = max(highest.get(latency, (-1.0, 0.0)), (rank, bound_s))
    return {latency: bound_s for latency, (_, bound_s) in highest.items()}


def meets_bounds(requests: Columns, slo: Mapping[str, float]) -> NDArray[np.bool_]:
    """Tell for each request whether it finished within every bound; shape (requests,).

    A latency that a finished request doesn't have (TPOT of one token) can't miss its bound.
    """
    good: NDArray[np.bool_] = requests["outcome"] == FINISHED
    for latency, bound_s in request_bounds_s(slo).items():
        good = good & ~(request_latency(requests, latency) > bound_s)
    return good


def judge(
    slo: Mapping[str, float] | None,
    figures: Figures,
    statistics: Statistics,
    intervals: Intervals,
) -> dict[str, Any]:
    """Return the verdict: `met`, whether that is `certain`, a sentence, and the targets.

    The values decide: `met` is None if there is no target, or if none is missed and one can't be
    judged. It is certain if no interval of a target that decides it spans its bound.
    """
    if slo:
        check_targets(slo)
    targets = []
    for name, bound in (slo or {}).items():
        parts, figure = latency_and_statistic(name), name.removeprefix("max_")
        value = statistics[parts[0]][parts[1]] if parts else figures[figure]
        targets.append(_target(name, bound, value, intervals.get(figure)))
    return _verdict(targets, figures)


def judge_replications(verdicts: Sequence[Mapping[str, Any]], figures: Figures) -> dict[str, Any]:
    """Return one verdict on the means over replications, from the verdict on each.

    Args:
        verdicts: What `judge` returned of each replication, for the same SLO.
        figures: Of the first.
    """
    targets = []
    for those in zip(*(verdict["targets"] for verdict in verdicts), strict=True):
        interval = across([target["value"] for target in those])
        value = interval.mean if interval else None
        targets.append(_target(those[0]["name"], those[0]["bound"], value, interval))
    return _verdict(targets, figures)


def _verdict(targets: list[Target], figures: Figures) -> dict[str, Any]:
    met, sentence = _overall(targets, figures)
    return {
        "met": met,
        "certain": _certain(targets, met),
        "sentence": sentence,
        "targets": [asdict(target) for target in targets],
    }


def _target(name: str, bound: float, value: float | None, interval: Interval | None) -> Target:
    figure, bound = name.removeprefix("max_"), float(bound)
    if value is None:
        return Target(name, figure, None, bound, None, None)
    met = value <= bound
    margin = finite_or_none((bound - value) / bound) if bound else 0.0 if met else None
    if interval is None:
        return Target(name, figure, float(value), bound, margin, met)
    low, high = interval.low, interval.high
    above, below = low is not None and low > bound, high is not None and high <= bound
    certain = above or below
    return Target(
        name, figure, float(value), bound, margin, met, low, high, interval.count, certain
    )


def _certain(targets: list[Target], met: bool | None) -> bool | None:
    """Return whether a verdict is certain; None if nothing speaks against it, and not all for."""
    answers = [target.certain for target in targets if target.met is met]
    if met is None or not answers:
        return None
    if met is False and True in answers:  # one that is missed for sure is enough
        return True
    return False if False in answers else None if None in answers else True


def _overall(targets: list[Target], figures: Figures) -> tuple[bool | None, str]:
    if not figures["requests_total"]:
        return None, "No request arrived: there is nothing to judge."
    if not figures["requests_finished"]:
        return (False if targets else None), f"No request finished: {_nothing_served(figures)}."
    if not targets:
        return None, f"No SLO is set. {_served(figures)}"
    missed = [target for target in targets if target.met is False]
    if missed:
        return False, _missed_sentence(missed, len(targets))
    unknown = [target for target in targets if target.met is None]
    if unknown and not figures["requests_measured"]:
        return None, "All requests arrive during the warm-up: no latency is left to judge."
    return (
        (None, _unknown_sentence(unknown, len(targets)))
        if unknown
        else (True, _met_sentence(targets))
    )


def _nothing_served(figures: Figures) -> str:
    """Say why; where all requests share one reason, what it means."""
    total = figures["requests_total"]
    who, clients = f"all {total:,} were", "their clients"
    if total == 1:
        who, clients = "the only one was", "its client"
    reasons = {
        "rejected": f"{who} rejected, too long for max_model_len or the KV cache",
        "timed_out": f"{who} given up by {clients}",
        "unfinished": f"{who} still under way when the run was cut off",
    }
    for outcome, words in reasons.items():
        if figures[f"requests_{outcome}"] == total:
            return words
    return _failures(figures)


def _failures(figures: Figures) -> str:
    counts = [
        f"{figures[f'requests_{outcome}']:,} {outcome.replace('_', ' ')}"
        for outcome in ("rejected", "timed_out", "unfinished")
        if figures[f"requests_{outcome}"]
    ]
    return ", ".join(counts)


def _served(figures: Figures) -> str:
    finished, total = figures["requests_finished"], figures["requests_total"]
    if finished == total:
        return "The only request finished." if total == 1 else f"All {total:,} requests finished."
    return f"{finished:,} of {total:,} requests finished ({_failures(figures)})."


def _tightness(target: Target) -> float:
    return float("-inf") if target.margin is None else target.margin


def _unknown_sentence(unknown: list[Target], total: int) -> str:
    names = ", ".join(target.label for target in unknown)
    met = total - len(unknown)
    others = _so_many_are("met", met, total) if met else ""
    return f"The SLO can't be judged: no request has a value of {names}{others}."


def _met_sentence(targets: list[Target]) -> str:
    unsure = [target for target in targets if target.certain is False]
    worst = min(unsure or targets, key=_tightness)
    room = f", {percent(worst.margin)} below" if worst.margin else ", at"
    of = f", the tightest of {len(targets)} targets" if len(targets) > 1 else ""
    if unsure:
        of = _so_many_are("uncertain", len(unsure), len(targets))
    opening = _opening("Meets", worst)
    return f"{opening}: {worst.label} is {worst.found}{room} {_the_bound(worst)}{of}."


def _missed_sentence(missed: list[Target], total: int) -> str:
    sure = [target for target in missed if target.certain is not False]
    worst = min(sure or missed, key=_tightness)
    beyond = ", above"
    if worst.margin is not None:
        beyond = f", {format_number(1 - worst.margin)} times"
    of = f"; {len(missed)} of {total} targets missed" if total > 1 else ""
    opening = _opening("Misses", worst)
    return f"{opening}: {worst.label} is {worst.found}{beyond} {_the_bound(worst)}{of}."


def _opening(verb: str, target: Target) -> str:
    """Say whether the SLO is met, or in which way it is uncertain."""
    if target.certain is not False:
        return f"{verb} its SLO"
    open_ended = target.high is None if target.met else target.low is None
    if not open_ended:
        return "Too close to call"
    return f"{verb} its SLO, as far as {target.count} independent requests can tell"


def _the_bound(target: Target) -> str:
    return f"the bound of {target.show(target.bound)}"


def _so_many_are(what: str, count: int, total: int) -> str:
    are = "is" if count == 1 else "are"
    return f"; {count} of {total} targets {are} {what}" if total > 1 else ""
