"""What kvsim predicts of the measured server under given constants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvsim.calibrate.constants import Constant, with_values
from kvsim.calibrate.result import BenchmarkResult
from kvsim.calibrate.traffic import requests_of
from kvsim.errors import InputError, Problem
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.profiles import EngineProfile
from kvsim.scenario.resolve import resolve
from kvsim.scenario.schema import BASE, KernelStepCost, Scenario
from kvsim.scenario.variant import ResolvedVariant
from kvsim.simulate import simulate
from kvsim.validate.case import OVERALL
from kvsim.validate.measure import Observed
from kvsim.workload.requests import RequestTable

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured mean, and which."""

    result: str
    metric: str
    measured_ms: float


class MeasuredServer:
    """The server of a scenario, what clients sent to it, and what they measured.

    Attributes:
        variant: The server as the scenario describes it.
        law: How the scenario prices it.
        profile: The constants that it prices it with.
        figures: What was measured, in the order in which `predict_ms` answers.
        bases: On what the kernels' times rest, as far as they carry; known after a prediction.
    """

    def __init__(self, file: ScenarioFile, results: Sequence[BenchmarkResult], seed: int) -> None:
        self._scenario = file.base.model_copy(update={"max_simulated_s": None, "seed": seed})
        self._folder: Path = file.base_dir
        self._results = results
        self._requests = [requests_of(result, seed) for result in results]
        try:
            self.law = _kernels_of(self._scenario)
            self.variant = resolve(self._scenario, base_dir=self._folder)
        except InputError as error:
            raise InputError(*(file.located(one, BASE) for one in error.problems)) from error
        assert self.variant.profile is not None  # every law of kernels has one
        self.profile: EngineProfile = self.variant.profile
        self.bases: set[str] = set()
        self.figures = [
            Figure(result.name, metric, measured_ms)
            for result in results
            for metric, measured_ms in result.measured_ms.items()
        ]

    def predict_ms(self, values_s: Mapping[Constant, float]) -> Floats:
        """Return all figures, in milliseconds, if the constants had these values.

        Raises:
            InputError: Requests of a result don't fit this server.
        """
        profile = with_values(self.profile, values_s)
        changes = {"overhead": profile.overhead, "front_end": profile.front_end}
        law = self.law.model_copy(update=changes)
        variant = resolve(self._scenario.model_copy(update={"cost": law}), base_dir=self._folder)
        predicted_ms: list[float] = []
        for result, requests in zip(self._results, self._requests, strict=True):
            predicted_ms += self._figures_ms(variant, result, requests)
        return np.array(predicted_ms)

    def _figures_ms(
        self, variant: ResolvedVariant, result: BenchmarkResult, requests: RequestTable
    ) -> list[float]:
        observed = Observed(variant.cost)
        simulate(variant, requests, observed)
        if lost := observed.lost():
            raise InputError(
                f"{result.name}: {lost} of its requests don't fit the scenario's server"
            )
        figures_ms = observed.figures(np.zeros(1, dtype=np.int64))[OVERALL]
        unknown = [metric for metric in result.measured_ms if metric not in figures_ms]
        if unknown:
            raise InputError(f"{result.name}: {unknown[0]} needs answers of several tokens")
        self.bases.add(observed.basis())
        return [figures_ms[metric] for metric in result.measured_ms]


def _kernels_of(scenario: Scenario) -> KernelStepCost:
    if isinstance(scenario.cost, KernelStepCost):
        return scenario.cost
    what = "only the overheads beside kernels can be calibrated: kind must be kernels"
    raise InputError(Problem(what, path="cost.kind"))
