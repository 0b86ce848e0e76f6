"""A log's figures as tables of finished text, for the terminal and for the page."""

from kvsim.metrics.arrivals import ArrivalFigures
from kvsim.metrics.catalog import format_number, percent
from kvsim.report.arrival_charts import arrival_table
from kvsim.report.drawing import NONE, number
from kvsim.report.figure import Table
from kvsim.traffic.lengths import LengthFigures
from kvsim.traffic.reuse import HitCurve
from kvsim.traffic.summary import Traffic
from kvsim.units import format_bytes, format_duration

SHARES_OF_REUSE = (0.5, 0.9, 1.0)


def all_tables(traffic: Traffic, kv_bytes_per_token: int | None) -> list[Table]:
    """Return the tables for which the log has figures."""
    return [
        fact_table(traffic),
        *([arrival_table(traffic.arrivals)] if traffic.arrivals else ()),
        length_table(traffic),
        *([reuse_table(traffic.reuse, kv_bytes_per_token)] if traffic.reuse else ()),
    ]


def length_table(traffic: Traffic) -> Table:
    """Return percentiles of prompts and answers, and their tokens per second."""
    rows = [
        ["prompt", *_lengths(traffic.prompt), number(traffic.prompt_tokens_per_s, "/s")],
        ["answer", *_lengths(traffic.output), number(traffic.output_tokens_per_s, "/s")],
    ]
    return Table(["tokens", "mean", "p10", "p50", "p90", "p99", "max", "rate"], rows)


def _lengths(figures: LengthFigures) -> list[str]:
    values = (
        figures.mean_tokens,
        figures.p10_tokens,
        figures.p50_tokens,
        figures.p90_tokens,
        figures.p99_tokens,
        figures.max_tokens,
    )
    return [format_number(value) for value in values]


def fact_table(traffic: Traffic) -> Table:
    """Return what is one figure each."""
    sessions = traffic.sessions
    rows = [
        ["requests", f"{len(traffic.log):,}"],
        *(_time_rows(traffic.arrivals) if traffic.arrivals else ()),
        ["rank correlation of prompt and answer", number(traffic.rank_correlation)],
    ]
    if traffic.samples > 1:
        rows.append(["samples of a request, mean", number(traffic.samples)])
    if sessions:
        turns = (sessions.turns_mean, sessions.turns_p50, sessions.turns_p99, sessions.turns_max)
        gaps = (sessions.gap_p50_s, sessions.gap_p90_s)
        rows += [
            ["sessions", f"{sessions.sessions:,}"],
            ["turns: mean, p50, p99, max", ", ".join(format_number(value) for value in turns)],
            [
                "between turns: p50, p90",
                ", ".join(NONE if gap is None else format_duration(gap) for gap in gaps),
            ],
        ]
    return Table(["figure", "value"], rows)


def _time_rows(arrivals: ArrivalFigures) -> list[list[str]]:
    rows = [
        ["duration", format_duration(arrivals.duration_s)],
        ["variation of the gaps (Poisson: 1)", number(arrivals.gap_cv)],
    ]
    if arrivals.tick_s:
        rows.append(["times are recorded in steps of", format_duration(arrivals.tick_s)])
    return rows


def reuse_table(reuse: HitCurve, kv_bytes_per_token: int | None) -> Table:
    """Return how large a prefix cache must be to find part of what an unbounded one finds."""
    rows = []
    for share in SHARES_OF_REUSE:
        tokens = reuse.smallest_for(share)
        row = [f"{percent(share)} of all reuse", percent(share * reuse.unbounded), f"{tokens:,}"]
        rows.append(
            row + ([format_bytes(tokens * kv_bytes_per_token)] if kv_bytes_per_token else [])
        )
    sizes = ["tokens of cache"] + (["KV cache"] if kv_bytes_per_token else [])
    return Table(["prefix cache", "hit rate", *sizes], rows)
