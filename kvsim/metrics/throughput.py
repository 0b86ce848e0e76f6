"""What became of the requests, how many were served in the window, and what that costs."""

import numpy as np

from kvsim.metrics import Figures, RunContext
from kvsim.metrics.latency import FINISHED, by_arrival
from kvsim.metrics.slo import meets_bounds
from kvsim.metrics.uncertainty import share_interval
from kvsim.statistics import Interval
from kvsim.tables import OUTCOMES, Columns
from kvsim.units import NS_PER_S, NS_PER_US

# Requests that all arrive within so long arrive at once: a rate over it would say nothing.
AT_ONCE_NS = NS_PER_US


def makespan_ns(requests: Columns, last_step_ns: int) -> int:
    """Return when the run has drained: the end of the last step or the last finish."""
    return max(last_step_ns, int(requests["finish_ns"].max(initial=0)))


def window_ns(requests: Columns, last_step_ns: int, context: RunContext) -> int:
    """Return the time over which throughput and utilization are taken, from 0.

    It is the horizon, at which arrivals stop. Where all requests arrive at once there is none, and
    the window is the whole run.
    """
    if context.horizon_ns > AT_ONCE_NS:
        return context.horizon_ns
    return makespan_ns(requests, last_step_ns)


def request_figures(requests: Columns, warmup_ns: int) -> Figures:
    """Count the requests by what became of them, and their tokens found in the prefix cache."""
    total = len(requests["outcome"])
    counts = np.bincount(requests["outcome"], minlength=len(OUTCOMES)).tolist()
    figures: Figures = {
        "requests_total": total,
        "retries_total": int((requests["attempt"] > 0).sum()),
        "unanswered_fraction": _unanswered_fraction(requests),
        "requests_measured": int((requests["arrival_ns"] >= warmup_ns).sum()),
        "failed_fraction": (total - counts[FINISHED]) / total if total else None,
    }
    admitted = requests["admitted_ns"] >= 0
    prompt_tokens = int(requests["prompt_tokens"][admitted].sum())
    cached_tokens = int(requests["cached_tokens"][admitted].sum())
    figures["prefix_hit_fraction"] = cached_tokens / prompt_tokens if prompt_tokens else None
    return figures | {f"requests_{name}": counts[code] for code, name in enumerate(OUTCOMES)}


def failed_interval(requests: Columns) -> dict[str, Interval]:
    """Return the interval of `failed_fraction` under its name; nothing if it isn't known."""
    interval = share_interval(requests["outcome"][by_arrival(requests)] != FINISHED)
    return {} if interval is None else {"failed_fraction": interval}


def _unanswered_fraction(requests: Columns) -> float | None:
    """Return the share of the clients' requests of which no attempt was answered in full."""
    group, attempt = requests["group"], requests["attempt"]  # clients count from 0, without gaps
    if not len(group):
        return None
    places = int(group.max()) + 1, int(attempt.max()) + 1
    key = group * places[1] + attempt  # one attempt of one client, with its samples
    count = places[0] * places[1]
    sent = (np.bincount(key, minlength=count) > 0).reshape(places)
    failed = np.bincount(key[requests["outcome"] != FINISHED], minlength=count) > 0
    answered = (sent & ~failed.reshape(places)).any(axis=1)
    return 1 - int(answered.sum()) / int(sent.any(axis=1).sum())


def throughput_figures(requests: Columns, last_step_ns: int, context: RunContext) -> Figures:
    """Return rates over the window: what completed inside it, goodput and cost."""
    until_ns = window_ns(requests, last_step_ns, context)
    window_s = until_ns / NS_PER_S
    inside = (requests["outcome"] == FINISHED) & (requests["finish_ns"] <= until_ns)
    output_tokens = int(requests["output_tokens"][inside].sum())
    prompt_tokens = int(requests["prompt_tokens"][inside].sum())

    def per_s(amount: int) -> float | None:
        return amount / window_s if window_s else None

    figures: Figures = {
        "window_s": window_s,
        "makespan_s": makespan_ns(requests, last_step_ns) / NS_PER_S,
        "offered_requests_per_s": per_s(int((requests["arrival_ns"] <= until_ns).sum())),
        "requests_per_s": per_s(int(inside.sum())),
        "output_tokens_per_s": per_s(output_tokens),
        "total_tokens_per_s": per_s(prompt_tokens + output_tokens),
        "goodput_requests_per_s": None,
        "slo_attainment_fraction": None,
    }
    if context.slo:
        good = meets_bounds(requests, context.slo)
        figures["goodput_requests_per_s"] = per_s(int((good & inside).sum()))
        figures["slo_attainment_fraction"] = float(good.mean()) if len(good) else None
    return figures | _cost_figures(context, figures["output_tokens_per_s"])


def _cost_figures(context: RunContext, output_tokens_per_s: float | None) -> Figures:
    price = context.price_usd_per_gpu_hour
    usd_per_hour = None if price is None else price * context.num_gpus
    per_million = (
        usd_per_hour / 3600 / output_tokens_per_s * 1e6
        if usd_per_hour is not None and output_tokens_per_s
        else None
    )
    return {"usd_per_hour": usd_per_hour, "usd_per_million_output_tokens": per_million}
