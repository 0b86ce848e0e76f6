"""All figures of a run in one dictionary, and variants side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.metrics import Figures, RunContext, finite_or_none
from kvsim.metrics.bottleneck import limits, waiting_fraction
from kvsim.metrics.catalog import METRICS, format_range, metric_of
from kvsim.metrics.caveats import caveats
from kvsim.metrics.classes import class_summaries, overall
from kvsim.metrics.cut import cut_events
from kvsim.metrics.gaps import itl_statistics
from kvsim.metrics.latency import asked, latency_figures, request_statistics
from kvsim.metrics.phases import phases
from kvsim.metrics.slo import judge, judge_replications
from kvsim.metrics.step_sums import last_end_ns, sum_up
from kvsim.metrics.throughput import (
    failed_interval,
    request_figures,
    throughput_figures,
    window_ns,
)
from kvsim.metrics.uncertainty import across, as_dicts
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
    "kv_saved_by_sharing",
    "requests_rejected",
    "requests_timed_out",
    "retries_total",
    "unanswered_fraction",
    "failed_fraction",
)
OBSERVED = "ttft_mean_s"  # hangs on the queue, whose memory is longest
# Of these, those are left out that are zero, or unknown, in all variants.
_IF_ANY = {
    "swapped_tokens",
    "prefix_hit_fraction",
    "kv_saved_by_sharing",
    "requests_rejected",
    "requests_timed_out",
    "retries_total",
    "unanswered_fraction",
}


def summarize(requests: Columns, steps: Columns, events: Columns, context: RunContext) -> Summary:
    """Return the figures of one variant; plain Python values, ready for JSON: all finite.

    The dictionary has these parts:

    - `verdict`: `met` (True, False, or None if it can't be judged), `certain`, `sentence`, and
      `targets`, a list of {name, value, bound, margin, met, low, high, certain}, see
      `kvsim.metrics.slo.Target`;
    - `caveats`: what to know before trusting it, a list of sentences, see `kvsim.metrics.caveats`;
    - `classes`: verdict and figures of each class of traffic, see `class_summaries`;
    - `limits`: `sentence`, and the shares `waiting_share`, `bound_share`, `component_share` and
      `basis_share`, each a dictionary that sums to one, or is empty;
    - `phases`: where the time of the median request goes, and of the 95th percentile, see
      `kvsim.metrics.phases`;
    - `figures`: every metric of `METRICS` under its name; None where there is no such value;
    - `replications`: 1; `with_replications` makes it more;
    - `uncertainty`: {mean, low, high, count} of each figure of which it is known, see
      `kvsim.metrics.uncertainty`;
    - `differences`: to the base, {mean, low, high, count}; known from replications only.

    Raises:
        InputError: A target of the SLO is not understood.
    """
    if context.end_ns is not None:
        events = cut_events(events, context.end_ns)
    last_step_ns = last_end_ns(steps, context)
    window = window_ns(requests, last_step_ns, context)
    sums, gaps = sum_up(steps, context, window)
    itl = itl_statistics(steps, events, context, gaps, asked("itl", context.slo))
    of_requests, intervals = request_statistics(requests, context.warmup_ns, context.slo)
    intervals = {**intervals, **failed_interval(requests)}
    statistics = {**of_requests, "itl": itl}
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
        "verdict": overall(judge(context.slo, figures, statistics, intervals), classes),
        "caveats": caveats(requests, figures, context),
        "classes": classes,
        "limits": limits(requests, sums, events),
        "phases": phases(requests, steps, events, context),
        "figures": figures,
        "replications": 1,
        "uncertainty": as_dicts({name: intervals[name] for name in METRICS if name in intervals}),
        "differences": {},
    }


def with_replications(summaries: Mapping[str, Sequence[Summary]]) -> dict[str, Summary]:
    """Return one summary of each variant, the base first, from those of its replications.

    The verdict is on the means, `uncertainty` and `differences` are over the replications, and all
    else is of the first. The same replication of two variants faces the same draws, so that their
    difference is taken in each, and the interval is of its mean (common random numbers). Where
    replications are all alike, nothing is drawn by chance: the uncertainty stays that of one run.
    """
    base = next(iter(summaries))
    if not any(_differ(those) for those in summaries.values()):
        return {name: those[0] for name, those in summaries.items()}
    return {
        name: _over(those, [] if name == base else summaries[base])
        for name, those in summaries.items()
    }


def _differ(summaries: Sequence[Summary]) -> bool:
    return any(summary["figures"] != summaries[0]["figures"] for summary in summaries)


def _over(summaries: Sequence[Summary], base: Sequence[Summary]) -> Summary:
    """Return the summary of a variant over its replications, beside those of the base."""
    first = summaries[0]
    classes = {
        name: part
        | {"verdict": _judged([summary["classes"][name] for summary in summaries], part["figures"])}
        for name, part in first["classes"].items()
    }
    uncertainty = {
        name: across([summary["figures"][name] for summary in summaries]) for name in METRICS
    }
    differences = {
        name: across([_difference(name, *two) for two in zip(summaries, base, strict=True)], True)
        for name in COMPARED
        if base
    }
    return {
        **first,
        "verdict": overall(_judged(summaries, first["figures"]), classes),
        "classes": classes,
        "replications": len(summaries),
        "uncertainty": as_dicts({k: found for k, found in uncertainty.items() if found}),
        "differences": as_dicts({k: found for k, found in differences.items() if found}),
    }


def _judged(parts: Sequence[Mapping[str, Any]], figures: Figures) -> dict[str, Any]:
    return judge_replications([part["verdict"] for part in parts], figures)


def _difference(name: str, mine: Summary, base: Summary) -> float | None:
    value, other = mine["figures"][name], base["figures"][name]
    return None if value is None or other is None else value - other


def estimate(summary: Summary, name: str) -> float | None:
    """Return the best estimate of a figure: its mean over replications, if there are several."""
    if summary["replications"] == 1:
        value: float | None = summary["figures"][name]
        return value
    found = summary["uncertainty"].get(name)
    return found and float(found["mean"])


def certainty(summary: Summary) -> str:
    """Say on how many independent observations the figures of a summary rest."""
    if summary["replications"] > 1:
        count = summary["replications"]
        return f"Figures are means over {count} replications, with 95 % intervals by Student's t."
    found = summary["uncertainty"].get(OBSERVED)
    if found is None:
        return "So few requests don't tell how sure the figures are."
    interval = format_range(OBSERVED, found["low"], found["high"])
    return (
        f"{metric_of(OBSERVED).label} lies within {interval} (95 %); the "
        f"{summary['figures']['requests_measured']:,} requests tell as much as about "
        f"{found['count']:,} independent ones."
    )


def compare(summaries: Mapping[str, Summary]) -> list[dict[str, Any]]:
    """Set variants side by side: one row a metric of `COMPARED`, the first variant is the base.

    Counts of what never happened in any variant have no row.

    A row has `name`, `label`, `unit`, `better`, `values` by variant, and `ratios` by variant to
    the base (None if either has no value, or the base's is zero).
    """
    rows = []
    for name in COMPARED:
        metric = METRICS[name]
        values = {variant: estimate(summary, name) for variant, summary in summaries.items()}
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
