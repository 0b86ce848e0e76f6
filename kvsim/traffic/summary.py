"""A log in figures, and in one sentence."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.arrivals import ArrivalFigures, arrival_figures, burstiness
from kvsim.metrics.catalog import format_number, percent
from kvsim.traffic.lengths import LengthFigures, length_figures, rank_correlation
from kvsim.traffic.reuse import HitCurve, hit_curve
from kvsim.traffic.sessions import SessionFigures, session_figures, turns_and_gaps
from kvsim.units import NS_PER_S, format_duration
from kvsim.workload.traces import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """What a log says; a part is None where it says nothing about it.

    Attributes:
        log: The client's requests: of several samples of one, only the first.
        end_ns: End of the log; 0 if all requests came at once.
        samples: Answers per request, on average.
    """

    log: Trace
    end_ns: int
    samples: float
    arrivals: ArrivalFigures | None
    prompt: LengthFigures
    output: LengthFigures
    rank_correlation: float | None
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    sessions: SessionFigures | None
    reuse: HitCurve | None


def analyze(trace: Trace) -> Traffic:
    """Describe a log of at least one request."""
    log = trace
    if trace.group is not None:
        log = trace.take(np.unique(trace.group, return_index=True)[1])
    end_ns = max(log.horizon_ns or 0, int(log.arrival_ns[-1]) + 1) if log.arrival_ns[-1] else 0
    conversations = turns_and_gaps(log)
    return Traffic(
        log=log,
        end_ns=end_ns,
        samples=len(trace) / len(log),
        arrivals=arrival_figures(log.arrival_ns, end_ns) if end_ns else None,
        prompt=length_figures(log.prompt_tokens),
        output=length_figures(trace.output_tokens),
        rank_correlation=rank_correlation(log.prompt_tokens, log.output_tokens),
        prompt_tokens_per_s=_per_s(log.prompt_tokens, end_ns),
        output_tokens_per_s=_per_s(trace.output_tokens, end_ns),
        sessions=session_figures(*conversations) if conversations else None,
        reuse=hit_curve(log),
    )


def _per_s(tokens: NDArray[np.int64], end_ns: int) -> float | None:
    return float(tokens.sum()) * NS_PER_S / end_ns if end_ns else None


def as_dict(traffic: Traffic) -> dict[str, Any]:
    """Return the figures for machines; the curve at cache sizes that double."""
    reuse = traffic.reuse
    return {
        "samples": traffic.samples,
        "requests": len(traffic.log),
        "arrivals": asdict(traffic.arrivals) if traffic.arrivals else None,
        "prompt": asdict(traffic.prompt),
        "output": asdict(traffic.output),
        "rank_correlation": traffic.rank_correlation,
        "prompt_tokens_per_s": traffic.prompt_tokens_per_s,
        "output_tokens_per_s": traffic.output_tokens_per_s,
        "sessions": asdict(traffic.sessions) if traffic.sessions else None,
        "prefix_reuse": None if reuse is None else _reuse_dict(reuse),
    }


def _reuse_dict(reuse: HitCurve) -> dict[str, Any]:
    sizes = reuse.block_tokens * 2 ** np.arange(64 - 8)
    sizes = sizes[: int(np.searchsorted(sizes, reuse.enough_tokens)) + 1]
    return {
        "block_tokens": reuse.block_tokens,
        "unbounded_hit_rate": reuse.unbounded,
        "distinct_tokens": reuse.distinct_blocks * reuse.block_tokens,
        "enough_cache_tokens": reuse.enough_tokens,
        "cache_tokens": sizes.tolist(),
        "hit_rate": reuse.hit_rates(sizes).tolist(),
    }


def sentence(traffic: Traffic) -> str:
    """Say in one sentence what a planner must know of a log."""
    parts = [
        *_arrival_words(traffic),
        f"prompts of {_counted(traffic.prompt.p50_tokens, 'token')} (median) and answers of "
        f"{format_number(traffic.output.p50_tokens)}",
        reuse_words(traffic),
    ]
    return "; ".join(parts) + "."


def _arrival_words(traffic: Traffic) -> list[str]:
    arrivals = traffic.arrivals
    if arrivals is None:
        together = " at one instant" if len(traffic.log) > 1 else ""
        return [_counted(len(traffic.log), "request") + together]
    return [
        f"{_counted(arrivals.requests, 'request')} over {format_duration(arrivals.duration_s)}",
        f"{format_number(arrivals.rate_per_s)}/s on average{_peak(arrivals)}, "
        f"{burstiness(arrivals)}",
    ]


def _counted(count: float, thing: str) -> str:
    return f"{format_number(count)} {thing}{'' if count == 1 else 's'}"


def _peak(arrivals: ArrivalFigures) -> str:
    peaks = [w for w in arrivals.windows if w.peak_per_s is not None and w.seconds <= 60]
    if not peaks:
        return ""
    rate_per_s = format_number(peaks[-1].peak_per_s or 0.0)
    return f", {rate_per_s}/s in the busiest {span_words(peaks[-1].seconds)}"


def span_words(seconds: float) -> str:
    """Say how long a window is, after `the busiest`."""
    return {1.0: "second", 60.0: "minute"}.get(seconds, format_duration(seconds))


def reuse_words(traffic: Traffic) -> str:
    """Say what a prefix cache can find."""
    if traffic.reuse is None:
        return "what prompts share is not recorded"
    if not traffic.reuse.unbounded:
        return "a prefix cache can find nothing"
    return (
        f"a prefix cache can find at most {percent(traffic.reuse.unbounded)} of the prompt tokens, "
        f"and 90 % of that with {traffic.reuse.smallest_for(0.9):,} tokens"
    )
