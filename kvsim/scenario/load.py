"""Scenario file → checked scenarios, base and variants; or all its mistakes in one go."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvsim.errors import InputError, Problem
from kvsim.gpu import load_gpu
from kvsim.model import load_model
from kvsim.scenario.document import Document, Step, has_step, read_document
from kvsim.scenario.mistakes import mistakes_of
from kvsim.scenario.refusals import refuse_unmodeled
from kvsim.scenario.schema import BASE, MOST_REPLICATIONS, Scenario

Place = tuple[Step, ...]

# What a variant can't override, and why.
_SHARED: Mapping[str, str] = {
    "workload": "all variants face the same requests; write another scenario for other traffic",
    "seed": "all variants face the same requests; write another scenario for other draws",
    "replications": "all variants face the same requests, as often as each other",
    "max_simulated_s": "all variants face the same requests, and none arrives after it",
    "name": "a variant is named by its key",
    "variants": "variants don't nest",
}


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """A scenario file that can be run.

    Attributes:
        base_dir: Folder of the file; relative paths in it start there.
        document: The file itself; it knows the lines.
        variants: The scenario under the name "base", then each variant with its overrides merged
            in, in the order of the file.
    """

    base_dir: Path
    document: Document
    variants: Mapping[str, Scenario]

    @property
    def base(self) -> Scenario:
        """The scenario without overrides."""
        return self.variants[BASE]

    @property
    def question(self) -> str:
        """Which question the scenario answers: the comment at the top of the file."""
        return self.document.comment

    def located(self, problem: Problem, variant: str) -> Problem:
        """Return a problem of one variant with the file, its path there, and the line."""
        path: Place = tuple(problem.path.split(".")) if problem.path else ()
        if variant != BASE:
            path = ("variants", variant, *path)
        return self.document.located(problem, path)


def load_scenario(path: Path) -> ScenarioFile:
    """Read and check a scenario file.

    Raises:
        InputError: With every mistake found: each has the file, and the line and the path of the
            value that is wrong.
    """
    return scenario_of(read_document(path), path.parent, path.stem)


def scenario_of(document: Document, base_dir: Path, name: str = "scenario") -> ScenarioFile:
    """Check a scenario.

    Args:
        document: The scenario.
        base_dir: Where relative paths in it start.
        name: Its name, if it doesn't say one.

    Raises:
        InputError: As of `load_scenario`.
    """
    data = {"name": name, **document.data}
    found: dict[str, Scenario] = {}
    problems: dict[tuple[str, Place], Problem] = {}
    for variant, merged in merged_variants(data):
        scenario, mistakes = checked(merged, base_dir)
        for where, message in mistakes:
            written = _as_written(data, variant, where)
            problems[message, written] = document.located(Problem(message), written)
        if scenario is not None:
            found[variant] = scenario
    for where, message in _forbidden_overrides(data):
        problems[message, where] = document.located(Problem(message), where)
    if problems:
        raise InputError(*sorted(problems.values(), key=lambda problem: problem.line or 0))
    return ScenarioFile(base_dir, document, found)


def with_replications(file: ScenarioFile, replications: int | None) -> ScenarioFile:
    """Return the file with another number of replications; None: as it says.

    Raises:
        InputError: It is no such number.
    """
    if replications is None:
        return file
    if not isinstance(replications, int) or not 1 <= replications <= MOST_REPLICATIONS:
        what = f"should be a whole number from 1 to {MOST_REPLICATIONS:,}, not {replications!r}"
        raise InputError(Problem(what, path="replications"))
    change = {"replications": replications}
    variants = {name: each.model_copy(update=change) for name, each in file.variants.items()}
    return replace(file, variants=variants)


def deep_merge(base: Any, override: Any) -> Any:
    """Return `base` with `override` laid over it.

    Mappings are merged key by key; everything else is replaced, and so is a mapping whose
    `kind` changes, since the parameters of one kind mean nothing to another.
    """
    if not (isinstance(base, dict) and isinstance(override, dict)):
        return override
    if "kind" in override and override["kind"] != base.get("kind"):
        return override
    merged = {key: deep_merge(value, override.get(key, value)) for key, value in base.items()}
    return merged | {key: value for key, value in override.items() if key not in base}


def merged_variants(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the base, and each variant as it reads with its overrides merged in."""
    yield BASE, data
    variants = data.get("variants")
    for name, override in variants.items() if isinstance(variants, dict) else ():
        if isinstance(override, dict) and name != BASE:
            rest = {key: value for key, value in data.items() if key != "variants"}
            allowed = {key: value for key, value in override.items() if key not in _SHARED}
            yield name, deep_merge(rest, allowed)


def _forbidden_overrides(data: dict[str, Any]) -> Iterator[tuple[Place, str]]:
    variants = data.get("variants")
    for name, override in variants.items() if isinstance(variants, dict) else ():
        if name == BASE:
            yield ("variants", name), f"'{BASE}' names the scenario without overrides"
        for key in override if isinstance(override, dict) else ():
            if key in _SHARED:
                yield ("variants", name, key), f"can't differ between variants: {_SHARED[key]}"


def checked(
    data: dict[str, Any], base_dir: Path
) -> tuple[Scenario | None, list[tuple[Place, str]]]:
    """Return the scenario, or None and where it is wrong in which way.

    Args:
        data: The scenario as plain data, without variants.
        base_dir: Where relative paths in it start.
    """
    mistakes: list[tuple[Place, str]] = []
    if isinstance(data.get("engine"), dict):
        engine, refused = refuse_unmodeled(data["engine"])
        data = {**data, "engine": engine}
        mistakes += [(("engine", name), why) for name, why in refused.items()]
    mistakes += _unknown_names(data, base_dir)
    try:
        scenario = Scenario.model_validate(data, context={"base_dir": base_dir})
    except ValidationError as error:
        mistakes += mistakes_of(error, data, Scenario)
    return (None if mistakes else scenario), mistakes


def _unknown_names(data: Mapping[str, Any], base_dir: Path) -> Iterator[tuple[Place, str]]:
    """Look up the model and the GPU, so that a wrong name is told along with other mistakes."""
    look_up: Mapping[str, Callable[[str], object]] = {
        "model": lambda name: load_model(name, base_dir),
        "gpu": load_gpu,
    }
    for key, load in look_up.items():
        name = data.get(key)
        if isinstance(name, str) and name and name.isprintable():
            try:
                load(name)
            except InputError as error:
                yield from (((key,), problem.message) for problem in error.problems)


def _as_written(data: Mapping[str, Any], variant: str, path: Place) -> Place:
    """Return where a value of a variant stands in the file: in its override, or in the base."""
    if variant != BASE:
        override = data["variants"][variant]
        added = not _has(data, path) and _has(override, path[:-1])
        if _has(override, path) or (added and path[:-1]):
            return ("variants", variant, *path)
    return path


def _has(node: Any, path: Place) -> bool:
    for step in path:
        if not has_step(node, step):
            return False
        node = node[step]
    return True
