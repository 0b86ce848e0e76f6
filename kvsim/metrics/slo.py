"""The verdict: does the run meet its targets, by what margin, said in one sentence."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics import Figures, finite_or_none
from kvsim.metrics.catalog import (
    format_figure,
    format_number,
    latency_and_statistic,
    metric_of,
    percent,
)
from kvsim.metrics.latency import FINISHED, Statistics, request_latency
from kvsim.metrics.targets import check_targets
from kvsim.tables import Columns


@dataclass(frozen=True, slots=True)
class Target:
    """One target of the SLO: a bound on a figure, which has the target's name without its `max_`.

    `value` and `met` are None if no request has such a figure: it can't be judged.
    `margin` is (bound − value) / bound: what is left of the bound, negative if it is missed;
    None without a value, or if the bound is missed and 0, or next to it.
    """

    name: str
    figure: str
    value: float | None
    bound: float
    margin: float | None
    met: bool | None

    @property
    def label(self) -> str:
        """What the target bounds, as it stands within a sentence."""
        label = metric_of(self.figure).label
        return label if label[:2].isupper() else label[0].lower() + label[1:]

    def show(self, value: float | None) -> str:
        """Show a value or bound of this target with its unit."""
        return format_figure(self.figure, value)


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
    slo: Mapping[str, float] | None, figures: Figures, statistics: Statistics
) -> dict[str, Any]:
    """Return the verdict: `met`, a sentence, and the targets.

    `met` is None if there is no target, or if none is missed and one can't be judged.
    """
    if slo:
        check_targets(slo)
    targets = [_target(name, bound, figures, statistics) for name, bound in (slo or {}).items()]
    met, sentence = _overall(targets, figures)
    return {"met": met, "sentence": sentence, "targets": [asdict(target) for target in targets]}


def _target(name: str, bound: float, figures: Figures, statistics: Statistics) -> Target:
    parts, figure = latency_and_statistic(name), name.removeprefix("max_")
    value = statistics[parts[0]][parts[1]] if parts else figures[figure]
    if value is None:
        return Target(name, figure, None, float(bound), None, None)
    met = value <= bound
    margin = finite_or_none((bound - value) / bound) if bound else 0.0 if met else None
    return Target(name, figure, float(value), float(bound), margin, met)


def _overall(targets: list[Target], figures: Figures) -> tuple[bool | None, str]:
    if not figures["requests_total"]:
        return None, "No request arrived: there is nothing to judge."
    if not figures["requests_finished"]:
        return (False if targets else None), f"No request finished: {_failures(figures)}."
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


def _failures(figures: Figures) -> str:
    counts = [
        f"{figures[f'requests_{outcome}']} {outcome.replace('_', ' ')}"
        for outcome in ("rejected", "timed_out", "unfinished")
        if figures[f"requests_{outcome}"]
    ]
    return ", ".join(counts)


def _served(figures: Figures) -> str:
    finished, total = figures["requests_finished"], figures["requests_total"]
    if finished == total:
        return "The only request finished." if total == 1 else f"All {total} requests finished."
    return f"{finished} of {total} requests finished ({_failures(figures)})."


def _tightness(target: Target) -> float:
    return float("-inf") if target.margin is None else target.margin


def _unknown_sentence(unknown: list[Target], total: int) -> str:
    names = ", ".join(target.label for target in unknown)
    met = total - len(unknown)
    others = f"; {met} of {total} targets {'is' if met == 1 else 'are'} met" if met else ""
    return f"The SLO can't be judged: no request has a value of {names}{others}."


def _met_sentence(targets: list[Target]) -> str:
    worst = min(targets, key=_tightness)
    room = f", {percent(worst.margin)} below" if worst.margin else ", at"
    of = f", the tightest of {len(targets)} targets" if len(targets) > 1 else ""
    return (
        f"Meets its SLO: {worst.label} is {worst.show(worst.value)}{room} "
        f"the bound of {worst.show(worst.bound)}{of}."
    )


def _missed_sentence(missed: list[Target], total: int) -> str:
    worst = min(missed, key=_tightness)
    beyond = ", above"
    if worst.margin is not None:
        beyond = f", {format_number(1 - worst.margin)} times"
    of = f"; {len(missed)} of {total} targets missed" if total > 1 else ""
    return (
        f"Misses its SLO: {worst.label} is {worst.show(worst.value)}{beyond} "
        f"the bound of {worst.show(worst.bound)}{of}."
    )
