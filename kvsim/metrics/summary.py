"""All figures of a run in one dictionary, and variants side by side."""

from collections.abc import Mapping
from typing import Any

from kvsim.metrics import RunContext, finite_or_none
from kvsim.metrics.bottleneck import limits, waiting_fraction
from kvsim.metrics.catalog import METRICS
from kvsim.metrics.classes import class_summaries, overall
from kvsim.metrics.cut import cut_events
from kvsim.metrics.gaps import itl_statistics
from kvsim.metrics.latency import asked, latency_figures, request_statistics
from kvsim.metrics.slo import judge
from kvsim.metrics.step_sums import last_end_ns, sum_up
from kvsim.metrics.throughput import (
    request_figures,
    throughput_figures,
    window_ns,
)
from kvsim.metrics.utilization import swap_figures, utilization_figures
from kvsim.tables import Columns

Summary = dict[str, Any]

# What tells two KV-cache layouts apart, in the order in which it is shown.
COMPARED = (
    "kv_utilization_mean",
    "kv_usage_mean",
    "running_seqs_mean",
    "running_seqs_max",
    "requests_per_s",
    "output_tokens_per_s",
    "goodput_requests_per_s",
    "waiting_seqs_mean",
    "queue_p50_s",
    "queue_p99_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p99_s",
    "e2e_p50_s",
    "e2e_p99_s",
    "preemptions_total",
    "swapped_tokens",
    "prefix_hit_fraction",
    "requests_rejected",
    "requests_timed_out",
    "retries_total",
    "unanswered_fraction",
    "failed_fraction",
)
# Of these, those are left out that are zero, or unknown, in all variants.
_IF_ANY = {
    "swapped_tokens",
    "prefix_hit_fraction",
    "requests_rejected",
    "requests_timed_out",
    "retries_total",
    "unanswered_fraction",
}


def summarize(requests: Columns, steps: Columns, events: Columns, context: RunContext) -> Summary:
    """Return the figures of one variant; plain Python values, ready for JSON: all finite.

    The dictionary has four parts:

    - `verdict`: `met` (True, False, or None if it can't be judged), `sentence`, and
      `targets`, a list of {name, value, bound, margin, met}, see `kvsim.metrics.slo.Target`;
    - `classes`: verdict and figures of each class of traffic, see `class_summaries`;
    - `limits`: `sentence`, and the shares `waiting_share`, `bound_share`, `component_share` and
      `basis_share`, each a dictionary that sums to one, or is empty;
    - `figures`: every metric of `METRICS` under its name; None where there is no such value.

    Raises:
        InputError: A target of the SLO is not understood.
    """
    if context.end_ns is not None:
        events = cut_events(events, context.end_ns)
    last_step_ns = last_end_ns(steps, context)
    window = window_ns(requests, last_step_ns, context)
    sums, gaps = sum_up(steps, context, window)
    itl = itl_statistics(steps, events, context, gaps, asked("itl", context.slo))
    statistics = request_statistics(requests, context.warmup_ns, context.slo) | {"itl": itl}
    found = {
        **request_figures(requests, context.warmup_ns),
        **throughput_figures(requests, last_step_ns, context),
        **latency_figures(statistics),
        **utilization_figures(requests, sums, context, window),
        **swap_figures(events, sums),
        "waiting_fraction": waiting_fraction(sums),
    }
    figures = {name: finite_or_none(found[name]) for name in METRICS}
    classes = class_summaries(requests, last_step_ns, context)
    return {
        "verdict": overall(judge(context.slo, figures, statistics), classes),
        "classes": classes,
        "limits": limits(requests, sums, events),
        "figures": figures,
    }


def compare(summaries: Mapping[str, Summary]) -> list[dict[str, Any]]:
    """Set variants side by side: one row a metric of `COMPARED`, the first variant is the base.

    Counts of what never happened in any variant have no row.

    A row has `name`, `label`, `unit`, `better`, `values` by variant, and `ratios` by variant to
    the base (None if either has no value, or the base's is zero).
    """
    rows = []
    for name in COMPARED:
        metric = METRICS[name]
        values = {variant: summary["figures"][name] for variant, summary in summaries.items()}
        if name in _IF_ANY and not any(values.values()):
            continue
        base = next(iter(values.values()), None)
        ratios = {
            variant: value / base if base and value is not None else None
            for variant, value in values.items()
        }
        about = {"name": name, "label": metric.label, "unit": metric.unit, "better": metric.better}
        rows.append({**about, "values": values, "ratios": ratios})
    return rows
