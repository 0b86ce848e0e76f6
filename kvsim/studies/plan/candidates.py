"""What a fleet may be made of: GPUs, tensor parallelism, precision, settings; and prices."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.gpu import gpu_names, load_gpu, price_of
from kvsim.scenario.change import changed, without_measured_layout
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.schema import Scenario

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)
AS_IT_IS = "auto"  # weights as the scenario says


@dataclass(frozen=True, slots=True)
class Options:
    """What a plan may choose from, and what it is for.

    Attributes:
        gpus: Names in the catalog, or the scenario's own GPU; none: all whose price is known.
        prices: Name → USD an hour of one GPU, before those of scenario and catalog.
        tensor_parallel_sizes: GPUs that share each layer of a replica.
        weights: `auto`, as the scenario has them; `fp8`, where the GPU multiplies it.
        kv_cache_dtypes: `auto`, as the scenario has it; `fp8`.
        vary: Dotted path of a setting → its values.
        growth: The demand is so many times that of the scenario.
        headroom: And this share of it more.
        spare: Replicas beyond those that the load needs.
        replications: Independent draws that each fleet is judged on.
        also: So many candidates beside the winner get a fleet of their own, for comparison.
        budget_s: No simulation begins after it, in seconds of this machine; None: no limit.
    """

    gpus: Sequence[str] = ()
    prices: Mapping[str, float] = field(default_factory=dict)
    tensor_parallel_sizes: Sequence[int] = TENSOR_PARALLEL_SIZES
    weights: Sequence[str] = (AS_IT_IS, "fp8")
    kv_cache_dtypes: Sequence[str] = (AS_IT_IS, "fp8")
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    growth: float = 1.0
    headroom: float = 0.0
    spare: int = 0
    replications: int = 3
    also: int = 3
    budget_s: float | None = None

    @property
    def load_factor(self) -> float:
        """How many times the scenario's demand the fleet is for."""
        return self.growth * (1 + self.headroom)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica to make a fleet of: what differs from the scenario, and what it costs.

    Attributes:
        gpu: Its name.
        tensor_parallel_size: GPUs that share each layer.
        weights: `auto` or `fp8`.
        kv_cache_dtype: `auto` or another.
        settings: Dotted path → value, as varied.
        changes: All that differs from the scenario, without replicas.
        usd_per_gpu_hour: Price of one GPU.
    """

    gpu: str
    tensor_parallel_size: int
    weights: str
    kv_cache_dtype: str
    settings: tuple[tuple[str, Any], ...]
    changes: Mapping[str, Any]
    usd_per_gpu_hour: float

    @property
    def label(self) -> str:
        """What it is, in few words: `h100_sxm, TP 2, fp8 weights, fp8 KV`."""
        words = [self.gpu, f"TP {self.tensor_parallel_size}"]
        words += ["fp8 weights"] if self.weights != AS_IT_IS else []
        words += [f"{self.kv_cache_dtype} KV"] if self.kv_cache_dtype != AS_IT_IS else []
        words += [f"{path.removeprefix('engine.')} {value}" for path, value in self.settings]
        return ", ".join(words)

    @property
    def is_of_other_precision(self) -> bool:
        """Whether weights or KV cache have fewer bits than in the scenario."""
        return self.weights != AS_IT_IS or self.kv_cache_dtype != AS_IT_IS


def candidates_of(file: ScenarioFile, options: Options) -> list[Candidate]:
    """Return all candidates in the order of the options.

    Raises:
        InputError: With every GPU that is unknown or has no price, and every option out of range.
    """
    scenario = file.base
    prices = _prices(scenario, options)
    problems = [*_option_problems(options), *_setting_problems(file, options)]
    if not prices:
        problems.append(Problem("no GPU has a price: name one with --price h100_sxm=2.10"))
    if problems:
        raise InputError(*problems)
    settings = [[(path, value) for value in values] for path, values in options.vary.items()]
    found = []
    for gpu, size, weights, kv, *varied in product(
        prices, options.tensor_parallel_sizes, options.weights, options.kv_cache_dtypes, *settings
    ):
        if _repeats(scenario, gpu, weights, kv):
            continue
        changes = _changes(scenario, gpu, size, weights, kv) | dict(varied)
        changes["price_usd_per_gpu_hour"] = prices[gpu]
        found.append(Candidate(gpu, size, weights, kv, tuple(varied), changes, prices[gpu]))
    return found


def _option_problems(options: Options) -> Iterator[Problem]:
    """Yield what can't be planned with, by the names of the command line."""
    if not 0 < options.growth < math.inf:
        yield Problem(f"must be a number above 0, not {options.growth:g}", path="--growth")
    if not 0 <= options.headroom < math.inf:
        yield Problem(f"must be a number from 0 on, not {options.headroom:g}", path="--headroom")
    for path in options.vary:
        if path in {"gpu", "replicas", "price_usd_per_gpu_hour"} or path.startswith("workload"):
            yield Problem("is not a setting of the engine that a plan can choose", path=path)
    precisions = {"--weights": options.weights, "--kv-cache-dtype": options.kv_cache_dtypes}
    for name, values in precisions.items():
        for value in values:
            if value not in {AS_IT_IS, "fp8"}:
                yield Problem(f"must be {AS_IT_IS} or fp8, not {value!r}", path=name)


def _setting_problems(file: ScenarioFile, options: Options) -> Iterator[Problem]:
    """Yield what is wrong with the settings that are varied, whatever the candidate."""
    for path, values in options.vary.items():
        for value in values:
            try:
                changed(file, {path: value})
            except InputError as error:
                yield from error.problems


def _prices(scenario: Scenario, options: Options) -> dict[str, float]:
    """Return the price of each GPU to choose from."""
    own = _own_gpu(scenario)
    known = [*gpu_names(), *([] if own in gpu_names() else [own])]
    problems, prices = [], {}
    for name in {**dict.fromkeys(options.gpus), **dict.fromkeys(options.prices)}:
        if name not in known:
            hint = did_you_mean(name, known) or "; kvsim catalog lists them"
            problems.append(Problem(f"GPU {name!r} is not in the catalog{hint}"))
    for name in options.gpus or known:
        price = options.prices.get(name)
        if price is None and name == own:
            price = scenario.price_usd_per_gpu_hour
        listed = price_of(name)
        if price is None and listed is not None:
            price = listed.usd_per_gpu_hour
        if price is not None:
            prices[name] = price
        elif options.gpus and name in known:
            problems.append(Problem(f"no price of {name} is known: give --price {name}=USD"))
    if problems:
        raise InputError(*problems)
    return prices


def _own_gpu(scenario: Scenario) -> str:
    """Return the name of the scenario's GPU."""
    return load_gpu(scenario.gpu).name if isinstance(scenario.gpu, str) else scenario.gpu.name


def _repeats(scenario: Scenario, gpu: str, weights: str, kv_cache_dtype: str) -> bool:
    """Tell whether fp8 is what the scenario has anyway, or what the GPU does not multiply."""
    engine, own = scenario.engine, scenario.gpu
    if weights != AS_IT_IS:
        is_own = not isinstance(own, str) and own.name == gpu
        spec = own if is_own and not isinstance(own, str) else load_gpu(gpu)
        if engine.quantization is not None or spec.fp8_flop_per_s is None:
            return True
    return kv_cache_dtype != AS_IT_IS and engine.kv_cache_dtype.startswith("fp8")


def _changes(
    scenario: Scenario, gpu: str, size: int, weights: str, kv_cache_dtype: str
) -> dict[str, Any]:
    """Return what differs from the scenario; what was measured of its layout goes with it."""
    changes: dict[str, Any] = {}
    if gpu != _own_gpu(scenario):
        changes["gpu"] = gpu
    if size != scenario.engine.tensor_parallel_size:
        changes["engine.tensor_parallel_size"] = size
    if weights != AS_IT_IS:
        changes["engine.quantization"] = weights
    if kv_cache_dtype != AS_IT_IS:
        changes["engine.kv_cache_dtype"] = kv_cache_dtype
    return changes | without_measured_layout(scenario) if changes else changes
