"""Summaries of aiperf (`profile_export_aiperf.json`) and genai-perf (`…_genai_perf.json`).

https://github.com/ai-dynamo/aiperf. Each metric is an object with its unit and its mean, `avg`; the
command line stands under `input_config`. ITL is a mean over requests of each one's own mean, so it
is what vLLM calls TPOT.
"""

from collections.abc import Mapping
from typing import Any

from kvsim.calibrate.result import equal_lengths, figures_ms, needed, refuse, refuse_count
from kvsim.errors import InputError
from kvsim.validate.fields import Fields

SHAPE = "JSON summary of aiperf or genai-perf"
_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}
_LENGTHS = ("input_sequence_length", "output_sequence_length")
_KEYS = {  # ours → theirs
    "ttft_mean": "time_to_first_token",
    "tpot_mean": "inter_token_latency",
    "e2e_mean": "request_latency",
}
_ROUNDS = 10  # requests for each place, where an older genai-perf doesn't count them


def recognizes(document: Mapping[str, Any]) -> bool:
    """Return whether a document has this format."""
    latency = document.get("request_latency")
    return isinstance(latency, dict) and "avg" in latency


def results_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the result, as values of a `BenchmarkResult` but its name.

    Raises:
        InputError: Something is missing or can't be understood.
    """
    fields = Fields(document)
    load = _load(document)
    means = [needed(fields.part(name), "avg")[0] for name in _LENGTHS]
    prompts, outputs = equal_lengths(_requests(document, load), *means)
    values = {
        "prompt_tokens": prompts,
        "output_tokens": outputs,
        "model": _model(document),
        **load,
        "failed": round(fields.part("error_request_count").number("avg") or 0),
        "measured_ms": figures_ms({name: _mean_ms(fields, key) for name, key in _KEYS.items()}),
    }
    refuse(fields.unclear)
    return [values]


def _mean_ms(fields: Fields, name: str) -> float | None:
    metric = fields.part(name)
    unit = metric.text("unit") or "ms"
    if unit not in _MS:
        raise InputError(f"{name} is in {unit!r}, which is no unit of time that kvsim knows")
    value = metric.number("avg")
    return None if value is None else value * _MS[unit]


def _requests(document: Mapping[str, Any], load: Mapping[str, Any]) -> int:
    counted = Fields(document).part("request_count").positive("avg")
    asked = _settings(document).number("request_count")
    return refuse_count(counted or asked or _ROUNDS * (load["max_concurrency"] or 1))


def _settings(document: Mapping[str, Any]) -> Fields:
    """Return the client's settings: flat, or in parts; what genai-perf lists is one value."""
    config = document.get("input_config")
    config = config if isinstance(config, dict) else {}
    analyzer = config.get("perf_analyzer")
    stimulus = analyzer.get("stimulus") if isinstance(analyzer, dict) else None
    parts = [config, config.get("endpoint"), config.get("loadgen"), stimulus]
    flat: dict[str, Any] = {}
    for part in parts:
        flat |= part if isinstance(part, dict) else {}
    return Fields(
        {name: one[0] if isinstance(one, list) and one else one for name, one in flat.items()}
    )


def _load(document: Mapping[str, Any]) -> dict[str, Any]:
    settings = _settings(document)
    concurrency, rate_per_s = settings.count("concurrency"), settings.positive("request_rate")
    if concurrency is None and rate_per_s is None:
        settings.unclear.append("says neither concurrency nor request_rate under input_config")
    refuse(settings.unclear)
    even = settings.text("request_rate_mode") == "constant"
    return {
        "max_concurrency": concurrency,
        "rate_per_s": rate_per_s,
        "burstiness": None if even else 1.0,
    }


def _model(document: Mapping[str, Any]) -> str | None:
    settings = _settings(document)
    return settings.text("model_names") or settings.text("model")
