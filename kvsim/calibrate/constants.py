"""The constants of a profile that measurements of a server can tell, and their bounds."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvsim.policy import Parameters
from kvsim.scenario.profiles import EngineProfile

# Largest values that are physically plausible; the smallest is 0. A server beyond them has another
# trouble than slow Python: a wrong scenario, a slow client, a throttled GPU.
_MOST_S: Mapping[str, float] = {
    "fixed_s": 5e-3,
    "per_seq_s": 50e-6,
    "per_all_reduce_s": 20e-6,
    "request_s": 50e-3,
    "busy_s": 20e-3,
    "per_prompt_token_s": 50e-6,
}
# The synchronous engine's Python runs while the GPU waits: its bounds are those times this.
_SYNCHRONOUS = 10.0
_PARTS = ("overhead", "front_end")
_UNITS = ((1e-4, 1e6, "µs"), (1.0, 1e3, "ms"))  # bounds below, scale, name


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant that can be fitted.

    Attributes:
        part: `overhead` or `front_end` of the profile.
        name: Its name there, in seconds.
        start_s: Its value in the profile that the fit starts from.
        most_s: Its upper bound; the lower one is 0.
    """

    part: str
    name: str
    start_s: float
    most_s: float

    @property
    def path(self) -> str:
        """Where it stands in a profile."""
        return f"{self.part}.{self.name}"

    def shown(self, seconds: float) -> str:
        """Return a value in the unit that suits the constant, for example `312 µs`."""
        scale, unit = next((scale, name) for most, scale, name in _UNITS if self.most_s < most)
        return f"{seconds * scale:.3g} {unit}"


def constants_of(profile: EngineProfile) -> list[Constant]:
    """Return what can be fitted of a profile: the times of its overhead and of its front end.

    A start beyond the bound is kept within it. Constants without a bound here are left alone.
    """
    found = []
    for part in _PARTS:
        parameters = getattr(profile, part)
        times = _SYNCHRONOUS if getattr(parameters, "kind", "") == "synchronous" else 1.0
        for name in type(parameters).model_fields:
            most_s = _most_s(name)
            if most_s is not None:
                start_s = float(getattr(parameters, name))
                found.append(Constant(part, name, min(start_s, times * most_s), times * most_s))
    return found


def with_values(profile: EngineProfile, values_s: Mapping[Constant, float]) -> EngineProfile:
    """Return a profile with other values of its constants."""
    changed: dict[str, Parameters] = {}
    for part in _PARTS:
        own = {c.name: value_s for c, value_s in values_s.items() if c.part == part}
        parameters = getattr(profile, part)
        changed[part] = type(parameters).model_validate(parameters.model_dump() | own)
    return profile.model_copy(update=changed)


def _most_s(name: str) -> float | None:
    """Return the bound of a constant; `tensor_parallel_per_seq_s` has that of `per_seq_s`."""
    return _MOST_S.get(name.removeprefix("tensor_parallel_"))
