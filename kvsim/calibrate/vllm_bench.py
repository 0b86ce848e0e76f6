"""Results of `vllm bench serve --save-result`, with or without `--save-detailed`.

As `vllm/benchmarks/serve.py` writes it: means in milliseconds; with details one list entry a
request, `start_times` in seconds of the client's clock, and `errors` of those that failed. The mean
E2E latency is there if the client was asked for it (`--percentile-metrics ttft,tpot,itl,e2el`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.calibrate.result import equal_lengths, figures_ms, needed, refuse, refuse_count
from kvsim.errors import InputError
from kvsim.validate.fields import Fields

SHAPE = "JSON of `vllm bench serve --save-result`"
_LISTS = ("input_lens", "output_lens")
_KEYS = {  # ours → theirs
    "ttft_mean": "mean_ttft_ms",
    "tpot_mean": "mean_tpot_ms",
    "itl_mean_reported": "mean_itl_ms",
    "e2e_mean": "mean_e2el_ms",
}


def recognizes(document: Mapping[str, Any]) -> bool:
    """Return whether a document has this format."""
    return "mean_ttft_ms" in document and "completed" in document


def results_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the result, as values of a `BenchmarkResult` but its name.

    Raises:
        InputError: Something is missing or can't be understood.
    """
    fields = Fields(document)
    detailed = all(isinstance(document.get(name), list) for name in _LISTS)
    values = _detailed(document) if detailed else _means(fields)
    rate_per_s = None if fields.text("request_rate") == "inf" else fields.positive("request_rate")
    values |= {
        "model": fields.text("model_id"),
        "max_concurrency": fields.count("max_concurrency"),
        "rate_per_s": rate_per_s,
        "burstiness": fields.positive("burstiness") or 1.0,
        "failed": round(fields.number("failed") or values.get("failed", 0)),
        "measured_ms": figures_ms({name: fields.number(key) for name, key in _KEYS.items()}),
    }
    refuse(fields.unclear)
    return [values]


def _means(fields: Fields) -> dict[str, Any]:
    completed, prompt_tokens, output_tokens = needed(
        fields, "completed", "total_input_tokens", "total_output_tokens"
    )
    requests = refuse_count(completed)
    lengths = equal_lengths(requests, prompt_tokens / requests, output_tokens / requests)
    return dict(zip(("prompt_tokens", "output_tokens"), lengths, strict=True))


def _detailed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lists without the requests that failed: those that have no answer."""
    columns = {name: _numbers(document, name) for name in _LISTS}
    if document.get("start_times"):
        columns["start_times"] = _numbers(document, "start_times")
    if len({len(column) for column in columns.values()}) > 1:
        raise InputError(f"{', '.join(columns)} differ in length")
    answered = (columns["input_lens"] >= 1) & (columns["output_lens"] >= 1)
    refuse_count(answered.sum())
    times = columns.get("start_times")
    return {
        "prompt_tokens": columns["input_lens"][answered].astype(np.int64),
        "output_tokens": columns["output_lens"][answered].astype(np.int64),
        "sent_s": None if times is None else times[answered],
        "failed": int((~answered).sum()),
    }


def _numbers(document: Mapping[str, Any], name: str) -> NDArray[np.float64]:
    numbers = document[name]
    wrong = not isinstance(numbers, list) or any(
        isinstance(one, bool) or not isinstance(one, int | float) for one in numbers
    )
    if wrong or not np.isfinite(np.array(numbers, dtype=np.float64)).all():
        raise InputError(f"{name} must be a list of numbers")
    return np.array(numbers, dtype=np.float64)
