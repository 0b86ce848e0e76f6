"""All together: indices of Morris and Sobol, which see interactions, too; computed by SALib."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError, Problem
from kvsim.rng import stream
from kvsim.studies.sensitivity.factors import Factor
from kvsim.studies.sensitivity.model import Answer, Ask, Model

Method = Literal["morris", "sobol"]

LEVELS = 4  # of Morris' grid, as Saltelli et al. (2004) advise
_MAIN: Mapping[Method, str] = {"morris": "mu_star", "sobol": "ST"}  # by it factors are ordered
_SAID = {
    "morris": {
        "mu_star": "mean size of the change, for all of the factor's range",
        "sigma": "spread of these changes: not linear, or with others",
    },
    "sobol": {
        "S1": "share of the variance that it makes alone",
        "ST": "share that it has a part in, with others",
    },
}


@dataclass(frozen=True, slots=True)
class Index:
    """What a factor does, by name of the index; intervals of 95 % are value ± confidence."""

    factor: Factor
    values: Mapping[str, float]
    confidence: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Indices:
    """Indices of all factors, the strongest first.

    Attributes:
        method: `morris` or `sobol`.
        indices: One a factor.
        evaluations: How often the model was evaluated.
        mean, deviation: Of the figure over all evaluations.
    """

    method: Method
    indices: Sequence[Index]
    evaluations: int
    mean: float
    deviation: float

    @property
    def main(self) -> str:
        """Name of the index by which factors are ordered."""
        return _MAIN[self.method]

    @property
    def said(self) -> Mapping[str, str]:
        """What each index means."""
        return _SAID[self.method]


def indices_of(
    factors: Sequence[Factor],
    model: Model,
    method: Method,
    samples: int,
    seed: int,
    replications: int = 1,
) -> Indices:
    """Return the indices of all factors over the box of their ranges.

    Each evaluation is the mean over the same replications, so that draws add no noise between them.

    Args:
        factors: At least two.
        model: What is evaluated.
        method: Morris' elementary effects, or Sobol's variances.
        samples: Trajectories (Morris), or base samples, a power of two (Sobol).
        seed: Root seed of the sampling.
        replications: Draws that each evaluation is the mean of.

    Raises:
        InputError: SALib is missing, or an evaluation has no value.
    """
    _refuse_few(factors, method, samples)
    sampler, analyzer = _salib(method)
    rng = stream(seed, f"sensitivity/{method}")
    seeds = [int(number) for number in rng.integers(2**31, size=2)]
    problem = {
        "num_vars": len(factors),
        "names": [factor.name for factor in factors],
        "bounds": [[factor.low, factor.high] for factor in factors],
    }
    more: dict[str, Any] = (
        {"num_levels": LEVELS} if method == "morris" else {"calc_second_order": False}
    )
    points = sampler.sample(problem, samples, seed=seeds[0], **more)
    values = _evaluate(factors, model, points, replications)
    given = (points, values) if method == "morris" else (values,)
    found = analyzer.analyze(problem, *given, seed=seeds[1], **more)
    names = list(_SAID[method])
    indices = [
        Index(
            factor,
            {name: _number(found[name][place]) for name in names},
            {
                name: _number(found[f"{name}_conf"][place])
                for name in names
                if f"{name}_conf" in found
            },
        )
        for place, factor in enumerate(factors)
    ]
    indices.sort(key=lambda index: -index.values[_MAIN[method]])
    return Indices(method, indices, len(points), float(values.mean()), float(values.std()))


def _refuse_few(factors: Sequence[Factor], method: Method, samples: int) -> None:
    if len(factors) < 2:
        raise InputError(Problem("needs at least two factors", path=f"--method {method}"))
    if method == "sobol" and samples & (samples - 1):
        raise InputError(Problem(f"must be a power of two, not {samples}", path="--samples"))


def _salib(method: Method) -> tuple[ModuleType, ModuleType]:
    from importlib import import_module

    try:
        return import_module(f"SALib.sample.{method}"), import_module(f"SALib.analyze.{method}")
    except ImportError:
        what = f"--method {method} needs SALib: pip install 'kvsim[sensitivity]'"
        raise InputError(what) from None


def _evaluate(
    factors: Sequence[Factor], model: Model, points: NDArray[np.float64], replications: int
) -> NDArray[np.float64]:
    asks = [
        Ask(tuple(float(f.plain(x)) for f, x in zip(factors, row, strict=True)), number)
        for row in points.tolist()
        for number in range(replications)
    ]
    answers = model(asks)
    missing = [place for place, answer in enumerate(answers) if answer.value is None]
    if missing:
        raise InputError(_missing(factors, asks[missing[0]], answers[missing[0]], len(missing)))
    values = np.array([answer.value for answer in answers], dtype=np.float64)
    return np.asarray(values.reshape(len(points), replications).mean(axis=1))


def _missing(factors: Sequence[Factor], ask: Ask, answer: Answer, count: int) -> str:
    pairs = zip(factors, ask.values, strict=True)
    where = ", ".join(f"{factor.name} {factor.show(x)}" for factor, x in pairs if x is not None)
    what = f"{count} of the samples have no value, which the indices need"
    return f"{what}; the first: {where}: {answer.why}"


def _number(value: Any) -> float:
    """Return a plain number; an index of a figure that never changes is 0."""
    number = float(value)
    return number if np.isfinite(number) else 0.0
