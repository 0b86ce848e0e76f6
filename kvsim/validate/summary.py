"""How far predictions are from measurements: by metric, by group, and beside other simulators."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvsim.errors import InputError
from kvsim.validate.case import METRICS, OVERALL, Case
from kvsim.validate.deployments import gpu_of, profile_name
from kvsim.validate.peers import Errors
from kvsim.validate.run import Row


@dataclass(frozen=True, slots=True)
class Spread:
    """Absolute errors of several measurements, in percent; `p90` is over the measurements."""

    n: int
    median: float
    mean: float
    p90: float


@dataclass(frozen=True, slots=True)
class Beside:
    """Another simulator's absolute errors, and ours on the same measurements."""

    simulator: str
    metric: str
    theirs: Spread
    ours: Spread


@dataclass(frozen=True, slots=True)
class Summary:
    """What all rows say together; over whole runs.

    Attributes:
        metrics: By metric.
        groups: By what is told apart (gpu, model, profile), its value, and metric.
        beside: Other simulators.
        unpredicted: Reason by experiment.
    """

    metrics: Mapping[str, Spread]
    groups: Mapping[str, Mapping[str, Mapping[str, Spread]]]
    beside: Sequence[Beside]
    unpredicted: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON: metrics by their names, the rest beside them."""
        return {
            **{metric: asdict(spread) for metric, spread in self.metrics.items()},
            "groups": {
                kind: {
                    name: {metric: asdict(spread) for metric, spread in metrics.items()}
                    for name, metrics in groups.items()
                }
                for kind, groups in self.groups.items()
            },
            "peers": [asdict(beside) for beside in self.beside],
            "not_predicted": dict(self.unpredicted),
        }


def summarize(rows: Sequence[Row], cases: Sequence[Case], peers: Mapping[str, Errors]) -> Summary:
    """Sum up the rows of cases."""
    whole = [row for row in rows if row.stage == OVERALL and row.ape is not None]
    traits = {case.id: traits_of(case) for case in cases}
    groups = {}
    for kind in ("gpu", "model", "profile"):
        named = sorted({traits[row.id][kind] for row in whole})
        groups[kind] = {
            name: _by_metric(row for row in whole if traits[row.id][kind] == name) for name in named
        }
    return Summary(
        metrics=_by_metric(whole),
        groups=groups,
        beside=list(_beside(whole, peers)),
        unpredicted={row.id: row.reason for row in rows if row.reason},
    )


def traits_of(case: Case) -> dict[str, str]:
    """Return what a measurement is told apart by: GPU of the catalog, model, profile."""
    server = case.server
    try:
        gpu = gpu_of(server.gpu)
    except InputError:
        gpu = server.gpu
    return {
        "gpu": gpu,
        "model": server.model,
        "profile": profile_name(server.engine, server.version),
    }


def spread_of(errors: Iterable[float]) -> Spread:
    """Return the spread of at least one absolute error."""
    values = np.fromiter(errors, dtype=np.float64)
    return Spread(
        len(values),
        float(np.median(values)),
        float(values.mean()),
        float(np.percentile(values, 90)),
    )


def _by_metric(rows: Iterable[Row]) -> dict[str, Spread]:
    errors: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for row in rows:
        if row.ape is not None:
            errors[row.metric].append(row.ape)
    return {metric: spread_of(found) for metric, found in errors.items() if found}


def _beside(rows: Sequence[Row], peers: Mapping[str, Errors]) -> Iterable[Beside]:
    ours = {(row.id, row.metric): row.ape for row in rows if row.ape is not None}
    for simulator, errors in peers.items():
        for metric in METRICS:
            shared = [key for key in errors if key[1] == metric and key in ours]
            if shared:
                theirs = spread_of(errors[key] for key in shared)
                yield Beside(simulator, metric, theirs, spread_of(ours[key] for key in shared))
