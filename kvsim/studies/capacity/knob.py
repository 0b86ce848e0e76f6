"""What is varied: the load, found by the kinds of the arrivals, or any number of the scenario."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kvsim.errors import InputError, Problem
from kvsim.scenario.load import deep_merge
from kvsim.scenario.schema import Scenario
from kvsim.workload.limits import MOST_REQUESTS
from kvsim.workload.parameters import Source

# Arrivals without an end of their own: a longer run of them is more of the same.
_STEADY = {"poisson", "gamma", "constant", "bursts", "closed_loop"}
_SCALED = ("rate_per_s", "rate_scale", "users")  # a kind has one of these, or rates of its own
_LEAST = {"rate_per_s": 1e-4, "rate_scale": 1e-6}  # as in the schema
_MOST = 1e6  # the same
_FURTHEST = 1000.0  # times the scenario's load, or its part, that is tried
_DIGITS = 4  # of a value that is tried


@dataclass(frozen=True, slots=True)
class Knob:
    """A number of the scenario on the axis of a search, on which larger places are harder.

    Attributes:
        path: Dotted path of the number, or `load` where several are scaled together.
        unit: Of the number, empty if it has none.
        first: Where the search begins.
        least, most: What may be tried.
        whole: Only whole numbers.
        rising: Whether larger values are harder to serve.
        changes: Value → changes of the scenario.
        is_setting: Not the load: a server may refuse to start with some values.
    """

    path: str
    unit: str
    first: float
    least: float
    most: float
    whole: bool
    rising: bool
    changes: Callable[[float], Mapping[str, Any]]
    is_setting: bool = False

    @property
    def logarithmic(self) -> bool:
        """Whether the axis is that of the logarithm; else it goes from 0 to 1 over the range."""
        return self.least > 0

    def place(self, value: float) -> float:
        """Return where a value lies on the axis."""
        at = math.log(value) if self.logarithmic else (value - self.least) / self._span
        return at if self.rising else -at

    def value(self, place: float) -> float:
        """Return the value at a place, within the range, but not rounded."""
        at = place if self.rising else -place
        low, high = self.least, self.most
        if self.logarithmic:
            at = min(max(at, math.log(low)), math.log(high))
            return min(max(math.exp(at), low), high)
        return min(max(low + at * self._span, low), high)

    def tried(self, place: float) -> float:
        """Return the value that is tried for a place: four digits, or a whole number."""
        value = self.value(place)
        if self.whole:
            return float(round(value))
        return min(max(float(f"{value:.{_DIGITS}g}"), self.least), self.most)

    def snapped(self, place: float) -> float:
        """Return the place of the value that is tried for a place."""
        return self.place(self.tried(place))

    def inwards(self, value: float) -> float:
        """Return the whole value for one between two: the easier, since the other is beyond it."""
        return float(math.floor(value + 1e-9) if self.rising else math.ceil(value - 1e-9))

    @property
    def ends(self) -> tuple[float, float]:
        """Places of the easiest and of the hardest value."""
        places = self.place(self.least), self.place(self.most)
        return min(places), max(places)

    @property
    def _span(self) -> float:
        return self.most - self.least

    def plain(self, value: float) -> float | int:
        """Return a value as the scenario has it."""
        return int(value) if self.whole else value

    def show(self, value: float) -> str:
        """Show a value with its unit."""
        return f"{self.figure(value)} {self.unit}".rstrip()

    def figure(self, value: float) -> str:
        """Show a value without its unit."""
        whole = self.whole or abs(value) >= 1000
        return f"{value:,.0f}" if whole else f"{value:.{_DIGITS}g}"


def load_of(scenario: Scenario, start: float | None = None, end: float | None = None) -> Knob:
    """Return the knob of a scenario's load: all its arrivals together.

    One arrival process is varied by its own number, several, or one with several rates, by a
    common factor.

    Args:
        scenario: Has the arrivals.
        start: Smallest value that is tried; None: as far down as the search has to go.
        end: Largest value that is tried; None: as far up.

    Raises:
        InputError: The arrivals can't be scaled.
    """
    knob = _all_of_load(scenario)
    least, most = start or knob.least, end or knob.most
    if not knob.least <= least < most <= knob.most:
        raise InputError(Problem(f"the range {least:g} to {most:g} holds nothing", path=knob.path))
    return replace(knob, first=min(max(knob.first, least), most), least=least, most=most)


def _all_of_load(scenario: Scenario) -> Knob:
    sources = scenario.workload.sources()
    fields = [_field(source) for source in sources]
    if len(sources) == 1 and fields[0] in _SCALED:
        return _one_field(sources[0], fields[0])
    if "users" in fields and set(fields) != {"users"}:
        raise InputError(
            Problem("users and rates don't scale alike: name what is varied", path="workload")
        )
    changes = partial(_scaled, sources)
    least, most = 1 / _FURTHEST, _FURTHEST
    return Knob("load", "times the load", 1.0, least, most, False, rising=True, changes=changes)


def _one_field(source: Source, field: str) -> Knob:
    value = float(getattr(source.arrivals, field))
    whole = field == "users"
    units = {"rate_per_s": _per_s(source), "rate_scale": "times the load", "users": "users"}
    least = 1.0 if whole else max(value / _FURTHEST, _LEAST[field])
    most = _MOST if whole else min(value * _FURTHEST, _MOST)
    prefix = f"workload.classes.{source.name}" if source.name else "workload"
    path = f"{prefix}.arrivals.{field}"
    changes = partial(_set_own, source, field, whole)
    return Knob(path, units[field], value, least, most, whole, rising=True, changes=changes)


def _set_own(source: Source, field: str, whole: bool, value: float) -> Mapping[str, Any]:
    return _own(source, {field: int(value) if whole else value})


def _per_s(source: Source) -> str:
    laws = (member.parameters.prompts for member in source.members)
    turns = any(getattr(law, "turns_mean", 1) != 1 for law in laws if law is not None)
    return "sessions/s" if turns else "requests/s"


def _field(source: Source) -> str:
    """Return which number of a source's arrivals is their load, or the kind that has several."""
    arrivals = source.arrivals
    assert arrivals is not None, "checked when the workload was read"
    if arrivals.kind in {"bursts", "stages"}:
        return arrivals.kind
    found = [name for name in reversed(_SCALED) if name in _field_names(arrivals)]
    if not found:
        path = f"workload.{f'classes.{source.name}.' if source.name else ''}arrivals"
        raise InputError(
            Problem(
                f"arrivals of kind {arrivals.kind} have no rate to vary; name another value, such "
                "as workload.num_requests",
                path=path,
            )
        )
    return found[0]


def _field_names(arrivals: Any) -> Sequence[str]:
    return list(type(arrivals).model_fields)


def _scaled(sources: Sequence[Source], factor: float) -> Mapping[str, Any]:
    """Return the changes that multiply all rates by a factor."""
    changes: dict[str, Any] = {}
    for source in sources:
        arrivals: Any = source.arrivals
        if arrivals.kind == "bursts":
            names = ("base_rate_per_s", "burst_rate_per_s")
            values: dict[str, Any] = {name: factor * getattr(arrivals, name) for name in names}
        elif arrivals.kind == "stages":
            stages = [
                stage.model_dump(exclude_unset=True) | {"rate_per_s": factor * stage.rate_per_s}
                for stage in arrivals.stages
            ]
            values = {"stages": stages}
        else:
            field = _field(source)
            value = factor * getattr(arrivals, field)
            values = {field: max(round(value), 1) if field == "users" else value}
        _merge(changes, _own(source, values))
    return changes


def _own(source: Source, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of a source's arrivals; a class's name may have dots, so it's no path."""
    if not source.name:
        return {f"workload.arrivals.{name}": value for name, value in values.items()}
    return {"workload.classes": {source.name: {"arrivals": dict(values)}}}


def _merge(changes: dict[str, Any], more: Mapping[str, Any]) -> None:
    for path, value in more.items():
        if path in changes:
            changes[path] = {**changes[path], **value}
        else:
            changes[path] = value


# How long a run is


def is_steady(scenario: Scenario) -> bool:
    """Tell whether the arrivals go on for as long as one likes: the question is a steady state."""
    kinds = {source.arrivals.kind for source in scenario.workload.sources() if source.arrivals}
    return kinds <= _STEADY and scenario.max_simulated_s is None


def so_long(scenario: Scenario, requests: int) -> Mapping[str, Any]:
    """Return the changes that give a run of steady arrivals about so many requests."""
    sources = scenario.workload.sources()
    changes: dict[str, Any] = {"workload.duration_s": None}
    weights = [_weight(source) for source in sources]
    for source, weight in zip(sources, weights, strict=True):
        share = max(round(requests * weight / sum(weights)), 1)
        if not source.name:
            changes["workload.num_requests"] = share
        else:
            _merge(changes, {"workload.classes": {source.name: {"num_requests": share}}})
    return changes


def with_requests(scenario: Scenario, load: Mapping[str, Any], factor: float) -> Mapping[str, Any]:
    """Return the changes of a load and so many times the requests: a run of the same time."""
    changes = dict(load)
    for source in scenario.workload.sources():
        if source.num_requests is None or not is_steady(scenario):
            continue
        requests = min(max(round(factor * source.num_requests), 1), MOST_REQUESTS)
        if not source.name:
            changes["workload.num_requests"] = requests
        else:
            own = {source.name: {"num_requests": requests}}
            changes["workload.classes"] = deep_merge(changes.get("workload.classes"), own)
    return changes


def _weight(source: Source) -> float:
    arrivals: Any = source.arrivals
    rate_per_s: float | None = getattr(arrivals, "rate_per_s", None)
    users: int = getattr(arrivals, "users", 1)
    return rate_per_s or float(users)


# Any other number


def knob_at(
    path: str, written: float | None, start: float | None, end: float | None, smallest: bool
) -> Knob:
    """Return the knob of a number by its dotted path.

    Args:
        path: As in `kvsim.scenario.change`.
        written: The value in the scenario, None if it has none.
        start: Smallest value that is tried.
        end: Largest value that is tried.
        smallest: The smallest value is asked for: larger values are easier.

    Raises:
        InputError: There is no range to search.
    """
    if start is None or end is None:
        raise InputError(Problem("name the range to search: --from and --to", path=path))
    if not start < end or not all(map(math.isfinite, (start, end))):
        raise InputError(Problem(f"the range {start:g} to {end:g} holds nothing", path=path))
    whole = float(start).is_integer() and float(end).is_integer() and not isinstance(written, float)
    first = start if written is None else float(written)
    first = first if start <= first <= end else start
    changes = partial(_set, path, whole)
    return Knob(path, "", first, start, end, whole, not smallest, changes, is_setting=True)


def _set(path: str, whole: bool, value: float) -> Mapping[str, Any]:
    return {path: int(value) if whole else value}
