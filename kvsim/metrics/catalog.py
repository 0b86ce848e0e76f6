"""The one catalog of metrics: feeds the summary, the documentation, table headers and hovers."""

import re

from kvsim.metrics.definitions import (
    BATCH,
    KV,
    PHASES,
    REQUESTS,
    SHARES,
    THROUGHPUT,
    WAITING,
    Metric,
)
from kvsim.units import format_bytes, format_duration

# Latencies of a request (ITL: of a gap between two tokens) and the statistics shown of each.
LATENCIES = ("ttft", "tpot", "itl", "e2e", "normalized", "queue")
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")

_LATENCY_TEXTS = {
    "ttft": (
        "TTFT",
        "first_token − arrival",
        "Time to first token, of all requests that got one",
    ),
    "tpot": (
        "TPOT",
        "(finish − first_token) / (output_tokens − 1)",
        "Time per output token after the first: a request's own mean, of finished requests; "
        "an answer of one token has none",
    ),
    "itl": (
        "ITL",
        "the gaps: n of d for a step of duration d with n decoding sequences, "
        "and one longer gap around each preemption",
        "Inter-token latency: one gap between two tokens of a sequence, of all sequences together",
    ),
    "e2e": ("E2E", "finish − arrival", "End-to-end latency of finished requests"),
    "normalized": (
        "Normalized latency",
        "(finish − arrival) / output_tokens",
        "E2E over the answer's length: seconds for each of its tokens, waiting included; of "
        "finished requests",
    ),
    "queue": (
        "Queue time",
        "admitted − queued",
        "Time until the request is first scheduled, of all that were",
    ),
}

LARGEST_IN_FULL = 1e15  # larger numbers are shown as powers of ten
TINY_SHARE = 1e-5  # smaller ones are shown as `<0.001 %`

_STATISTIC_TEXTS = {"mean": "mean", "max": "largest value"}

_LATENCY_NAME = re.compile(
    rf"(?P<latency>{'|'.join(LATENCIES)})_(?P<statistic>mean|max|p(\d{{1,2}}(\.\d+)?|100))_s"
)


def latency_and_statistic(name: str) -> tuple[str, str] | None:
    """Split the name of a latency figure, `ttft_p99_s` → (`ttft`, `p99`); None for other names.

    Any percentile from p0 to p100 is understood, also with decimals (`ttft_p99.9_s`).
    """
    match = _LATENCY_NAME.fullmatch(name)
    return (match["latency"], match["statistic"]) if match else None


def latency_metric(latency: str, statistic: str) -> Metric:
    """Describe one statistic of a latency, for any percentile."""
    label, formula, description = _LATENCY_TEXTS[latency]
    of = _STATISTIC_TEXTS.get(statistic) or f"percentile {statistic[1:]} (linear, as numpy's)"
    left_out = "steps that start" if latency == "itl" else "requests that arrive"
    return Metric(
        name=f"{latency}_{statistic}_s",
        label=f"{label} {statistic}",
        unit="s",
        better="lower",
        formula=f"{of} of {formula}",
        description=f"{description}; {left_out} during the warm-up are left out",
    )


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *REQUESTS,
        *THROUGHPUT,
        *(latency_metric(latency, stat) for latency in LATENCIES for stat in STATISTICS),
        *KV,
        *BATCH,
        *WAITING,
    )
}

# The summary's `phases`: seconds of a request.
PHASE_METRICS: dict[str, Metric] = {metric.name: metric for metric in PHASES}

# The summary's `limits`: dictionaries of shares.
SHARE_METRICS: dict[str, Metric] = {metric.name: metric for metric in SHARES}


def metric_of(name: str) -> Metric:
    """Return the entry of a figure, also of a percentile that the summary doesn't list.

    Raises:
        KeyError: There is no such metric.
    """
    parts = latency_and_statistic(name)
    return latency_metric(*parts) if parts else METRICS[name]


def format_number(value: float) -> str:
    """Show a number with three significant digits, all those before the point: `12,346`.

    From 10¹⁵ on powers of ten are easier to read.
    """
    if abs(value) < LARGEST_IN_FULL and (isinstance(value, int) or abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """Show a share: 0.974 → `97.4 %`; of tiny ones only that there is something."""
    if 0 < share < TINY_SHARE:
        return f"<{format_number(100.0 * TINY_SHARE)} %"
    return f"{format_number(100.0 * share)} %"


def format_figure(name: str, value: float | None) -> str:
    """Show a figure with its unit, `–` if there is none."""
    unit = metric_of(name).unit
    if value is None:
        return "–"
    if unit == "s":
        return format_duration(value)
    if unit == "fraction":
        return percent(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit in {"USD", "USD/h"}:
        amount = f"{value:,.2f}" if value < LARGEST_IN_FULL else format_number(value)
        return f"${amount}" + unit.removeprefix("USD")
    return format_number(value) + ("" if unit == "count" else f" {unit}")


def format_range(name: str, low: float | None, high: float | None) -> str:
    """Show an interval of a figure: `310 to 351 ms`, `310 ms or more`; nothing without bounds."""
    if low is None and high is None:
        return ""
    least, most = format_figure(name, low), format_figure(name, high)
    if high is None:
        return f"{least} or more"
    if low is None:
        return f"at most {most}"
    if least == most:
        return most
    number, _, unit = least.rpartition(" ")
    return f"{number if number and most.endswith(f' {unit}') else least} to {most}"
