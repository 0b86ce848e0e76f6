"""What a sweep file may say."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from kvsim.policy import Parameters
from kvsim.scenario.schema import BASE, Name
from kvsim.workload.limits import Printable

Whole = Annotated[int, Field(ge=-(10**15), le=10**15)]
_MOST_STEPS = 10**7
Number = Whole | Annotated[float, Field(ge=-1e15, le=1e15)]


class Range(Parameters):
    """Values between two bounds: so many, in steps, or drawn as `samples` says."""

    lowest: Number = Field(alias="from")
    """First value."""
    highest: Number = Field(alias="to")
    """Last value; in steps that don't reach it, the last one below."""
    step: Annotated[Number, Field(gt=0)] | None = None
    """Distance of neighbors."""
    count: int | None = Field(default=None, ge=2, le=_MOST_STEPS)
    """So many values at equal distances, both bounds included."""
    scale: Literal["linear", "log"] = "linear"
    """log: neighbors have equal ratios instead."""
    whole: bool = False
    """Round to whole numbers; those that become equal are taken once."""

    @property
    def is_sampled(self) -> bool:
        """Whether its values are drawn: neither step nor count says which there are."""
        return self.step is None and self.count is None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if not self.lowest < self.highest:
            raise ValueError(f"from {self.lowest} to {self.highest} is no range: from must be less")
        if self.step is not None and self.count is not None:
            raise ValueError("takes a step or a count, not both")
        if self.scale == "log" and self.lowest <= 0:
            raise ValueError("a log range begins above 0")
        if self.scale == "log" and self.step is not None:
            raise ValueError("a log range takes a count, no step")
        if self.step is not None and (self.highest - self.lowest) / self.step > _MOST_STEPS:
            raise ValueError(f"has more than {_MOST_STEPS:,} steps of {self.step:g}")
        return self


class Samples(Parameters):
    """Points drawn together over all ranges without step and count, to fill a wide space evenly."""

    kind: Literal["sobol", "latin_hypercube"] = "sobol"
    """sobol: a scrambled Sobol sequence; latin_hypercube: each range cut into `count` parts, each
    of them hit once."""
    count: int = Field(ge=2, le=10**7)
    """How many; of sobol, a power of two."""
    seed: int = Field(default=0, ge=0, lt=2**64)
    """Of the draw of these points; what is simulated has the scenario's seed."""

    @model_validator(mode="after")
    def _is_balanced(self) -> Self:
        if self.kind == "sobol" and self.count & (self.count - 1):
            below = 1 << (self.count.bit_length() - 1)
            what = f"{self.count} is no power of two: Sobol points are even only in such numbers"
            raise ValueError(f"{what}; take {below} or {2 * below}")
        return self


class Condition(Parameters):
    """A comparison that a point must pass to be in the sweep."""

    left: Printable | list[Printable] = Field(min_length=1)
    """Path that the sweep sets, or `variant`; of several, their product."""
    op: Literal["<", "<=", "==", "!=", ">=", ">"]
    """How they compare; YAML wants those with > in quotes."""
    right: Number | bool | Printable | list[Printable] | None
    """A value, another path that the sweep sets, or several whose product it is."""


def _form_of_axis(value: Any) -> str | None:
    if isinstance(value, list):
        return "list"
    return "range" if isinstance(value, dict | Range) else None


Values = Annotated[list[JsonValue], Field(min_length=1)]
Axis = Annotated[
    Annotated[Values, Tag("list")] | Annotated[Range, Tag("range")],
    Discriminator(
        _form_of_axis,
        custom_error_type="axis_form",
        custom_error_message="should be a list of values, or a range {from: ..., to: ...}",
    ),
]
Row = Annotated[dict[str, JsonValue], Field(min_length=1)]


class Sweep(Parameters):
    """A scenario, and what is varied in it: points are all combinations of the axes."""

    name: Name = "sweep"
    """Name of the sweep and of what it writes; by default that of its file."""
    scenario: Printable = Field(min_length=1)
    """Scenario file, beside this one."""
    set: dict[str, JsonValue] = Field(default_factory=dict)
    """Dotted path in the scenario → value at all points, for example `workload.num_requests: 2000`;
    a step into a list is a number, from 0."""
    variants: list[Printable] = Field(default=[BASE], min_length=1)
    """Variants of the scenario that are swept, `base` for the scenario itself: one more axis."""
    replications: int = Field(default=1, ge=1, le=10_000)
    """Independent draws of each point, which give intervals. Points of one replication face the
    same draws."""
    axes: dict[str, Axis] = Field(default_factory=dict)
    """Dotted path in the scenario → its values: a list, or a range {from, to, step or count}."""
    zipped: dict[Name, Annotated[list[Row], Field(min_length=1)]] = Field(default_factory=dict)
    """Name → rows of values that change together: each row maps the same paths to values."""
    where: list[Condition] = Field(default_factory=list)
    """Conditions on points; who fails one is no part of the sweep."""
    samples: Samples | None = None
    """How ranges without step and count are sampled."""
