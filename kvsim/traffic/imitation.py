"""A scenario whose workload imitates a log."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, expm1, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.traffic.fidelity import Compared, compare, fidelity_sentence, not_imitated
from kvsim.traffic.fit import fit_arrivals
from kvsim.traffic.summary import Traffic
from kvsim.units import NS_PER_S, format_duration
from kvsim.workload.lengths.trace import TraceLengths
from kvsim.workload.parameters import Workload

DEFAULT_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
DEFAULT_GPU = "h100_sxm"
YOURS = "a default: put in yours"
LARGEST_CV = 100.0
FEWEST_REQUESTS = 10  # of fewer an imitation might by chance have none
YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}  # no strings there


@dataclass(frozen=True, slots=True)
class Imitation:
    """A scenario file's text, and how well its workload imitates the log."""

    text: str
    compared: list[Compared]
    sentences: list[str]


def imitate(
    traffic: Traffic,
    log: TraceLengths,
    target: Path,
    model: str | None = None,
    gpu: str | None = None,
    without_log: bool = False,
) -> Imitation:
    """Fit a workload to a log, and write a scenario around it.

    Args:
        traffic: What the log says.
        log: The log as a length law, its path as seen from here.
        target: Where the scenario will lie, which decides how it names the log.
        model: Model of the scenario; None: a default, marked as one.
        gpu: GPU of the scenario; None: a default, marked as one.
        without_log: Lengths from a lognormal law, so that the scenario doesn't need the log.

    Raises:
        InputError: The log has no times, or too few requests, or its figures are beyond what a
            workload allows.
    """
    if traffic.arrivals is None:
        raise InputError(f"{log.file}: has no times to be imitated")
    if traffic.arrivals.requests < FEWEST_REQUESTS:
        raise InputError(f"{log.file}: has fewer than {FEWEST_REQUESTS} requests to be imitated")
    folder = target.resolve().parent
    section = {
        "arrivals": _given(fit_arrivals(traffic.log.arrival_ns, traffic.end_ns)),
        "lengths": _lognormal(traffic) if without_log else _recorded(log, folder),
        "duration_s": traffic.end_ns / NS_PER_S,
    }
    # The target's folder, from which the scenario names the log, may not be there yet.
    readable = section if without_log else section | {"lengths": _recorded(log, None)}
    workload = Workload.model_validate(readable)
    compared = compare(traffic, workload)
    sentences = [fidelity_sentence(compared), *not_imitated(traffic)]
    if not without_log:
        sentences.append("Lengths are drawn from the log's own pairs of prompt and answer.")
    scenario = _scenario(section, model, gpu, folder)
    return Imitation(_comment(traffic, log, sentences) + scenario, compared, sentences)


def _scenario(section: dict[str, Any], model: str | None, gpu: str | None, folder: Path) -> str:
    """Return the text of a scenario with this workload."""
    scenario = {
        "model": _model_name(model or DEFAULT_MODEL, folder),
        "gpu": gpu or DEFAULT_GPU,
        "engine": {"enable_prefix_caching": False},
        "workload": section,
    }
    notes = {
        **({} if model else {"model": YOURS}),
        **({} if gpu else {"gpu": YOURS}),
        "engine": "its prompts have nothing in common: a prefix cache would find nothing",
    }
    return _yaml(scenario, notes)


def _given(policy: Any) -> dict[str, Any]:
    """Return a policy as a scenario would say it: its kind, and what differs from the defaults."""
    values: dict[str, Any] = policy.model_dump(mode="json", exclude_defaults=True)
    return {"kind": policy.kind, **values}


def _recorded(log: TraceLengths, folder: Path | None) -> dict[str, Any]:
    """Return lengths from the log, named from a folder, or absolutely."""
    path = log.path.resolve()
    return {**_given(log), "file": os.path.relpath(path, folder) if folder else str(path)}


def _lognormal(traffic: Traffic) -> dict[str, Any]:
    """Return the lognormal law with the logarithms' means and variances, cut at the longest."""
    section: dict[str, Any] = {"kind": "lognormal"}
    lengths = {"prompt": traffic.log.prompt_tokens, "output": traffic.log.output_tokens}
    for name, tokens in lengths.items():
        mean_tokens, cv = lognormal_fit(tokens)
        section[f"{name}_mean_tokens"] = float(f"{mean_tokens:.5g}")
        section[f"{name}_cv"] = float(f"{cv:.4g}")
        section[f"{name}_max_tokens"] = int(tokens.max())
    return section


def lognormal_fit(tokens: NDArray[np.int64]) -> tuple[float, float]:
    """Return mean and coefficient of variation of the most likely lognormal law."""
    logarithms = np.log(tokens)
    variance = float(logarithms.var())
    mean = exp(float(logarithms.mean()) + variance / 2)
    return mean, min(sqrt(expm1(variance)), LARGEST_CV)


def _model_name(model: str, folder: Path) -> str:
    """Name a model by its path as seen from the scenario, if it is a path."""
    return os.path.relpath(Path(model).resolve(), folder) if Path(model).exists() else model


def _comment(traffic: Traffic, log: TraceLengths, sentences: list[str]) -> str:
    about = (
        f"Imitates {log.path.name}: {len(traffic.log):,} requests over "
        f"{format_duration(traffic.end_ns / NS_PER_S)}."
    )
    return "".join(f"# {line}\n" for line in [_printable(about), *sentences])


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _yaml(scenario: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    """Write a scenario, with notes on some of its sections: YAML reads strings as JSON has them."""
    lines = []
    for key, value in scenario.items():
        first, *others = _entry(key, value, "")
        lines += [f"{first}  # {notes[key]}" if key in notes else first, *others]
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, Mapping):
        inside = [line for name, one in value.items() for line in _entry(name, one, indent + "  ")]
        return [f"{indent}{_scalar(key)}:", *inside]
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        items = (", ".join(f"{_scalar(k)}: {_scalar(v)}" for k, v in one.items()) for one in value)
        return [f"{indent}{key}:", *(f"{indent}  - {{{item}}}" for item in items)]
    return [f"{indent}{_scalar(key)}: {_scalar(value)}"]


def _scalar(value: Any) -> str:
    is_word = isinstance(value, str) and value.replace("_", "").isalpha()
    return value if is_word and value not in YAML_WORDS else json.dumps(value, ensure_ascii=False)
