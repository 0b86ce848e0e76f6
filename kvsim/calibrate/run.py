"""Results of benchmarks and the scenario of their server → a profile, and what to know about it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvsim.calibrate.constants import with_values
from kvsim.calibrate.fit import Fit, Tell, fit
from kvsim.calibrate.predict import Figure, MeasuredServer
from kvsim.calibrate.result import BenchmarkResult
from kvsim.errors import InputError
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.profiles import EngineProfile

_WEAK = {"extrapolated", "physical"}
_MANY_FAILED = 0.01
_WIDE = 0.5  # share of a constant's range; a wider interval tells little


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `kvsim calibrate` has found.

    Attributes:
        profile: The new profile.
        start: The profile that it departs from, by the name that the scenario gives.
        results: What it was fitted on.
        figures: All measured figures, in the order of `fit.before_ms` and `fit.after_ms`.
        notes: What a reader must know, in sentences.
    """

    profile: EngineProfile
    start: str
    fit: Fit
    results: Sequence[BenchmarkResult]
    figures: Sequence[Figure]
    notes: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the calibration for JSON."""
        predicted = zip(self.fit.before_ms.tolist(), self.fit.after_ms.tolist(), strict=True)
        return {
            "profile": self.profile.model_dump(mode="json"),
            "start": self.start,
            "constants": [one.as_dict() for one in self.fit.constants],
            "figures": [
                asdict(figure) | {"before_ms": before_ms, "after_ms": after_ms}
                for figure, (before_ms, after_ms) in zip(self.figures, predicted, strict=True)
            ],
            "notes": list(self.notes),
        }


def calibrate(
    file: ScenarioFile, results: Sequence[BenchmarkResult], seed: int = 0, tell: Tell | None = None
) -> Calibration:
    """Fit the overheads of a server's profile to what clients measured of it.

    Args:
        file: The scenario that describes the server; its workload and variants don't matter.
        results: What clients sent and measured.
        seed: Root of the random streams that arrivals are drawn from.
        tell: Told how many simulations are done, of at most how many.

    Raises:
        InputError: There is no result, the server would not start, its steps are not priced by
            kernels, or requests don't fit it.
    """
    if not results:
        raise InputError("name files with results of benchmarks after the scenario")
    server = MeasuredServer(file, results, seed)
    found = fit(server, tell)
    new = with_values(server.profile, {one.constant: one.value_s for one in found.constants})
    basis = f"fitted on {_counted(results)} of {server.variant.model.name} on {_gpus(server)}"
    profile = new.model_copy(
        update={"basis": basis, "fitted_on": tuple(result.name for result in results)}
    )
    start = server.law.profile
    notes = [*_of_constants(found, results), *_of_server(server), *_of_results(server, results)]
    return Calibration(profile, start, found, results, server.figures, notes)


def _counted(results: Sequence[BenchmarkResult]) -> str:
    return f"{len(results)} benchmark results" if len(results) > 1 else "one benchmark result"


def _gpus(server: MeasuredServer) -> str:
    return f"{server.variant.num_gpus} x {server.variant.gpu.name}"


def _of_constants(found: Fit, results: Sequence[BenchmarkResult]) -> Iterator[str]:
    """Say what the data can't tell, and what looks wrong."""
    fitted = [one for one in found.constants if not one.kept]
    if not fitted:
        yield "The results tell nothing of the constants: all are as they were."
    for one in found.constants:
        if one.kept:
            yield f"{one.constant.path} {one.kept}: it stays {one.constant.shown(one.value_s)}."
    for one in fitted:
        if one.bound == "upper":
            yield (
                f"{one.constant.path} has hit its upper bound: something else makes this server "
                "slower than the scenario says. Compare model, GPU, quantization and engine flags."
            )
        elif one.bound == "lower":
            yield (
                f"{one.constant.path} has gone down to zero: the server is faster than kvsim's "
                "kernels, or the scenario describes another one."
            )
        elif one.interval_s and one.interval_s[1] - one.interval_s[0] > _WIDE * one.constant.most_s:
            yield f"{one.constant.path} is hardly told by these runs: its interval is wide."
    free = [one for one in fitted if not one.bound]
    if free and all(one.interval_s is None for one in free):
        yield "There are no intervals: as many constants as figures. Measure at more loads."
    if len(results) < len(fitted):
        yield (
            f"{_counted(results).capitalize()} for {len(fitted)} constants: few. Measure at "
            "several concurrencies (1, 8, 32, 64), and short and long prompts at 1."
        )


def _of_server(server: MeasuredServer) -> Iterator[str]:
    weak = sorted(server.bases & _WEAK)
    if weak:
        yield (
            f"Kernels of {server.variant.gpu.name} that matter here are {' and '.join(weak)}, not "
            "measured: the constants make up for their errors, too, and fit this model only."
        )
    given = [name for name in ("overhead", "front_end") if getattr(server.law, name) is not None]
    for name in given:
        yield (
            f"The scenario says cost.{name} itself, from which the fit started; it goes "
            "before any profile, so leave it out when you name the new one."
        )


def _of_results(server: MeasuredServer, results: Sequence[BenchmarkResult]) -> Iterator[str]:
    for result in results:
        if result.failed > _MANY_FAILED * len(result):
            yield f"{result.name}: {result.failed} requests failed; they are not simulated."
        if result.model and _plain(result.model) != _plain(server.variant.model.name):
            yield (
                f"{result.name} was measured with {result.model}, the scenario serves "
                f"{server.variant.model.name}."
            )
    if not any("ttft_mean" in result.measured_ms for result in results):
        yield "No result has a TTFT: the front end can only be told from E2E latencies."


def _plain(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2].lower()
