"""How full the engine is: batch, KV cache, arithmetic and memory bandwidth, weighted by time."""

from kvsim.metrics import Figures, RunContext
from kvsim.metrics.definitions import KV_PARTS
from kvsim.metrics.step_sums import StepSums
from kvsim.tables import EVENT_KINDS, Columns
from kvsim.units import NS_PER_S

_SWAPPED_OUT = EVENT_KINDS.index("swapped_out")


def utilization_figures(
    requests: Columns, sums: StepSums, context: RunContext, window_ns: int
) -> Figures:
    """Return all figures of batch, KV cache and hardware.

    Means are over [0, window] and over replicas; a replica without a step holds and runs nothing.
    """
    return {
        **_step_figures(sums),
        **_batch_figures(sums, context, window_ns),
        **_kv_figures(sums, context, window_ns),
        **_hardware_figures(sums, context, window_ns),
        "preemptions_total": int(requests["preemptions"].sum()),
        "recomputed_tokens": int(requests["recomputed_tokens"].sum()),
    }


def swap_figures(events: Columns, sums: StepSums) -> Figures:
    """Return how much was swapped out to the host, and what the copies took of the steps."""
    out = events["event"] == _SWAPPED_OUT
    return {
        "swapped_tokens": int(events["tokens"][out].sum()),
        "swap_time_fraction": sums.swap_ns / sums.time_ns if sums.time_ns else None,
    }


def _step_figures(sums: StepSums) -> Figures:
    count = sums.steps
    return {
        "steps_total": count,
        "step_mean_s": sums.time_ns / count / NS_PER_S if count else None,
        "step_tokens_mean": sums.tokens / count if count else None,
    }


def _batch_figures(sums: StepSums, context: RunContext, window_ns: int) -> Figures:
    whole_ns = window_ns * context.replicas
    running = _mean(sums.area("running"), whole_ns)
    return {
        "busy_fraction": sums.window_ns / whole_ns if whole_ns else None,
        "running_seqs_mean": running,
        "running_seqs_max": sums.peak("running"),
        "waiting_seqs_mean": _mean(sums.area("waiting"), whole_ns),
        "waiting_seqs_max": sums.peak("waiting"),
        "batch_occupancy": None if running is None else running / context.max_num_seqs,
    }


def _kv_figures(sums: StepSums, context: RunContext, window_ns: int) -> Figures:
    capacity = context.kv_capacity_tokens
    busy = sums.window_ns * capacity
    figures: Figures = {
        "kv_capacity_tokens": capacity,
        "kv_capacity_bytes": capacity * context.kv_bytes_per_token,
        "kv_utilization_mean": _mean(sums.area("held"), window_ns * context.replicas * capacity),
        "kv_usage_mean": _mean(sums.area("owned"), busy),
        "kv_usage_max": sums.peak("owned") / capacity if busy else None,
    }
    for part in KV_PARTS:
        figures[f"kv_{part}_share_mean"] = _mean(sums.area(part), busy)
        figures[f"kv_{part}_share_max"] = sums.peak(part) / capacity if busy else None
    return figures


def _hardware_figures(sums: StepSums, context: RunContext, window_ns: int) -> Figures:
    whole_s = window_ns / NS_PER_S * context.replicas
    flop, hbm_bytes = map(float, sums.work)
    return {
        "mfu": _mean(flop, whole_s * context.peak_flop_per_s),
        "mbu": _mean(hbm_bytes, whole_s * context.peak_hbm_bytes_per_s),
    }


def _mean(area: float, whole: float) -> float | None:
    return area / whole if whole else None
