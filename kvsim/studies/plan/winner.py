"""The winner of a plan as a scenario that `kvsim run` takes."""

import os
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from kvsim.from_server.draft import Draft
from kvsim.from_server.write import write_scenario
from kvsim.model import model_files
from kvsim.scenario.change import changed
from kvsim.scenario.files import files_of
from kvsim.studies.plan.result import Plan
from kvsim.studies.plan.trial import Load


def write_winner(plan: Plan, out: Path, force: bool = False) -> None:
    """Write the scenario of the cheapest fleet, spare replicas included, at the plan's demand.

    Args:
        plan: Has a winner.
        out: The file; paths in it start in its folder.
        force: Whether it may take the place of another.

    Raises:
        InputError: The file exists, or can't be written.
    """
    text = winner_text(plan, out.parent)
    write_scenario(Draft(text=text), out, force)


def winner_text(plan: Plan, folder: Path) -> str:
    """Return the scenario's text, with paths as they read from a folder."""
    assert plan.winner is not None, "there is a fleet to write"
    assert plan.winner.smallest is not None, "its size is known"
    load = Load(plan.file, plan.options.load_factor, 1)
    replicas = plan.winner.smallest + plan.options.spare
    point = load.point(plan.winner.least.candidate, replicas)
    scenario = changed(plan.file, point.changes).base
    data = scenario.model_dump(mode="json", exclude_unset=True, exclude={"variants", "name"})
    engine = data.get("engine", {})  # null is what nobody said
    data["engine"] = {key: value for key, value in engine.items() if value is not None}
    base_dir = plan.file.base_dir
    moved = files_of(scenario, base_dir)
    if model_files(scenario.model, base_dir):
        moved[scenario.model] = base_dir / scenario.model
    return _comment(plan, replicas) + _yaml(_moved(data, moved, folder))


def _comment(plan: Plan, replicas: int) -> str:
    options = plan.options
    lines = [
        f"# The cheapest fleet that `kvsim plan` found for {plan.file.base.name}: does it hold?"
    ]
    if options.spare:
        lines.append(f"# Of its {replicas} replicas {options.spare} are spare.")
    if options.load_factor != 1:
        lines.append(f"# The demand is {options.load_factor:g} times that of the scenario.")
    return "\n".join(lines) + "\n"


def _moved(node: Any, files: Mapping[str, Path], folder: Path) -> Any:
    """Return plain data in which the names of files read from another folder."""
    if isinstance(node, dict):
        return {key: _moved(value, files, folder) for key, value in node.items()}
    if isinstance(node, list):
        return [_moved(value, files, folder) for value in node]
    if isinstance(node, str) and node in files:
        return os.path.relpath(files[node], folder)
    return node


def _yaml(data: Any) -> str:
    from ruamel.yaml import YAML

    writer, stream = YAML(), StringIO()
    writer.default_flow_style = False
    writer.width = 100
    writer.dump(data, stream)
    return stream.getvalue()
