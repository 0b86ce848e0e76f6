"""The definitions of all figures but the latencies: a table, one entry a metric."""

from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher"]

# Where the slots of the KV cache are; the shares of a step sum to one.
KV_PARTS = ("held", "to_come", "inside", "rounding", "holes", "reusable", "free")


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of the summary: what it is called, how it is computed, which way is better."""

    name: str
    label: str
    unit: str
    better: Better | None
    formula: str
    description: str


REQUESTS = (
    Metric(
        "requests_total",
        "Requests",
        "requests",
        None,
        "rows",
        "All requests that arrived, retries included",
    ),
    Metric(
        "requests_measured",
        "Requests measured",
        "requests",
        None,
        "rows with arrival ≥ warm-up",
        "Requests whose latencies count",
    ),
    Metric(
        "requests_finished",
        "Finished",
        "requests",
        "higher",
        "outcome = finished",
        "Requests answered in full, also after the horizon while the run drains",
    ),
    Metric(
        "requests_rejected",
        "Rejected",
        "requests",
        "lower",
        "outcome = rejected",
        "Requests refused because they could never be served",
    ),
    Metric(
        "requests_unfinished",
        "Unfinished",
        "requests",
        "lower",
        "outcome = unfinished",
        "Requests not answered in full when the run was cut off",
    ),
    Metric(
        "requests_timed_out",
        "Timed out",
        "requests",
        "lower",
        "outcome = timed_out",
        "Requests whose client gave up",
    ),
    Metric(
        "failed_fraction",
        "Failed fraction",
        "fraction",
        "lower",
        "(rejected + timed out + unfinished) / all requests",
        "Requests without a full answer, each attempt counted; `max_failed_fraction` bounds it",
    ),
    Metric(
        "retries_total",
        "Retries",
        "requests",
        "lower",
        "rows with attempt > 0",
        "Requests that a client sent again after it had given up",
    ),
    Metric(
        "unanswered_fraction",
        "Unanswered fraction",
        "fraction",
        "lower",
        "groups without an attempt whose samples all finished / groups",
        "What clients wanted and never got, after all their retries",
    ),
    Metric(
        "prefix_hit_fraction",
        "Prefix cache hits",
        "fraction",
        "higher",
        "sum of cached_tokens / sum of prompt_tokens of the requests with admitted ≥ 0",
        "Share of the prompt tokens of all admitted requests that the prefix cache held",
    ),
)

THROUGHPUT = (
    Metric(
        "window_s",
        "Window",
        "s",
        None,
        "horizon; the end of the run if all requests arrive within 1 µs",
        "Time over which throughput and utilization are taken: arrivals stop at its end, "
        "the run then drains",
    ),
    Metric(
        "makespan_s",
        "Makespan",
        "s",
        "lower",
        "end of the last step or the last finish, whichever is later; at most max_simulated_s",
        "Time until the run has drained",
    ),
    Metric(
        "offered_requests_per_s",
        "Offered load",
        "requests/s",
        None,
        "requests with arrival ≤ window / window",
        "Arrivals, retries included, for each second of the window",
    ),
    Metric(
        "requests_per_s",
        "Throughput",
        "requests/s",
        "higher",
        "requests finished inside the window / window",
        "Requests completed",
    ),
    Metric(
        "output_tokens_per_s",
        "Output throughput",
        "tokens/s",
        "higher",
        "sum of output_tokens of requests finished inside the window / window",
        "Generated tokens of completed requests",
    ),
    Metric(
        "total_tokens_per_s",
        "Total throughput",
        "tokens/s",
        "higher",
        "sum of prompt_tokens + output_tokens of requests finished inside the window / window",
        "Prompt and generated tokens of completed requests",
    ),
    Metric(
        "goodput_requests_per_s",
        "Goodput",
        "requests/s",
        "higher",
        "requests finished inside the window that meet every per-request bound / window",
        "Completed requests that meet the SLO. A request's bound on TTFT, TPOT, E2E or queue time "
        "is that of the highest percentile the SLO names; means and ITL bind no single request",
    ),
    Metric(
        "slo_attainment_fraction",
        "SLO attainment",
        "fraction",
        "higher",
        "finished requests that meet every per-request bound / all requests",
        "Requests that meet the SLO; rejected, timed-out and unfinished ones miss it",
    ),
    Metric(
        "usd_per_hour",
        "Cost per hour",
        "USD/h",
        "lower",
        "price of a GPU-hour · GPUs",
        "What the deployment costs; unknown without a price",
    ),
    Metric(
        "usd_per_million_output_tokens",
        "Cost per million output tokens",
        "USD",
        "lower",
        "usd_per_hour / 3600 / output_tokens_per_s · 10⁶",
        "What a million generated tokens cost at this load",
    ),
)

BATCH = (
    Metric(
        "busy_fraction",
        "Busy",
        "fraction",
        None,
        "time in steps / (window · replicas)",
        "Share of the window in which the engine runs a step",
    ),
    Metric("steps_total", "Steps", "steps", None, "rows", "Engine iterations, draining included"),
    Metric(
        "step_mean_s", "Step time mean", "s", "lower", "mean duration", "Duration of an iteration"
    ),
    Metric(
        "step_tokens_mean",
        "Tokens per step",
        "tokens",
        None,
        "mean of prefill_tokens + decode_seqs",
        "Tokens computed in an iteration",
    ),
    Metric(
        "running_seqs_mean",
        "Running mean",
        "seqs",
        None,
        "∫ running_seqs dt / (window · replicas)",
        "Concurrency: sequences admitted on one replica, averaged over time and replicas; "
        "idle time counts as zero",
    ),
    Metric(
        "running_seqs_max",
        "Running max",
        "seqs",
        None,
        "max running_seqs in the window",
        "Most sequences admitted at once on one replica",
    ),
    Metric(
        "waiting_seqs_mean",
        "Waiting mean",
        "seqs",
        "lower",
        "∫ waiting_seqs dt / (window · replicas)",
        "Requests waiting on one replica, averaged over time and replicas; a shared queue is seen "
        "by each",
    ),
    Metric(
        "waiting_seqs_max",
        "Waiting max",
        "seqs",
        "lower",
        "max waiting_seqs in the window",
        "Longest queue of one replica",
    ),
    Metric(
        "batch_occupancy",
        "Batch occupancy",
        "fraction",
        None,
        "running_seqs_mean / max_num_seqs",
        "Share of the sequence slots in use, averaged over time",
    ),
    Metric(
        "mfu",
        "MFU",
        "fraction",
        "higher",
        "model FLOPs in the window / (window · replicas · peak FLOP/s)",
        "Model FLOPs utilization of a GPU; unknown without a peak",
    ),
    Metric(
        "mbu",
        "MBU",
        "fraction",
        "higher",
        "HBM bytes in the window / (window · replicas · peak HBM bytes/s)",
        "Model bandwidth utilization of a GPU: weights and KV read and written",
    ),
    Metric(
        "preemptions_total",
        "Preemptions",
        "count",
        "lower",
        "sum of preemptions",
        "How often a sequence lost its KV cache, to be computed again or swapped in",
    ),
    Metric(
        "recomputed_tokens",
        "Recomputed tokens",
        "tokens",
        "lower",
        "sum of recomputed_tokens",
        "Tokens computed again after preemptions",
    ),
    Metric(
        "swapped_tokens",
        "Swapped tokens",
        "tokens",
        "lower",
        "sum of tokens of swapped_out events",
        "Tokens whose KV cache was copied to the host; each comes back unless its client gives up",
    ),
    Metric(
        "swap_time_fraction",
        "Time of swapping",
        "fraction",
        "lower",
        "sum of swap_ns / sum of duration_ns",
        "Share of the step time in which swapped blocks are copied",
    ),
)

_KV_TEXTS: dict[str, tuple[str, Better | None, str]] = {
    "held": ("KV holding tokens", "higher", "slots that hold tokens"),
    "to_come": ("KV reserved for later", "lower", "slots taken for tokens that will still come"),
    "inside": ("KV wasted inside", "lower", "slots taken that no token will ever fill"),
    "rounding": ("KV lost to rounding", "lower", "slots lost to rounding chunks up"),
    "holes": ("KV in holes", "lower", "free slots in holes too small to be used"),
    "reusable": ("KV reusable", None, "free slots that hold prefixes which can be found"),
    "free": ("KV free", None, "other free slots that can be used"),
}


def _kv_share(part: str, statistic: str) -> Metric:
    label, better, what = _KV_TEXTS[part]
    over = "time-weighted mean" if statistic == "mean" else "largest value"
    return Metric(
        name=f"kv_{part}_share_{statistic}",
        label=f"{label} {statistic}",
        unit="fraction",
        better=better,
        formula=f"{over} of kv_{part}_tokens / capacity over the steps in the window",
        description=f"Share of the KV cache while the engine is busy: {what}",
    )


KV = (
    Metric(
        "kv_capacity_tokens",
        "KV capacity",
        "tokens",
        None,
        "KV slots of one replica",
        "Tokens whose keys and values fit the KV cache of one replica; where layers have sliding "
        "windows, a token takes one slot in each KV group",
    ),
    Metric(
        "kv_capacity_bytes",
        "KV capacity per GPU",
        "bytes",
        None,
        "kv_capacity_tokens · KV bytes per token on one GPU",
        "Memory of the KV cache on one GPU",
    ),
    Metric(
        "kv_utilization_mean",
        "KV utilization mean",
        "fraction",
        None,
        "∫ kv_held_tokens dt / (window · replicas · capacity)",
        "Share of the KV slots that hold tokens, averaged over time; idle time counts as zero",
    ),
    Metric(
        "kv_usage_mean",
        "KV usage mean",
        "fraction",
        None,
        "time-weighted mean of (held + to come + inside) / capacity over the steps in the window",
        "Share of the KV slots that sequences own while the engine is busy, whether they hold "
        "tokens or not: what vLLM logs as GPU KV cache usage",
    ),
    Metric(
        "kv_usage_max",
        "KV usage max",
        "fraction",
        None,
        "largest value of (held + to come + inside) / capacity over the steps in the window",
        "Largest share of the KV slots of one replica that sequences owned",
    ),
    *(_kv_share(part, statistic) for part in KV_PARTS for statistic in ("mean", "max")),
    Metric(
        "kv_saved_by_sharing",
        "KV saved by sharing",
        "fraction",
        "higher",
        "∫ shared_kv_tokens dt / ∫ (held + to come + inside + shared) dt over the steps in the "
        "window",
        "(blocks without sharing − blocks with it) / blocks without it, both averaged over time: "
        "how much less sequences own because samples, beams, and prompts that begin alike share "
        "blocks",
    ),
)

WAITING = (
    Metric(
        "waiting_fraction",
        "Time with a queue",
        "fraction",
        "lower",
        "time in steps with waiting_seqs > 0 / time in steps",
        "Share of the busy time in which requests wait, draining included",
    ),
)

# Shares by name of a cause, a bound, a component or a basis: dictionaries that sum to one.
SHARES = (
    Metric(
        "waiting_share",
        "What the head of the queue lacks",
        "fraction",
        None,
        "time in steps with waiting_seqs > 0 and this head_lacks / "
        "time in steps with waiting_seqs > 0",
        "Over the time in which requests wait, what the head of the queue lacks",
    ),
    Metric(
        "bound_share",
        "What bounds the steps",
        "fraction",
        None,
        "time of the parts with this bound / time in steps",
        "Over the busy time, what limits the speed: HBM, compute, communication, the host; "
        "unknown with an affine law",
    ),
    Metric(
        "component_share",
        "Where step time goes",
        "fraction",
        None,
        "time of the parts of this component / time in steps",
        "Over the busy time, what is computed",
    ),
    Metric(
        "basis_share",
        "What the prediction rests on",
        "fraction",
        None,
        "time of the parts with this basis / time in steps",
        "Over the busy time, whether the price is measured, interpolated or only physical",
    ),
)

# Of the median request by E2E latency, and of the 95th percentile: see `kvsim.metrics.phases`.
_PHASE_TEXTS = {
    "front_end": ("Front end", "queued − arrival", "In the API server, before the engine's queue"),
    "queue": ("Queue", "admitted − queued", "Waiting until it is first scheduled"),
    "prefill": (
        "Prefill",
        "first_token − admitted; until it is preempted before that",
        "Its prompt is computed, chunks of others beside it",
    ),
    "decode": (
        "Decode",
        "finish − first_token − stalled − preempted after the first token",
        "Its tokens are computed; without costs, stalls are in it",
    ),
    "stalled": (
        "Stalled by prefills of others",
        "over the steps with prefill chunks in which it decodes or is paused: duration − swap − "
        "price of the step without the chunks, at least 0",
        "How much longer its steps last because prompts of others are computed in them",
    ),
    "preempted": (
        "Preempted",
        "sum of gap_ns of its resumed and swapped_in events; first_token − time of its first loss "
        "before that",
        "Waiting after it lost its KV cache, and computing again (or copying back) what it lost",
    ),
}
PHASES = tuple(
    Metric(f"{name}_s", label, "s", "lower", formula, description)
    for name, (label, formula, description) in _PHASE_TEXTS.items()
)
