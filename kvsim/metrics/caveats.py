"""What a reader must know before trusting a verdict: sentences, only where there is reason."""

import numpy as np

from kvsim.metrics import Figures, RunContext
from kvsim.metrics.catalog import percent
from kvsim.metrics.latency import FINISHED
from kvsim.metrics.throughput import AT_ONCE_NS
from kvsim.tables import Columns

# A queue that grows by less than this share of the arrivals, or by so few requests, is noise.
GROWTH_SHARE = 0.05
GROWTH_REQUESTS = 10
# A p95 of fewer requests than this is their slowest, or next to it.
FEW_REQUESTS = 20
# Requests preempted by more than this share are told.
MANY_PREEMPTED = 0.1
# With so many requests under way at the end, as a share of those that finished, rates are low.
MANY_UNDER_WAY = 0.25


def caveats(requests: Columns, figures: Figures, context: RunContext) -> list[str]:
    """Return what speaks against taking the figures of a run at face value, one sentence each."""
    found = (
        _few(figures["requests_measured"] or 0),
        _left_out(figures),
        _overload(requests, context),
        _short(requests, context),
        _preempted(requests),
    )
    return [sentence for sentence in found if sentence]


def _few(measured: float) -> str:
    """Tell of so few requests that their percentiles say little."""
    if not 0 < measured < FEW_REQUESTS:
        return ""
    if measured == 1:
        return "Only one request was measured: its latencies stand for no other."
    return f"Only {measured:,} requests were measured: high percentiles are in effect the slowest."


def _left_out(figures: Figures) -> str:
    """Tell of requests without an answer: the latencies are those of the others."""
    total, finished = figures["requests_total"] or 0, figures["requests_finished"]
    unfinished, timed_out = figures["requests_unfinished"], figures["requests_timed_out"]
    if not finished or not (unfinished or timed_out):
        return ""
    parts = []
    if unfinished:
        parts.append(f"{unfinished:,} were unfinished when the run was cut off")
    if timed_out:
        parts.append(f"the clients of {timed_out:,} gave up")
    return (
        f"Of {total:,} requests {' and '.join(parts)}: TPOT and E2E are of the {finished:,} that "
        "finished, which flatters them."
    )


def _overload(requests: Columns, context: RunContext) -> str:
    """Tell of a queue that was still growing when arrivals stopped, or the run was cut off."""
    if context.horizon_ns <= AT_ONCE_NS:
        return ""
    until_ns = min(context.horizon_ns, context.end_ns or context.horizon_ns)
    is_cut = context.end_ns == until_ns
    quarters = [until_ns * quarter // 4 for quarter in (2, 3, 4)]
    waiting = [_waiting_at(requests, at_ns) for at_ns in quarters]
    arrival_ns = requests["arrival_ns"]
    arrived = int(((arrival_ns > quarters[0]) & (arrival_ns <= until_ns)).sum())
    least = max(GROWTH_REQUESTS, GROWTH_SHARE * arrived)
    if waiting[2] - waiting[0] < least or not waiting[0] < waiting[1] < waiting[2]:
        return ""
    ended = "the run was cut off" if is_cut else "arrivals stopped"
    return (
        f"The queue was still growing when {ended}: {waiting[0]:,} requests waited halfway, "
        f"{waiting[2]:,} at the end. Latencies depend on how long the run is; in a longer one "
        "they are worse."
    )


def _short(requests: Columns, context: RunContext) -> str:
    """Tell if much of the work is in no rate, since its requests finish after the window."""
    if context.horizon_ns <= AT_ONCE_NS:
        return ""
    until_ns = min(context.horizon_ns, context.end_ns or context.horizon_ns)
    admitted_ns, finish_ns = requests["admitted_ns"], requests["finish_ns"]
    ran = (admitted_ns >= 0) & (admitted_ns <= until_ns)
    under_way = int(np.count_nonzero(ran & ((finish_ns < 0) | (finish_ns > until_ns))))
    finished = int(np.count_nonzero((requests["outcome"] == FINISHED) & (finish_ns <= until_ns)))
    if finished < FEW_REQUESTS or under_way < MANY_UNDER_WAY * finished:
        return ""
    return (
        f"The run is short: when it ended, {under_way:,} requests were being served for "
        f"{finished:,} that had finished. Throughput and cost per token count only the finished "
        "ones; a longer run shows better ones."
    )


def _waiting_at(requests: Columns, at_ns: int) -> int:
    """Count the requests that have arrived by an instant, are not yet admitted and not yet gone."""
    arrived = requests["arrival_ns"] <= at_ns
    left = requests["admitted_ns"], requests["finish_ns"]
    still = [(column < 0) | (column > at_ns) for column in left]
    return int(np.count_nonzero(arrived & still[0] & still[1]))


def _preempted(requests: Columns) -> str:
    """Tell if many of the requests that ran lost their KV cache."""
    ran = int(np.count_nonzero(requests["admitted_ns"] >= 0))
    hit = int(np.count_nonzero(requests["preemptions"]))
    if not ran or hit < MANY_PREEMPTED * ran:
        return ""
    who = "Every request that ran lost its"
    if hit < ran:
        who = f"{percent(hit / ran)} of the requests that ran lost their"
    again = int(requests["recomputed_tokens"].sum())
    repeated = f"; {again:,} tokens were computed again" if again else ""
    return f"{who} KV cache to others at least once{repeated}."
