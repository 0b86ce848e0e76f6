"""How axes, their values and points are called in text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.metrics.catalog import METRICS
from kvsim.studies.sweep.axes import axis_paths
from kvsim.studies.sweep.schema import Sweep
from kvsim.study.point import Point


def short_names(sweep: Sweep) -> dict[str, str]:
    """Return the shortest ends of the axes' paths that tell them apart, by path."""
    paths = axis_paths(sweep)
    return {path: _shortest(path, paths) for path in paths}


def _shortest(path: str, paths: Sequence[str]) -> str:
    steps = path.split(".")
    for count in range(1, len(steps)):
        end = ".".join(steps[-count:])
        if sum(f".{other}".endswith(f".{end}") for other in paths) == 1:
            return end
    return path


def value_text(value: Any) -> str:
    """Show a value of an axis; a policy as its kind with its parameters in brackets."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict) and value:
        rest = ", ".join(
            f"{key} {value_text(part)}" for key, part in value.items() if key != "kind"
        )
        return f"{value['kind']} ({rest})" if "kind" in value and rest else value.get("kind", rest)
    return json.dumps(value)


def point_text(sweep: Sweep, point: Point, without: Sequence[str] = ()) -> str:
    """Say what tells a point from the others: `rate_scale 2.6, max_num_seqs 128, contiguous`."""
    names = short_names(sweep)
    parts = [
        f"{names[path]} {value_text(point.changes[path])}" for path in names if path not in without
    ]
    if len(sweep.variants) > 1 and "variant" not in without:
        parts.append(point.variant)
    return ", ".join(parts) or point.variant


def metric_label(name: str) -> str:
    """Return the label of a metric as it stands within a sentence."""
    label = METRICS[name].label
    return label if label[:2].isupper() else label[0].lower() + label[1:]


def axis_label(names: Mapping[str, str], path: str) -> str:
    """Return the title of an axis: its short name, and where it stands."""
    short = names[path]
    section = path.removesuffix(short).rstrip(".")
    return f"{short} ({section})" if section else short
