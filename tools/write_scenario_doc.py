"""Write `docs/scenario.md` from the JSON schema of scenario files; a test compares the two."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvsim.scenario.refusals import REFUSED
from kvsim.scenario.schema import Scenario

DOC = Path(__file__).parents[1] / "docs" / "scenario.md"

INTRODUCTION = """\
# Fields of a scenario

Written by `tools/write_scenario_doc.py` from the JSON schema that `kvsim schema` prints.

A scenario is a YAML 1.2 file. Unknown keys, wrong types and impossible values are refused before
anything runs, all in one go, each with file, line and path. Where a default is `null`, the text
says what it stands for; the values that came out are printed, shown in the report, and stored in
`manifest.json`. `kv_cache`, `scheduler`, `routing`, `cost` and its `overhead` and
`attention_kernel` can be written as their kind alone if it needs no further field:
`routing: least_requests`. Within `workload` a section is always a mapping:
`arrivals: {kind: all_at_once}`. Relative paths start at the scenario's folder.

`variants` maps names to overrides. Mappings are merged key by key; a mapping whose `kind` changes
is replaced as a whole. `workload`, `seed`, `max_simulated_s` and `name` can't be overridden: all
variants face the same requests.
"""

REFUSALS = """\
## Refused

Settings of vLLM that kvsim does not model are refused by name in `engine`, unless their value says
that the feature is off.

| setting | why, and what to do |
| --- | --- |
"""

Schema = Mapping[str, Any]


def main() -> None:
    """Write the page."""
    DOC.write_text(render(), encoding="utf-8")
    print(f"{DOC.name}: {len(Scenario.model_fields)} fields, {len(REFUSED)} refused")


def render() -> str:
    """Return the page as Markdown."""
    schema = Scenario.model_json_schema()
    parts = [_section("##", "The file", schema, schema["$defs"])]
    parts += _subsections("", schema, schema["$defs"], set())
    rows = "".join(f"| `{name}` | {refusal.why} |\n" for name, refusal in REFUSED.items())
    return "\n".join((INTRODUCTION, *parts, REFUSALS + rows))


def _subsections(path: str, schema: Schema, definitions: Schema, told: set[str]) -> Iterator[str]:
    """Yield the sections below one, in the order of its fields; what was told is left out."""
    for name, field in schema["properties"].items():
        place = f"{path}.{name}" if path else name
        for reference in _references(field):
            inner = definitions[reference]
            if "properties" not in inner or reference in told:
                continue
            told.add(reference)
            kind = inner["properties"].get("kind", {}).get("const")
            title = f"`{place}` of kind `{kind}`" if kind else f"`{place}`"
            yield _section("##" if "." not in place else "###", title, inner, definitions)
            yield from _subsections(place, inner, definitions, told)


def _references(field: Schema) -> list[str]:
    """Return the names of the schemas that a field may hold, also in a list or by name."""
    if "$ref" in field:
        return [field["$ref"].rpartition("/")[2]]
    options = [*field.get("anyOf", ()), *field.get("oneOf", ())]
    options += [field[key] for key in ("items", "additionalProperties") if key in field]
    return [name for option in options if option is not True for name in _references(option)]


def _section(mark: str, title: str, schema: Schema, definitions: Schema) -> str:
    about = "" if title == "The file" else schema.get("description", "").strip()
    fields = [item for item in schema["properties"].items() if item[0] != "kind"]
    table = "No further field.\n"
    if fields:
        required = schema.get("required", ())
        rows = [_row(name, field, name in required, definitions) for name, field in fields]
        table = "\n".join(
            ["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]
        )
    return "\n\n".join(part for part in (f"{mark} {title}", about, table) if part)


def _row(name: str, field: Schema, required: bool, definitions: Schema) -> str:
    default = "required" if required else _default(field)
    about = field.get("description") or _description_behind(field, definitions)
    meaning = " ".join(about.split())
    return f"| `{name}` | {_type(field, definitions)} | {default} | {meaning} |"


def _description_behind(field: Schema, definitions: Schema) -> str:
    references = _references(field)
    return definitions[references[0]].get("description", "") if len(references) == 1 else ""


def _default(field: Schema) -> str:
    default = field.get("default")
    if isinstance(default, dict):
        return f"`{default['kind']}`" if "kind" in default else "all defaults"
    if "default" not in field:  # made by a factory: a policy, or nothing
        return "its default kind" if _references(field) and "type" not in field else "none"
    return f"`{json.dumps(default)}`"


def _type(field: Schema, definitions: Schema) -> str:
    """Describe what a field accepts, in words."""
    if "anyOf" in field or "oneOf" in field:
        options = [*field.get("anyOf", ()), *field.get("oneOf", ())]
        # A policy's bare kinds stand beside it: they go without saying.
        told = (
            [option for option in options if "enum" not in option]
            if _references(field)
            else options
        )
        names = [_type(option, definitions) for option in told]
        return " or ".join(dict.fromkeys(name for name in names if name != "null"))
    if "$ref" in field:
        inner = definitions[_references(field)[0]]
        return "section" if "properties" in inner else "any value"
    if "enum" in field or "const" in field:
        return ", ".join(
            f"`{json.dumps(word)}`" for word in field.get("enum", [field.get("const")])
        )
    kind = str(field["type"])
    return {"object": "mapping", "string": "text"}.get(kind, kind) + _bounds(field)


def _bounds(field: Schema) -> str:
    marks = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{mark} {field[key]:,g}" for key, mark in marks.items() if key in field]
    return f", {', '.join(bounds)}" if bounds else ""


if __name__ == "__main__":
    main()
