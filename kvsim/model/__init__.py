"""Models: a Hugging Face `config.json` → parameters per part, weight bytes, KV bytes per token."""

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from kvsim.copies import found_at
from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.model.config import read_config
from kvsim.model.parallel import Parallelism
from kvsim.model.quantization import Quantization, quantized_weights
from kvsim.model.spec import Attention, LayerGroup, Mlp, ModelSpec, Weight, element_bytes

__all__ = [
    "Attention",
    "LayerGroup",
    "Mlp",
    "ModelSpec",
    "Parallelism",
    "Quantization",
    "Weight",
    "element_bytes",
    "load_model",
    "model_files",
    "model_names",
    "quantized_weights",
]

_CATALOG = Path(str(resources.files("kvsim"))) / "data" / "models"


def model_names() -> list[str]:
    """Return the names in the catalog, as on the Hugging Face hub: `owner/model`."""
    return list(_catalog())


def load_model(name_or_path: str, base_dir: Path | None = None) -> ModelSpec:
    """Read a model of the catalog, or the `config.json` at a path (a file or its folder).

    Args:
        name_or_path: A name as in `model_names()`, or a path.
        base_dir: Where a relative path starts, the working directory by default.

    Raises:
        InputError: Neither in the catalog nor a readable config, or one that is not modeled.
    """
    if name_or_path in _catalog():
        return _listed(name_or_path)
    path, *beside = model_files(name_or_path, base_dir)
    if not path.is_file():
        raise InputError(_unknown(name_or_path))
    config = _read_object(path)
    if beside and "quantization_config" not in config:
        config["quantization_config"] = _modelopt(_read_object(beside[0]))
    return read_config(name_or_path, config, str(path))


def model_files(name_or_path: str, base_dir: Path | None = None) -> list[Path]:
    """Return the files that a model is read from: its config.json, and modelopt's beside it.

    None for a model of the catalog, which ships.
    """
    if name_or_path in _catalog():
        return []
    path = (base_dir or Path()) / name_or_path
    within = path / "config.json"
    path = within if path.is_dir() or found_at(within) != within else path
    beside = found_at(path.with_name("hf_quant_config.json"))  # modelopt keeps quantization there
    return [found_at(path), beside] if beside.is_file() else [found_at(path)]


@cache
def _catalog() -> dict[str, Path]:
    """Return where the models of the catalog lie, by their names."""
    found = {path.stem.replace("--", "/"): path for path in _CATALOG.glob("*.json")}
    return dict(sorted(found.items()))


@cache
def _listed(name: str) -> ModelSpec:
    return read_config(name, json.loads(_catalog()[name].read_text(encoding="utf-8")))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(Problem(f"can't be read as JSON: {error}", str(path))) from None
    if not isinstance(value, dict):
        raise InputError(Problem("is not the config.json of a model", str(path)))
    return value


def _modelopt(config: dict[str, Any]) -> dict[str, Any]:
    section = dict(config.get("quantization") or {})
    return section | {"quant_method": "modelopt", "ignore": section.get("exclude_modules")}


def _unknown(name: str) -> str:
    hint = did_you_mean(name, model_names(), at_most=3)
    return f"model '{name}' is neither in the catalog nor the path of a config.json{hint}"
