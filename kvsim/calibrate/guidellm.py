"""Reports of guidellm (`guidellm benchmark --output-path report.json`): several benchmarks a file.

https://github.com/vllm-project/guidellm. Means stand under `metrics`, those of answered requests
under `successful`; `request_latency` is in seconds. ITL is weighted by the gaps of the requests.
Its TPOT is left alone: the time of the first token is in it or not, depending on the version. The
strategy stands under `config`, `args` or `scheduler`, again depending on the version.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kvsim.calibrate.result import equal_lengths, figures_ms, needed, refuse, refuse_count
from kvsim.errors import InputError, Problem
from kvsim.validate.fields import Fields

SHAPE = "JSON report of guidellm"
_PARENTS = ("config", "args", "scheduler")
_LENGTHS = ("prompt_tokens", "output_tokens")


def recognizes(document: Mapping[str, Any]) -> bool:
    """Return whether a document has this format."""
    return isinstance(document.get("benchmarks"), list)


def results_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the benchmarks, as values of a `BenchmarkResult` but its name.

    Raises:
        InputError: Something is missing or can't be understood; with the place of the benchmark.
    """
    found: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for place, benchmark in enumerate(document["benchmarks"]):
        try:
            found.append(_result(benchmark if isinstance(benchmark, dict) else {}))
        except InputError as error:
            where = f"benchmarks.{place}"
            problems += [Problem(problem.message, path=where) for problem in error.problems]
    if problems:
        raise InputError(*problems)
    return found


def _result(benchmark: Mapping[str, Any]) -> dict[str, Any]:
    fields = Fields(benchmark)
    metrics = fields.part("metrics")
    latency_s = _mean(metrics, "request_latency")
    values = {
        **_lengths(fields, metrics),
        **_load(_strategy(benchmark)),
        "model": _model(fields),
        "failed": len(fields.part("requests").parts("errored")),
        "measured_ms": figures_ms(
            {
                "ttft_mean": _mean(metrics, "time_to_first_token_ms"),
                "itl_mean_reported": _mean(metrics, "inter_token_latency_ms"),
                "e2e_mean": None if latency_s is None else 1000 * latency_s,
            }
        ),
    }
    refuse(fields.unclear)
    return values


def _mean(metrics: Fields, name: str) -> float | None:
    return metrics.part(name).part("successful").number("mean")


def _lengths(fields: Fields, metrics: Fields) -> dict[str, Any]:
    """Return the lengths of each request; where only a sample of them was kept, the means."""
    requests = fields.part("requests").parts("successful")
    latency = metrics.part("request_latency").part("successful")
    counts = metrics.part("request_totals").count("successful") or latency.count("count")
    lengths = [[request.count(name) or 0 for request in requests] for name in _LENGTHS]
    known = bool(requests) and min(map(min, lengths)) > 0
    if known and counts in {None, len(requests)}:
        arrays = [np.array(column, dtype=np.int64) for column in lengths]
        return dict(zip(_LENGTHS, arrays, strict=True))
    means = [
        needed(metrics.part(f"{what}_token_count").part("successful"), "mean")[0]
        for what in ("prompt", "output")
    ]
    number = refuse_count(counts or len(requests))
    return dict(zip(_LENGTHS, equal_lengths(number, *means), strict=True))


def _strategies(benchmark: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for parent in _PARENTS:
        part = benchmark.get(parent)
        strategy = part.get("strategy") if isinstance(part, dict) else None
        if isinstance(strategy, dict):
            yield strategy


def _strategy(benchmark: Mapping[str, Any]) -> Fields:
    strategy = next(_strategies(benchmark), None)
    if strategy is None:
        raise InputError("has no config.strategy: who sent how much is unknown")
    return Fields(strategy)


def _load(strategy: Fields) -> dict[str, Any]:
    kind = strategy.text("type_") or strategy.text("type") or strategy.text("kind")
    limit = {"max_concurrency": strategy.count("max_concurrency")}
    if kind == "synchronous":
        return {"max_concurrency": 1}
    if kind == "concurrent":
        (streams,) = needed(strategy, "streams")
        return {"max_concurrency": round(streams)}
    if kind == "throughput":
        return limit
    if kind in {"constant", "async", "poisson"}:
        (rate_per_s,) = needed(strategy, "rate")
        return limit | {"rate_per_s": rate_per_s, "burstiness": 1.0 if kind == "poisson" else None}
    raise InputError(f"has the strategy {kind!r}, which is not known")


def _model(fields: Fields) -> str | None:
    return next(
        (
            model
            for parent in ("config", "worker", "args")
            for part in (fields.part(parent), fields.part(parent).part("backend"))
            if (model := part.text("model") or part.text("backend_model")) is not None
        ),
        None,
    )
