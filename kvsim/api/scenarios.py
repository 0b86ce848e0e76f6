"""Scenarios for the API: from a file, or from plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from kvsim.scenario.change import changed
from kvsim.scenario.document import document_of
from kvsim.scenario.load import ScenarioFile, load_scenario, scenario_of
from kvsim.scenario.schema import BASE

AnyScenario = str | PathLike[str] | Mapping[str, Any] | ScenarioFile


def load(scenario: AnyScenario) -> ScenarioFile:
    """Read and check a scenario.

    Args:
        scenario: Path of a scenario file, or what such a file holds as a dictionary: relative paths
            in it then start in the current directory. A scenario that is loaded is returned.

    Raises:
        kvsim.errors.InputError: With every mistake found.
    """
    if isinstance(scenario, ScenarioFile):
        return scenario
    if isinstance(scenario, Mapping):
        return scenario_of(document_of(scenario, "scenario"), Path())
    return load_scenario(Path(scenario))


def plain(changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return changes as plain data, numbers of numpy included.

    Raises:
        InputError: A value is none that a scenario could hold.
    """
    return document_of({} if changes is None else changes, "changes").data


def chosen(
    file: ScenarioFile, changes: Mapping[str, Any], variants: Sequence[str] | None
) -> ScenarioFile:
    """Return a scenario with some values changed in all of its variants, or in some alone.

    Raises:
        InputError: There is no such variant or value, or a value is not understood.
    """
    others = [name for name in file.variants if name != BASE] if variants is None else variants
    names = dict.fromkeys((BASE, *others))
    return replace(file, variants={name: changed(file, changes, name).base for name in names})
