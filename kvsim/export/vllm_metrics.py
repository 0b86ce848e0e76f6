"""What a vLLM server tells Prometheus: names, help texts and buckets, and where a run has them.

Names and buckets are those of `vllm/v1/metrics/loggers.py`, https://docs.vllm.ai/en/latest/usage/metrics.
The histogram `vllm:time_per_output_token_seconds` became `vllm:inter_token_latency_seconds` in
0.11; it is kept for older dashboards.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.export.span import Ints
from kvsim.metrics.latency import FINISHED
from kvsim.tables import OUTCOMES, Columns

TIMED_OUT = OUTCOMES.index("timed_out")

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def request_tokens(max_model_len: int) -> tuple[int, ...]:
    """Return the buckets of lengths: 1, 2, 5, 10, 20, … up to the longest request."""
    bounds = (digit * 10**power for power in range(20) for digit in (1, 2, 5))
    return tuple(bound for bound in bounds if bound <= max_model_len)


Chosen = NDArray[np.bool_]


def is_finished(requests: Columns) -> Chosen:
    """Tell which requests finished: vLLM counts the latencies of these alone."""
    finished: Chosen = requests["outcome"] == FINISHED
    return finished


def _any(requests: Columns) -> Chosen:
    return np.ones(len(requests["request"]), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class RequestMetric:
    """A histogram of requests, or a counter that adds up a value of each.

    Attributes:
        name: As vLLM exposes it, without the suffix of a counter.
        help: What it is.
        value: Of each row of the requests table: nanoseconds, tokens, or one.
        at: The column that tells when it is told; rows without that instant don't count.
        counts: Which rows do.
        buckets: Upper ends in seconds; none for a counter, and for lengths, which have their own.
        labels: Labels beside those of all metrics.
    """

    name: str
    help: str
    value: Callable[[Columns], Ints]
    at: str = "finish_ns"
    counts: Callable[[Columns], Chosen] = is_finished
    buckets: tuple[float, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    def observed(self, requests: Columns) -> tuple[Ints, Ints, Ints]:
        """Return the engine, the instant and the value of each row that counts."""
        times_ns, engines = requests[self.at], requests["replica"]
        rows = self.counts(requests) & (times_ns >= 0) & (engines >= 0)
        return engines[rows], times_ns[rows], self.value(requests)[rows]


def _between(start: str, end: str) -> Callable[[Columns], Ints]:
    return lambda requests: requests[end] - requests[start]


def _column(name: str) -> Callable[[Columns], Ints]:
    return lambda requests: requests[name]


def _one(requests: Columns) -> Ints:
    return np.ones(len(requests["request"]), dtype=np.int64)


def _decode_per_token(requests: Columns) -> Ints:
    """Return the time of each token after the first; 0 for an answer of one, as vLLM has it."""
    more = requests["output_tokens"] - 1
    decode_ns = requests["finish_ns"] - requests["first_token_ns"]
    return np.where(more > 0, decode_ns // np.maximum(more, 1), 0)


def _is_cut_short(requests: Columns) -> Chosen:
    longest: Chosen = requests["output_tokens"] >= requests["max_tokens"]
    return longest


HISTOGRAMS = (
    RequestMetric(
        "vllm:time_to_first_token_seconds",
        "Seconds from arrival to the first token.",
        _between("arrival_ns", "first_token_ns"),
        "first_token_ns",
        _any,
        FIRST_TOKEN_S,
    ),
    RequestMetric(
        "vllm:e2e_request_latency_seconds",
        "Seconds from arrival to the last token.",
        _between("arrival_ns", "finish_ns"),
        buckets=REQUEST_S,
    ),
    RequestMetric(
        "vllm:request_queue_time_seconds",
        "Seconds in the queue of the engine.",
        _between("queued_ns", "admitted_ns"),
        buckets=REQUEST_S,
    ),
    RequestMetric(
        "vllm:request_inference_time_seconds",
        "Seconds from admission to the last token.",
        _between("admitted_ns", "finish_ns"),
        buckets=REQUEST_S,
    ),
    RequestMetric(
        "vllm:request_prefill_time_seconds",
        "Seconds from admission to the first token.",
        _between("admitted_ns", "first_token_ns"),
        buckets=REQUEST_S,
    ),
    RequestMetric(
        "vllm:request_decode_time_seconds",
        "Seconds from the first token to the last.",
        _between("first_token_ns", "finish_ns"),
        buckets=REQUEST_S,
    ),
    RequestMetric(
        "vllm:request_time_per_output_token_seconds",
        "Seconds of each token after the first, a request's mean.",
        _decode_per_token,
        buckets=TOKEN_S,
    ),
    RequestMetric(
        "vllm:request_prompt_tokens",
        "Tokens of the prompt.",
        _column("prompt_tokens"),
    ),
    RequestMetric(
        "vllm:request_generation_tokens",
        "Tokens of the answer.",
        _column("output_tokens"),
    ),
    RequestMetric(
        "vllm:request_params_max_tokens",
        "Longest answer that the client allows.",
        _column("max_tokens"),
    ),
    RequestMetric(
        "vllm:request_prefill_kv_computed_tokens",
        "Prompt tokens that the prefix cache did not hold.",
        lambda requests: requests["prompt_tokens"] - requests["cached_tokens"],
    ),
)
FIRST_TOKENS = RequestMetric("", "", _one, "first_token_ns", _any)
_SUCCESS = "Requests that ended, by reason."
COUNTERS = (
    RequestMetric(
        "vllm:prompt_tokens",
        "Prompt tokens of requests that got their first token.",
        _column("prompt_tokens"),
        "first_token_ns",
        _any,
    ),
    RequestMetric(
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        _column("prompt_tokens"),
        "admitted_ns",
        _any,
    ),
    RequestMetric(
        "vllm:prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        _column("cached_tokens"),
        "admitted_ns",
        _any,
    ),
    RequestMetric(
        "vllm:request_success",
        _SUCCESS,
        _one,
        counts=lambda requests: is_finished(requests) & ~_is_cut_short(requests),
        labels=(("finished_reason", "stop"),),
    ),
    RequestMetric(
        "vllm:request_success",
        _SUCCESS,
        _one,
        counts=lambda requests: is_finished(requests) & _is_cut_short(requests),
        labels=(("finished_reason", "length"),),
    ),
    RequestMetric(
        "vllm:request_success",
        _SUCCESS,
        _one,
        counts=lambda requests: requests["outcome"] == TIMED_OUT,
        labels=(("finished_reason", "abort"),),
    ),
)
