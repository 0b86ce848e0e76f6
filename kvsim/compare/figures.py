"""Every figure of a run beside the base's, by what the two runs have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvsim.compare.change import Change, by_weight, independent, paired
from kvsim.compare.pairs import LATENCIES, STATISTICS, Pairs, latency_changes, pairs_of
from kvsim.compare.parts import Bounds, Estimate, Floats, mean_of
from kvsim.compare.sides import Side
from kvsim.metrics.catalog import latency_and_statistic
from kvsim.metrics.latency import FINISHED
from kvsim.metrics.slo import meets_bounds
from kvsim.metrics.summary import COMPARED, estimate
from kvsim.metrics.throughput import AT_ONCE_NS
from kvsim.rundir.read import REPLICATIONS
from kvsim.statistics import BATCHES
from kvsim.table_files import read_figures
from kvsim.units import NS_PER_S

LATENCY_FIGURES = tuple(f"{name}_{of}_s" for name in LATENCIES for of in STATISTICS)
FIGURES = (
    *(name for name in COMPARED if latency_and_statistic(name) is None),
    *("usd_per_hour", "usd_per_million_output_tokens"),
    *LATENCY_FIGURES,
)
RATES = ("requests_per_s", "output_tokens_per_s", "goodput_requests_per_s")
CERTAIN = {"usd_per_hour"}  # prices are not simulated

Basis = Literal["replications", "requests", "independent"]


@dataclass(frozen=True, slots=True, eq=False)
class Against:
    """A run beside the base.

    Attributes:
        base: The base.
        other: The run.
        basis: What both have in common: `replications` with the same draws, at least the same
            `requests`, or nothing: they are `independent`.
        count: How many replications are paired, or how many requests both sent.
        changes: Of all figures that either has, those that matter first.
        pairs: The same requests in both (of the first replication); None if they faced others.
    """

    base: Side
    other: Side
    basis: Basis
    count: int
    changes: list[Change]
    pairs: Pairs | None

    def change(self, name: str) -> Change | None:
        """Return the change of a figure, None if neither run has it."""
        return next((change for change in self.changes if change.name == name), None)


def sides_of(found: Sequence[Against]) -> list[Side]:
    """Return all runs of a comparison, the base first."""
    return [found[0].base, *(one.other for one in found)]


def against(base: Side, other: Side) -> Against:
    """Compare a run with the base.

    Raises:
        InputError: A table of theirs is damaged.
    """
    pairs = pairs_of(base, other) if base.shares("requests_sha256", other) else None
    replicated = min(side.summary["replications"] for side in (base, other)) > 1
    if replicated and base.shares("seed", other):
        changes, count = _over_replications(base, other)
        return Against(base, other, "replications", count, _weighed(changes), pairs)
    changes = _each_alone(base, other, of_first=pairs is not None)
    if pairs is None:
        arrived = min(side.summary["figures"]["requests_total"] for side in (base, other))
        return Against(base, other, "independent", arrived, _weighed(changes), None)
    if _window_ns(base) == _window_ns(other):
        changes |= _rates(base, other)
    changes |= latency_changes(pairs)
    return Against(base, other, "requests", len(pairs), _weighed(changes), pairs)


def _weighed(changes: Mapping[str, Change]) -> list[Change]:
    """Order figures by what matters; what neither run has, or never happened, is left out."""
    return by_weight([change for change in changes.values() if change.base or change.other])


# The same replications


def _over_replications(base: Side, other: Side) -> tuple[dict[str, Change], int]:
    """Compare replication by replication: the same one faces the same draws."""
    tables = [
        read_figures(side.run.folder / REPLICATIONS, side.variant, FIGURES)
        for side in (base, other)
    ]
    count = min(len(table[FIGURES[0]]) for table in tables)
    return {
        name: paired(name, *(_known(table[name][:count]) for table in tables)) for name in FIGURES
    }, count


def _known(values: Floats) -> Estimate | None:
    """Return the mean over replications; None if one of them doesn't have the figure."""
    return None if np.isnan(values).any() else mean_of(values)


# The same requests


def _rates(base: Side, other: Side) -> dict[str, Change]:
    """Compare what was completed in each of 20 equal parts of the window until arrivals stop."""
    mine, others = _rate_estimates(base), _rate_estimates(other)
    return {name: paired(name, mine[name], others[name]) for name in mine if name in others}


def _rate_estimates(side: Side) -> dict[str, Estimate]:
    """Return the rates of a run, and what they are without each part of the window."""
    requests, window_ns = side.requests, _window_ns(side)
    if not window_ns:
        return {}
    finish_ns = requests["finish_ns"]
    inside = (requests["outcome"] == FINISHED) & (finish_ns <= window_ns)
    part = np.minimum(finish_ns[inside] * BATCHES // window_ns, BATCHES - 1)
    weights = {"requests_per_s": None, "output_tokens_per_s": requests["output_tokens"][inside]}
    if slo := side.inputs["slo"]:
        weights["goodput_requests_per_s"] = meets_bounds(requests, slo)[inside]
    length_s = window_ns / NS_PER_S / BATCHES
    return {
        name: mean_of(np.bincount(part, weight, BATCHES) / length_s)
        for name, weight in weights.items()
    }


def _window_ns(side: Side) -> int:
    """Return until when requests arrive; 0 if all come at once, and no window is known."""
    horizon_ns = int(side.run.manifest["horizon_ns"])
    return horizon_ns if horizon_ns > AT_ONCE_NS else 0


# Nothing in common


def _each_alone(base: Side, other: Side, of_first: bool) -> dict[str, Change]:
    """Compare figures by what each run alone tells of them.

    With `of_first` they are those of the first replication, else the best estimates.
    """
    mine, others = (_alone(side, of_first) for side in (base, other))
    return {
        name: independent(name, (mine[name][0], others[name][0]), (mine[name][1], others[name][1]))
        for name in FIGURES
    }


def _alone(side: Side, of_first: bool) -> dict[str, tuple[float | None, Bounds | None]]:
    """Return each figure of a run with its interval, None where it isn't known."""
    summary = side.summary
    bounds: dict[str, Bounds] = {}
    if summary["replications"] == 1 or of_first:
        bounds |= {name: _about(rate) for name, rate in _rate_estimates(side).items()}
    if summary["replications"] == 1 or not of_first:
        for name, found in summary["uncertainty"].items():
            if None not in {found["low"], found["high"]}:
                bounds[name] = found["low"], found["high"]
    figures: Mapping[str, float | None] = summary["figures"]
    values = {name: figures[name] if of_first else estimate(summary, name) for name in FIGURES}
    bounds |= {name: (value, value) for name in CERTAIN if (value := values[name]) is not None}
    return {name: (value, bounds.get(name)) for name, value in values.items()}


def _about(rate: Estimate) -> Bounds:
    low, high = rate.bounds(rate.value, rate.again)
    return max(low, 0.0), high
