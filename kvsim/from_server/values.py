"""Values of YAML that may be anything → what is expected there, or nothing."""

from collections.abc import Mapping
from typing import Any

from kvsim.from_server.shell import commands

_GPU = "nvidia.com/gpu"


def gpus_of(resources: Any) -> int | None:
    """Return how many GPUs the resources of a container give it; None: not said."""
    asked = [mapping(mapping(resources).get(part)).get(_GPU) for part in ("limits", "requests")]
    return next((count for count in map(whole, asked) if count is not None), None)


def words(value: Any) -> list[str]:
    """Return the words of a list, or of a string as a shell splits it."""
    if isinstance(value, list):
        return [str(item).lower() if isinstance(item, bool) else str(item) for item in value]
    if isinstance(value, str):
        return [word for line in commands(value.replace("\n", " ")) for word in line]
    return []


def environment(value: Any) -> dict[str, str]:
    """Return the variables whose values stand in the file."""
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items() if item is not None}
    pairs: dict[str, str] = {}
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping) and "value" in item:
            pairs[str(item.get("name"))] = str(item["value"])
        elif isinstance(item, str) and "=" in item:
            name, _, text = item.partition("=")
            pairs[name] = text
    return pairs


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping, empty if it is none."""
    return value if isinstance(value, Mapping) else {}


def whole(value: Any) -> int | None:
    """Return a whole number, None if it is none."""
    if isinstance(value, bool) or not str(value).isdecimal():
        return None
    return int(value)
