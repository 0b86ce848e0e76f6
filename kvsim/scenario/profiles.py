"""Profiles: what an engine's version adds to its kernels, with the runs that its constants fit."""

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

import kvsim.cost.overheads
from kvsim.copies import found_at
from kvsim.cost.front_end import FrontEnd
from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.policy import OneOf, Parameters, Policy
from kvsim.scenario.document import read_document
from kvsim.scenario.mistakes import mistakes_of
from kvsim.workload.files import once_per_state

DEFAULT_PROFILE = "vllm-0.23"
_SHIPPED = Path(str(resources.files("kvsim"))) / "data" / "profiles"

if TYPE_CHECKING:
    from kvsim.cost.overheads.async_engine import AsyncEngine

    _Overhead = AsyncEngine
else:
    _Overhead = Annotated[Policy, OneOf(kvsim.cost.overheads)]


class EngineProfile(Parameters):
    """Constants of an engine and its version; none belongs to a model, a GPU or an experiment."""

    engine: Literal["vllm", "sglang", "tensorrt_llm"]
    """Whose engine."""
    versions: Annotated[str, Field(min_length=1)]
    """Which versions, in words."""
    async_scheduling: bool
    """What the engine does unless it is told otherwise."""
    overhead: _Overhead
    """Time of a step that no kernel explains."""
    front_end: FrontEnd
    """What a request pays outside of the engine's steps."""
    basis: Annotated[str, Field(min_length=1)]
    """On what the constants rest, in words."""
    fitted_on: tuple[str, ...] = ()
    """The measured runs that the constants were fitted on, by their names."""


def profile_names() -> list[str]:
    """Return the names of the profiles that ship."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def load_profile(name_or_path: str, base_dir: Path | None = None) -> EngineProfile:
    """Read a profile that ships, or the one at a path.

    Args:
        name_or_path: A name as in `profile_names()`, or the path of a YAML file.
        base_dir: Where a relative path starts, the working directory by default.

    Raises:
        InputError: Neither, or the file is not a profile; with file, line and path.
    """
    path = _SHIPPED / f"{name_or_path}.yaml"
    if name_or_path not in profile_names():
        path = found_at((base_dir or Path()) / name_or_path)
        if not path.is_file():
            hint = did_you_mean(name_or_path, profile_names(), at_most=3)
            known = hint or f"; known are {', '.join(profile_names())}"
            raise InputError(
                f"profile '{name_or_path}' is neither one that ships nor the path of a file{known}"
            )
    return _read_profile(path)


@once_per_state(most=16)
def _read_profile(path: Path) -> EngineProfile:
    document = read_document(path)
    data = {**document.data, "fitted_on": tuple(document.data.get("fitted_on", ()))}
    try:
        return EngineProfile.model_validate(data)
    except ValidationError as error:
        mistakes = mistakes_of(error, data, EngineProfile)
        problems = (document.located(Problem(message), where) for where, message in mistakes)
        raise InputError(*problems) from None
