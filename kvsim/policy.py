"""What all policies share: one file each, frozen parameters with a `kind`, found in their package.

A policy package (`kvsim.engine.routers`, for example) says in its `__init__` what such a policy
does; every other file in it is one policy. Adding a file is all it takes: the scenario's schema,
the documentation and the conformance tests read the package.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Annotated, Any, Union

from pydantic import BaseModel, ConfigDict, Field


class Parameters(BaseModel):
    """A part of a scenario: frozen, no unknown keys, no silent conversions, finite numbers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class Policy(Parameters):
    """Parameters of a policy as a scenario gives them; a subclass names itself by `kind`."""

    kind: str


def policies_in(package: ModuleType) -> list[type[Policy]]:
    """Return the policies of a package, one or more a file, in the order of their kinds."""
    found: dict[str, type[Policy]] = {}
    for entry in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{entry.name}")
        for item in vars(module).values():
            if _is_policy_of(item, module):
                found[item.model_fields["kind"].default] = item
    return [found[kind] for kind in sorted(found)]


def union_of(package: ModuleType) -> Any:
    """Return the type that accepts any policy of the package, told apart by its `kind`."""
    # The members are known only at run time, so there is no `X | Y` to write.
    return Annotated[Union[tuple(policies_in(package))], Field(discriminator="kind")]  # noqa: UP007


def _is_policy_of(item: object, module: ModuleType) -> bool:
    return (
        isinstance(item, type)
        and issubclass(item, Policy)
        and item is not Policy
        and item.__module__ == module.__name__
        and isinstance(item.model_fields["kind"].default, str)
    )
