"""What all policies share: one file each, frozen parameters with a `kind`, found in their package.

A policy package (`kvsim.engine.routers`, for example) says in its `__init__` what such a policy
does; every other file in it is one policy. Adding a file is all it takes: the scenario's schema,
the documentation and the conformance tests read the package.
"""

import ast
import importlib
import inspect
import pkgutil
import textwrap
from itertools import pairwise
from types import ModuleType
from typing import Annotated, Any, Union

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Parameters(BaseModel):
    """A part of a scenario: frozen, no unknown keys, no silent conversions, finite numbers.

    The string below a field describes it. Sources are read for these only where the JSON schema
    is asked for, and validators built only where something is validated: at import both would
    take longer than all the rest. So a default that is a part itself is `Part.model_construct()`,
    which builds none.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON schema, with the descriptions of the fields."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for parent in reversed(cls.__mro__):
            if issubclass(parent, Parameters):
                for name, words in _described(parent):
                    properties[cls.model_fields[name].alias or name]["description"] = words
        return schema


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


def _described(model: type[Parameters]) -> list[tuple[str, str]]:
    """Return the fields that a class declares, and the strings below them in its source."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    return [
        (field.target.id, inspect.cleandoc(words.value.value))
        for field, words in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(words, ast.Expr) and isinstance(words.value, ast.Constant)
        if isinstance(words.value.value, str)
    ]
