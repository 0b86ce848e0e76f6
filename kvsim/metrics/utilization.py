"""How full the engine is: batch, KV cache, arithmetic and memory bandwidth, weighted by time."""

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics import Figures, RunContext
from kvsim.metrics.definitions import KV_PARTS
from kvsim.tables import EVENT_KINDS, Columns
from kvsim.units import NS_PER_S

_SWAPPED_OUT = EVENT_KINDS.index("swapped_out")


def time_in_window_ns(steps: Columns, window_ns: int) -> NDArray[np.int64]:
    """Return how long each step lasts inside [0, window]; shape (steps,)."""
    start_ns = steps["start_ns"]
    end_ns = np.minimum(start_ns + steps["duration_ns"], window_ns)
    inside_ns: NDArray[np.int64] = np.maximum(end_ns - start_ns, 0)
    return inside_ns


def utilization_figures(
    requests: Columns, steps: Columns, context: RunContext, window_ns: int
) -> Figures:
    """Return all figures of batch, KV cache and hardware.

    Means are over [0, window] and over replicas; a replica without a step holds and runs nothing.
    """
    weights_ns = time_in_window_ns(steps, window_ns)
    return {
        **_step_figures(steps),
        **_batch_figures(steps, weights_ns, context, window_ns),
        **_kv_figures(steps, weights_ns, context, window_ns),
        **_hardware_figures(steps, weights_ns, context, window_ns),
        "preemptions_total": int(requests["preemptions"].sum()),
        "recomputed_tokens": int(requests["recomputed_tokens"].sum()),
    }


def swap_figures(steps: Columns, events: Columns) -> Figures:
    """Return how much was swapped out to the host, and what the copies took of the steps."""
    out = events["event"] == _SWAPPED_OUT
    busy_ns = int(steps["duration_ns"].sum())
    return {
        "swapped_tokens": int(events["tokens"][out].sum()),
        "swap_time_fraction": int(steps["swap_ns"].sum()) / busy_ns if busy_ns else None,
    }


def _step_figures(steps: Columns) -> Figures:
    count = len(steps["start_ns"])
    tokens = int(steps["prefill_tokens"].sum() + steps["decode_seqs"].sum())
    return {
        "steps_total": count,
        "step_mean_s": int(steps["duration_ns"].sum()) / count / NS_PER_S if count else None,
        "step_tokens_mean": tokens / count if count else None,
    }


def _batch_figures(
    steps: Columns, weights_ns: NDArray[np.int64], context: RunContext, window_ns: int
) -> Figures:
    whole_ns = window_ns * context.replicas
    running = _mean(steps["running_seqs"], weights_ns, whole_ns)
    return {
        "busy_fraction": int(weights_ns.sum()) / whole_ns if whole_ns else None,
        "running_seqs_mean": running,
        "running_seqs_max": _peak(steps["running_seqs"], weights_ns),
        "waiting_seqs_mean": _mean(steps["waiting_seqs"], weights_ns, whole_ns),
        "waiting_seqs_max": _peak(steps["waiting_seqs"], weights_ns),
        "batch_occupancy": None if running is None else running / context.max_num_seqs,
    }


def _kv_figures(
    steps: Columns, weights_ns: NDArray[np.int64], context: RunContext, window_ns: int
) -> Figures:
    capacity = context.kv_capacity_tokens
    busy = int(weights_ns.sum()) * capacity
    columns = {part: steps[f"kv_{part}_tokens"] for part in KV_PARTS}
    owned = columns["held"] + columns["to_come"] + columns["inside"]
    figures: Figures = {
        "kv_capacity_tokens": capacity,
        "kv_capacity_bytes": capacity * context.kv_bytes_per_token,
        "kv_utilization_mean": _mean(
            columns["held"], weights_ns, window_ns * context.replicas * capacity
        ),
        "kv_usage_mean": _mean(owned, weights_ns, busy),
        "kv_usage_max": _peak(owned, weights_ns) / capacity if busy else None,
    }
    shared = steps["shared_kv_tokens"]
    unshared = _mean(owned + shared, weights_ns, 1.0)
    figures["kv_saved_by_sharing"] = _mean(shared, weights_ns, unshared or 0.0)
    for part, column in columns.items():
        figures[f"kv_{part}_share_mean"] = _mean(column, weights_ns, busy)
        figures[f"kv_{part}_share_max"] = _peak(column, weights_ns) / capacity if busy else None
    return figures


def _hardware_figures(
    steps: Columns, weights_ns: NDArray[np.int64], context: RunContext, window_ns: int
) -> Figures:
    costs = context.step_costs
    if costs is None:
        return {"mfu": None, "mbu": None}
    inside = weights_ns / np.maximum(steps["duration_ns"], 1)
    whole_s = window_ns / NS_PER_S * context.replicas
    return {
        "mfu": _mean(costs.model_flop, inside, whole_s * costs.peak_flop_per_s),
        "mbu": _mean(costs.hbm_bytes, inside, whole_s * costs.peak_hbm_bytes_per_s),
    }


def _mean(
    values: NDArray[np.int64] | NDArray[np.float64],
    weights: NDArray[np.int64] | NDArray[np.float64],
    whole: float,
) -> float | None:
    # In floats: tokens times nanoseconds would leave 64 bits after some hours of a large pool.
    return float((values * weights.astype(np.float64)).sum() / whole) if whole else None


def _peak(values: NDArray[np.int64], weights_ns: NDArray[np.int64]) -> int:
    return int(values[weights_ns > 0].max(initial=0))
