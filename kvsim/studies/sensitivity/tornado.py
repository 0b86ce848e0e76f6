"""One at a time: each factor at its low and at its high end, all others as in the scenario."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.errors import InputError, Problem
from kvsim.statistics import Interval, mean_interval
from kvsim.studies.sensitivity.factors import Factor
from kvsim.studies.sensitivity.model import Answer, Ask, Model


@dataclass(frozen=True, slots=True)
class End:
    """One end of a factor's range.

    Attributes:
        value: Of the factor.
        mean: Of the figure there; None: it has none, see `why`.
        change: Its difference to the scenario as it is, over paired draws.
        why: Why there is no figure.
    """

    value: float
    mean: float | None
    change: Interval | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a factor does alone."""

    factor: Factor
    low: End
    high: End

    @property
    def reach(self) -> float:
        """The larger of both changes, without its sign; below all others where there is none."""
        known = [abs(end.change.mean) for end in (self.low, self.high) if end.change]
        return max(known, default=-1.0)

    @property
    def is_clear(self) -> bool:
        """Whether the interval of a change lies on one side of zero."""
        return any(_is_clear(end.change) for end in (self.low, self.high) if end.change)


@dataclass(frozen=True, slots=True)
class Tornado:
    """All factors, that which moves the figure most first.

    Attributes:
        base: The figure of the scenario as it is.
        bars: One a factor.
        replications: Draws that each mean is over.
    """

    base: Interval
    bars: Sequence[Bar]
    replications: int


def tornado(factors: Sequence[Factor], model: Model, replications: int) -> Tornado:
    """Return what each factor does alone, over paired replications.

    Raises:
        InputError: The scenario as it is has no such figure.
    """
    nothing: tuple[float | None, ...] = (None,) * len(factors)
    places = [nothing]
    for place, factor in enumerate(factors):
        for value in (factor.low, factor.high):
            places.append((*nothing[:place], float(factor.plain(value)), *nothing[place + 1 :]))
    asks = [Ask(values, number) for values in places for number in range(replications)]
    answers = list(model(asks))
    groups = [
        answers[start : start + replications] for start in range(0, len(answers), replications)
    ]
    base, *ends = groups
    if any(answer.value is None for answer in base):
        why = next(answer.why for answer in base if answer.value is None)
        raise InputError(Problem(f"the scenario as it is has no such figure: {why}"))
    bars = [
        Bar(
            factor,
            _end(factor.low, ends[2 * place], base),
            _end(factor.high, ends[2 * place + 1], base),
        )
        for place, factor in enumerate(factors)
    ]
    bars.sort(key=lambda bar: -bar.reach)
    return Tornado(mean_interval([_known(answer) for answer in base]), bars, replications)


def _end(value: float, answers: Sequence[Answer], base: Sequence[Answer]) -> End:
    missing = [answer.why for answer in answers if answer.value is None]
    if missing:
        return End(value, None, None, missing[0])
    values = [_known(answer) for answer in answers]
    changes = [one - _known(other) for one, other in zip(values, base, strict=True)]
    return End(value, sum(values) / len(values), mean_interval(changes))


def _known(answer: Answer) -> float:
    assert answer.value is not None, "looked for before"
    return answer.value


def _is_clear(change: Interval) -> bool:
    if change.low is None or change.high is None:
        return change.mean != 0
    return change.low > 0 or change.high < 0
