"""Fits the constants of a profile to measured servers, and with each model left out in turn.

Usage: python tools/fit_profile.py PROFILE RECORDS

RECORDS is a file of experiment records (docs/measurements.md); those count whose version has the
profile. Mean TPOT and TTFT depend nearly linearly on the constants, so each is moved once, and the
changes of all predictions solve a weighted least-squares problem of relative errors. The errors of
a left-out model are those with the constants that the others give.
"""

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from kvsim.scenario.profiles import EngineProfile, load_profile
from kvsim.validate import deployments
from kvsim.validate.case import OVERALL, Case
from kvsim.validate.files import read_all
from kvsim.validate.run import rows_of

# What is moved, by how much (s), its least and largest value (s).
CONSTANTS = {
    ("overhead", "fixed_s"): (2e-4, 0.0, 5e-3),
    ("overhead", "per_seq_s"): (5e-6, 0.0, 5e-5),
    ("overhead", "per_all_reduce_s"): (2e-6, 0.0, 2e-5),
    ("front_end", "request_s"): (2e-3, 0.0, 5e-2),
}
METRICS = ("tpot_mean", "ttft_mean", "e2e_mean")
FITTED = ("tpot_mean", "ttft_mean")


@dataclass(frozen=True)
class Point:
    """A measured mean of one server, and which model it serves."""

    id: str
    model: str
    metric: str
    actual: float


Predictions = Mapping[tuple[str, str], float]


def main(name: str, records: Path) -> None:
    """Print the fit on all models, the fit without each, and both kinds of errors."""
    cases = [case for case in read_all([records]) if _has_profile(case, name)]
    base = load_profile(name)
    start = predict(cases, name, base)
    points = [point for point in _points(cases) if (point.id, point.metric) in start]
    moved = {
        key: predict(cases, name, _moved(base, key, step)) for key, (step, *_) in CONSTANTS.items()
    }
    whole = solve(points, base, start, moved)
    print("all models:", _shown(whole))
    errors = {"fitted": _errors(points, whole, base, start, moved)}
    left_out: dict[tuple[str, str], float] = {}
    for model in sorted({point.model for point in points}):
        others = [point for point in points if point.model != model]
        without = solve(others, base, start, moved)
        own = [point for point in points if point.model == model]
        print(f"without {model}:", _shown(without))
        left_out |= _errors(own, without, base, start, moved)
    errors["left out"] = left_out
    for kind, found in errors.items():
        for metric in METRICS:
            percent = np.abs([value for (_, which), value in found.items() if which == metric])
            print(
                f"{kind:8} {metric:9} n {len(percent):2}: median {np.median(percent):.1f} %, "
                f"90th percentile {np.percentile(percent, 90):.1f} %"
            )


def predict(cases: list[Case], name: str, profile: EngineProfile) -> Predictions:
    """Return what the servers do under a profile, in ms, by id and metric."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.yaml"
        YAML().dump(profile.model_dump(mode="json"), path)
        context = get_context("fork")  # the workers inherit the profile that is put in place here
        usual = deployments.profile_name
        deployments.profile_name = lambda *_: str(path)
        try:
            with ProcessPoolExecutor(mp_context=context) as pool:
                rows = [
                    row for found in pool.map(rows_of, cases, [0] * len(cases)) for row in found
                ]
        finally:
            deployments.profile_name = usual
    return {
        (row.id, row.metric): row.predicted
        for row in rows
        if row.stage == OVERALL and row.predicted is not None
    }


def solve(
    points: list[Point], base: EngineProfile, start: Predictions, moved: Mapping[Any, Predictions]
) -> dict[Any, float]:
    """Return the constants within their bounds that fit the points best."""
    values = {key: _value(base, key) for key in CONSTANTS}
    free = [key for key in CONSTANTS if _matters(points, start, moved[key])]
    while free:
        rows, errors = [], []
        for point in (point for point in points if point.metric in FITTED):
            at = point.id, point.metric
            shift = sum(
                (values[key] - _value(base, key)) * _slope(key, at, start, moved)
                for key in CONSTANTS
                if key not in free
            )
            rows.append([_slope(key, at, start, moved) / point.actual for key in free])
            errors.append((point.actual - start[at] - shift) / point.actual)
        steps = np.linalg.lstsq(np.array(rows), np.array(errors), rcond=None)[0]
        found = {key: _value(base, key) + step for key, step in zip(free, steps, strict=True)}
        beyond = [key for key in free if not CONSTANTS[key][1] <= found[key] <= CONSTANTS[key][2]]
        if not beyond:
            return values | found
        worst = beyond[0]
        values[worst] = float(np.clip(found[worst], *CONSTANTS[worst][1:]))
        free.remove(worst)
    return values


def _errors(
    points: list[Point],
    values: Mapping[Any, float],
    base: EngineProfile,
    start: Predictions,
    moved: Mapping[Any, Predictions],
) -> dict[tuple[str, str], float]:
    """Return errors in percent by id and metric."""
    errors = {}
    for point in points:
        at = point.id, point.metric
        ms = start[at] + sum(
            (values[key] - _value(base, key)) * _slope(key, at, start, moved) for key in CONSTANTS
        )
        errors[at] = 100 * (ms / point.actual - 1)
    return errors


def _slope(
    key: Any, at: tuple[str, str], start: Predictions, moved: Mapping[Any, Predictions]
) -> float:
    return (moved[key][at] - start[at]) / CONSTANTS[key][0]


def _matters(points: list[Point], start: Predictions, moved: Predictions) -> bool:
    return any(moved[p.id, p.metric] != start[p.id, p.metric] for p in points)


def _value(profile: EngineProfile, key: tuple[str, str]) -> float:
    return float(getattr(getattr(profile, key[0]), key[1]))


def _moved(profile: EngineProfile, key: tuple[str, str], step: float) -> EngineProfile:
    part = getattr(profile, key[0])
    other = part.model_copy(update={key[1]: getattr(part, key[1]) + step})
    return profile.model_copy(update={key[0]: other})


def _has_profile(case: Case, name: str) -> bool:
    engine, version = case.server.engine, case.server.version
    return not case.refusals and deployments.profile_name(engine, version) == name


def _points(cases: list[Case]) -> Iterator[Point]:
    for case in cases:
        for one in case.measured:
            if one.stage == OVERALL and one.metric in METRICS:
                yield Point(case.id, case.server.model, one.metric, one.value)


def _shown(values: Mapping[Any, float]) -> str:
    return ", ".join(
        f"{part}.{field} {1e6 * value:.3g} us" for (part, field), value in values.items()
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
