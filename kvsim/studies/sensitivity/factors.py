"""What may be uncertain about a scenario: inputs with a range each."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.errors import InputError, Problem
from kvsim.scenario.change import changed, number_at
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.resolve import resolve
from kvsim.scenario.schema import BASE
from kvsim.studies.capacity.knob import load_of
from kvsim.workload.parameters import Workload

LOAD, PROMPTS, ANSWERS = "load", "prompt length", "answer length"  # factors without one path

_SHARE = 0.2  # by which load and lengths are off unless a range is given
_MEMORY_SHARE = 0.05  # the same of gpu_memory_utilization
# Fields of laws that make prompts or answers longer, by their part.
_LENGTHS: Mapping[str, tuple[str, ...]] = {
    PROMPTS: ("prompt_mean_tokens", "prompt_tokens", "prompt_min_tokens", "prompt_scale"),
    ANSWERS: ("output_mean_tokens", "output_tokens", "output_min_tokens", "output_scale"),
}
_CAPS: Mapping[str, str] = {PROMPTS: "prompt_max_tokens", ANSWERS: "output_max_tokens"}


@dataclass(frozen=True, slots=True)
class Factor:
    """An input with its range.

    Attributes:
        name: Dotted path of a value, or what is scaled.
        low, high: Ends of the range.
        base: The value in the scenario, 1 of what is scaled; None: it has no number there.
        whole: Only whole numbers.
        changes: Value → changes of the scenario, as in `kvsim.scenario.change`.
    """

    name: str
    low: float
    high: float
    base: float | None
    whole: bool
    changes: Callable[[float], Mapping[str, Any]]

    @property
    def label(self) -> str:
        """Its name as it is shown: settings of the engine have names of their own."""
        return self.name.removeprefix("engine.")

    def plain(self, value: float) -> float | int:
        """Return a value as the scenario takes it."""
        return round(value) if self.whole else float(value)

    def show(self, value: float) -> str:
        """Show a value: a factor of what is scaled, else the number."""
        if "." not in self.name:
            return f"×{value:g}"
        return f"{self.plain(value):,}" if self.whole else f"{value:.4g}"


def usual_factors(file: ScenarioFile) -> list[Factor]:
    """Return what is worth a look in any scenario: load, lengths, memory, limits of the batch.

    Load and lengths are ±20 %, `gpu_memory_utilization` ±0.05, limits of the batch half and twice.

    Raises:
        InputError: The scenario's engine would not start.
    """
    found = []
    for name in (LOAD, PROMPTS, ANSWERS):
        try:
            found.append(factor_of(file, name, 1 - _SHARE, 1 + _SHARE))
        except InputError:
            continue  # such arrivals have no rate, or such a law no mean
    memory = file.base.engine.gpu_memory_utilization
    low, high = round(memory - _MEMORY_SHARE, 6), round(min(memory + _MEMORY_SHARE, 1.0), 6)
    found.append(factor_of(file, "engine.gpu_memory_utilization", low, high))
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        value = getattr(resolve(file.base, BASE, file.base_dir).engine, name)
        found.append(factor_of(file, f"engine.{name}", max(value // 2, 1), value * 2))
    return found


def factor_of(file: ScenarioFile, name: str, low: float, high: float) -> Factor:
    """Return a factor by its name.

    Args:
        file: The scenario.
        name: `load`, `prompt length` or `answer length`, by which the scenario's are multiplied;
            or the dotted path of a number.
        low: Lower end of the range.
        high: Upper end.

    Raises:
        InputError: There is no such input, it is no number, the range is empty, or a scenario
            can't have one of its ends.
    """
    if not low < high:
        raise InputError(Problem(f"the range {low:g} to {high:g} holds nothing", path=name))
    if name in {LOAD, *_LENGTHS}:
        if low <= 0:
            raise InputError(Problem(f"is multiplied: {low:g} is no factor", path=name))
        factor = _scaled(file, name, low, high)
    else:
        base = number_at(resolve(file.base, BASE, file.base_dir).as_dict(), name)
        whole = float(low).is_integer() and float(high).is_integer() and not isinstance(base, float)
        factor = Factor(
            name, low, high, base, whole, lambda x: {name: round(x) if whole else float(x)}
        )
    for value in (low, high):
        changed(file, factor.changes(value))
    return factor


def _scaled(file: ScenarioFile, name: str, low: float, high: float) -> Factor:
    if name in _LENGTHS:
        return Factor(name, low, high, 1.0, False, _scaled_lengths(file.base.workload, name))
    knob = load_of(file.base)
    return Factor(name, low, high, 1.0, False, lambda x: knob.changes(knob.first * x))


def _scaled_lengths(workload: Workload, name: str) -> Callable[[float], Mapping[str, Any]]:
    """Return the changes that multiply the lengths of prompts or of answers.

    Raises:
        InputError: No law of this workload has them as a number.
    """
    fields = list(_length_fields(workload, name))
    if not fields:
        raise InputError(Problem("no law of this workload has such a length", path=name))

    def changes(factor: float) -> Mapping[str, Any]:
        scaled = {path: value * factor for path, value, _ in fields}
        return {
            path: max(round(scaled[path]), 1) if whole else scaled[path]
            for path, _, whole in fields
        }

    return changes


def _length_fields(workload: Workload, name: str) -> Iterator[tuple[str, float, bool]]:
    """Yield path, value and whether it is whole, of each number that makes lengths."""
    parts: list[tuple[str, Any]] = [("workload", workload)]
    parts += [(f"workload.classes.{each}", of) for each, of in workload.classes.items()]
    for prefix, part in parts:
        for section in ("lengths", "arrivals"):
            law = getattr(part, section)
            names = [*_LENGTHS[name]]
            if law is not None and law.kind == "uniform":
                names.append(_CAPS[name])
            for field in names:
                value = getattr(law, field, None)
                if isinstance(value, int | float):
                    yield f"{prefix}.{section}.{field}", value, isinstance(value, int)
