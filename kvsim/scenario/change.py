"""Values laid over those of a scenario by their dotted paths, and checked like those in a file."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.scenario.load import ScenarioFile, checked, deep_merge, merged_variants
from kvsim.scenario.schema import BASE, Scenario

# What was measured of one layout of a server, and means nothing to another.
OF_ONE_LAYOUT = (
    *("engine.num_gpu_blocks_override", "engine.kv_startup_line"),
    "engine.kv_cache_memory_bytes",
)


def without_measured_layout(scenario: Scenario) -> dict[str, Any]:
    """Return the changes that leave out what was measured of a scenario's layout."""
    engine = scenario.engine
    return {
        path: None
        for path in OF_ONE_LAYOUT
        if getattr(engine, path.removeprefix("engine.")) is not None
    }


def changed(file: ScenarioFile, changes: Mapping[str, Any], variant: str = BASE) -> ScenarioFile:
    """Return a scenario of one variant alone, now its base, with some values changed.

    A change comes after the overrides of the variant. Nothing but the changed values differs: a
    mapping is merged, unless it changes the `kind` of a policy.

    Args:
        file: The scenario file.
        changes: Dotted path of a value → the new value, as plain data:
            `{"engine.max_num_seqs": 64, "workload.arrivals.rate_per_s": 3.5}`. A step into a list
            is a number, from 0.
        variant: Which variant is changed.

    Raises:
        InputError: There is no such variant, no value of that name, or a value is not understood.
            A problem of a change has its dotted path and no file; others are located in the file.
    """
    data = {"name": file.base.name, **file.document.data}
    known = dict(merged_variants(data))
    if variant not in known:
        hint = did_you_mean(variant, known) or f"; known are {', '.join(known)}"
        raise InputError(Problem(f"there is no variant {variant!r}{hint}", file.document.file))
    merged = {key: value for key, value in known[variant].items() if key != "variants"}
    for path, value in changes.items():
        _refuse_new_class(merged, path)
        merged = _laid(merged, path, path.split("."), value)
    scenario, mistakes = checked(merged, file.base_dir)
    if scenario is None:
        raise InputError(*(_told(file, changes, variant, *mistake) for mistake in mistakes))
    alone = replace(file.document, data=merged)
    return replace(file, document=alone, variants={BASE: scenario})


def number_at(values: Any, path: str) -> float | None:
    """Return the number at a dotted path of a scenario's plain data; None if nothing is set there.

    Raises:
        InputError: Something else stands there.
    """
    node = values
    for step in path.split("."):
        if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
            node = node[int(step)]
        else:
            node = node.get(step) if isinstance(node, dict) else None
    if isinstance(node, bool) or not isinstance(node, int | float | None):
        raise InputError(Problem("is no number that could be varied", path=path))
    return node


def _refuse_new_class(data: Mapping[str, Any], path: str) -> None:
    """Refuse a change within a class of traffic that isn't there: a slip would add one."""
    steps, workload = path.split("."), data.get("workload")
    if steps[:2] != ["workload", "classes"] or len(steps) < 4 or not isinstance(workload, dict):
        return
    classes = workload.get("classes") or {}
    if isinstance(classes, dict) and steps[2] not in classes:
        hint = did_you_mean(steps[2], classes)
        hint = hint or (f"; known are {', '.join(classes)}" if classes else "")
        raise InputError(Problem(f"there is no class {steps[2]!r}{hint}", path=path))


def _laid(node: Any, path: str, steps: Sequence[str], value: Any) -> Any:
    """Return a node with a value laid over it at some steps below."""
    if not steps:
        return deep_merge(node, value)
    step, rest = steps[0], steps[1:]
    if isinstance(node, list):
        if not step.isdecimal() or int(step) >= len(node):
            what = f"{step!r} is no place in a list of {len(node)}, which are counted from 0"
            raise InputError(Problem(what, path=path))
        place = int(step)
        return [*node[:place], _laid(node[place], path, rest, value), *node[place + 1 :]]
    if isinstance(node, str):  # a bare kind stands for a policy without parameters
        node = {"kind": node}
    if node is not None and not isinstance(node, dict):
        raise InputError(Problem(f"there is nothing within the value {node!r}", path=path))
    inner = node or {}
    return {**inner, step: _laid(inner.get(step), path, rest, value)}


def _told(
    file: ScenarioFile,
    changes: Mapping[str, Any],
    variant: str,
    where: Sequence[str | int],
    message: str,
) -> Problem:
    """Return a mistake with the path of the change that made it, or its place in the file."""
    place = ".".join(map(str, where))
    for path in changes:
        if place == path or place.startswith(f"{path}.") or path.startswith(f"{place}."):
            return Problem(message, path=place if place.startswith(path) else path)
    return file.located(Problem(message, path=place), variant)
