"""pydantic's errors in the words of a scenario file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvsim.errors import did_you_mean
from kvsim.policy import OneOf
from kvsim.scenario.document import Step, has_step

# Words of users of other tools for what kvsim calls otherwise.
_OTHER_WORDS: Mapping[str, str] = {
    "request_rate": "rate_per_s",
    "rate": "rate_per_s",
    "qps": "rate_per_s",
    "num_prompts": "num_requests",
    "random_input_len": "prompt_tokens",
    "random_output_len": "output_tokens",
    "input_len": "prompt_tokens",
    "output_len": "output_tokens",
    "gpu_blocks": "num_gpu_blocks_override",
}


def mistakes_of(
    error: ValidationError, data: Any, model: type[BaseModel]
) -> list[tuple[tuple[Step, ...], str]]:
    """Return for each mistake the path of the value and one sentence.

    Args:
        error: What pydantic found.
        data: The data it looked at.
        model: The model of that data.
    """
    messages: dict[tuple[Step, ...], list[str]] = {}
    for item in error.errors(include_url=False):
        path = _path(item, data)
        message = _message(item, path, model, data)
        if message not in messages.setdefault(path, []):
            messages[path].append(message)
    return [(path, " or ".join(texts)) for path, texts in messages.items()]


def _path(item: ErrorDetails, data: Any) -> tuple[Step, ...]:
    """Return the path in the data: pydantic's without the names of the union members it tried."""
    path: list[Step] = []
    node = data
    for step in item["loc"]:
        if has_step(node, step):
            node = node[step]
        elif not (item["type"] == "missing" and step == item["loc"][-1]):
            continue
        path.append(step)
    if item["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        path.append("kind")
    return tuple(path)


def _message(item: ErrorDetails, path: Sequence[Step], model: type[BaseModel], data: Any) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind in {"missing", "union_tag_not_found"}:
        return "is required"
    if kind == "extra_forbidden":
        return _unknown_key(str(path[-1]), _fields_at(model, item["loc"][:-1], data))
    if kind == "union_tag_invalid":
        kinds = [tag.strip("' ") for tag in str(context["expected_tags"]).split(",")]
        hint = did_you_mean(str(context["tag"]), kinds)
        return f"unknown kind {context['tag']!r}{hint or '; known are ' + ', '.join(kinds)}"
    if kind == "value_error":
        return str(context["error"])
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        bare_kind = kind == "model_attributes_type" and isinstance(item["input"], str)
        hint = f"; a kind is written as {{kind: {item['input']}}} here" if bare_kind else ""
        return f"should be a mapping{hint}"
    return _wrong_value(item)


def _wrong_value(item: ErrorDetails) -> str:
    """Return pydantic's own sentence on a value, shortened."""
    if item["type"] in {"too_short", "string_too_short"} and item["ctx"]["min_length"] == 1:
        return "is empty"
    if item["type"] in {"too_long", "string_too_long"} and isinstance(item["input"], str):
        return f"should have at most {item['ctx']['max_length']} characters"
    text = item["msg"].removeprefix("Input ")
    value = item["input"]
    return f"{text}, not {value!r}" if isinstance(value, str | int | float | None) else text


def _unknown_key(key: str, fields: Sequence[str]) -> str:
    other = _OTHER_WORDS.get(key.lower().replace("-", "_"))
    hint = f"; did you mean {other}?" if other in fields else did_you_mean(key, fields)
    return f"unknown key{hint or '; known are ' + ', '.join(sorted(fields))}"


def _fields_at(model: type[BaseModel], loc: Sequence[Step], data: Any) -> list[str]:
    """Return the field names of the model that stands at a path of pydantic."""
    candidates, node = [model], data
    for step in loc:
        tagged = [item for item in candidates if _tag(item) == step]
        if tagged and len(candidates) > 1:  # a field may have the name of its model's kind
            candidates = tagged
            continue
        node = node[step] if has_step(node, step) else None
        if candidates and step in candidates[0].model_fields:
            field = candidates[0].model_fields[str(step)]
            candidates = list(_models_in((field.annotation, *field.metadata), node))
    fields = candidates[0].model_fields if candidates else {}
    return [field.alias or name for name, field in fields.items()]


def _tag(model: type[BaseModel]) -> Any:
    """Return what tells a model from the other members of its union."""
    kind = model.model_fields.get("kind")
    return kind.default if kind else model.__name__


def _models_in(parts: Sequence[Any], node: Any) -> Iterator[type[BaseModel]]:
    """Yield the models among the parts of an annotation, of policies that of the data's kind."""
    policies = [part for part in parts if isinstance(part, OneOf)]
    if policies:
        yield policies[0].model_of(node)
        return
    for part in parts:
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield part
        yield from _models_in(get_args(part), node)
