"""What all policies share: one file each, frozen parameters with a `kind`, found in their package.

A policy package (`kvsim.engine.routers`, for example) says in its `__init__` what such a policy
does; every other file in it is one policy, by the name of its kind (or begins with `_`, and is
shared). Adding a file is all it takes: the scenario's schema, the documentation and the conformance
tests read the package.
"""

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Annotated, Any, Literal, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema


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


class OneOf:
    """Any policy of a package, as a type: `Annotated[Policy, OneOf(package)]`.

    A file is imported only if a scenario names its kind: all of them take a while. So what belongs
    to a kind is validated by itself, and as strictly as the policy says, whoever asks.
    """

    def __init__(self, package: ModuleType, default: str | None = None) -> None:
        """Take the policies of a package.

        With a default, what is written may lack a part, see `completed`.
        """
        self._package, self._default = package, default

    def model_of(self, value: Any) -> type[Policy]:
        """Return the policy whose parameters a value should hold.

        Raises:
            PydanticKnownError: The value is no mapping, or has no kind, or an unknown one; in the
                form in which pydantic tells it of a union.
            ValueError: It is no mapping where a bare kind would do, too.
        """
        given, told = self._completed(value), {"discriminator": "'kind'"}
        if not isinstance(given, dict):
            raise PydanticKnownError("model_attributes_type")
        if "kind" not in given:
            raise PydanticKnownError("union_tag_not_found", told)
        kind, kinds = given["kind"], kinds_in(self._package)
        if kind not in kinds:
            expected = ", ".join(map(repr, kinds))
            told |= {"tag": str(kind), "expected_tags": expected}
            raise PydanticKnownError("union_tag_invalid", told)
        return policy_of(self._package, kind)

    def _completed(self, value: Any) -> Any:
        if self._default is None:
            return value
        return completed(value, self._default, kinds_in(self._package))

    def _validated(self, value: Any, info: ValidationInfo) -> Policy:
        if isinstance(value, Policy):  # it may be one of another package
            return self.model_of({"kind": value.kind}).model_validate(value)
        given = self._completed(value)
        return self.model_of(given).model_validate(given, context=info.context)

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        """Return how a value is validated; it is written as the policy that it is."""
        return core_schema.with_info_plain_validator_function(self._validated)

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON schema of all policies."""
        members = tuple(policies_in(self._package))
        # They are known only at run time, so there is no `X | Y` to write.
        union: Any = Annotated[Union[members], Field(discriminator="kind")]  # noqa: UP007
        if self._default is not None:
            union |= Literal[tuple(kinds_in(self._package))]
        return handler(TypeAdapter(union).core_schema)


def completed(value: Any, default: str, kinds: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a policy as written, with their kind.

    A bare kind stands for a policy without parameters, parameters without a kind are those of the
    default kind.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, dict):
        return {"kind": default, **value}
    raise ValueError(f"should be a kind ({', '.join(kinds)}) or a mapping")


def kinds_in(package: ModuleType) -> list[str]:
    """Return the kinds of policies of a package, in alphabetical order: the names of its files."""
    names = (entry.name for entry in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in names if not name.startswith("_"))


def policy_of(package: ModuleType, kind: str) -> type[Policy]:
    """Return the policy of a kind, which is in the file of that name.

    Raises:
        LookupError: There is none in it.
    """
    module = importlib.import_module(f"{package.__name__}.{kind}")
    found = {
        item.model_fields["kind"].default: item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Policy)
        if item.__module__ == module.__name__
    }
    if kind not in found:
        others = ", ".join(repr(each) for each in found if isinstance(each, str))
        raise LookupError(
            f"{module.__name__} should hold a policy whose kind is by default {kind!r}, "
            f"as the file is called; it holds {others or 'none with a kind'}"
        )
    return found[kind]


def policies_in(package: ModuleType) -> list[type[Policy]]:
    """Return the policies of a package, in the order of their kinds."""
    return [policy_of(package, kind) for kind in kinds_in(package)]


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
