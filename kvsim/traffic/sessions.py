"""Conversations: how many there are, how many turns they have, how long users take between."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.units import NS_PER_S
from kvsim.workload.traces import Trace

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """Conversations of a log; gaps lie between the arrivals of neighboring turns.

    Gap figures are None if every session has one turn.
    """

    sessions: int
    turns_mean: float
    turns_p50: float
    turns_p99: float
    turns_max: int
    single_turn_share: float
    gap_p50_s: float | None
    gap_p90_s: float | None


def session_figures(turns: Ints, gaps_ns: Ints) -> SessionFigures:
    """Describe what `turns_and_gaps` returns."""
    gap_p50_s, gap_p90_s = (
        (float(gap) / NS_PER_S for gap in np.percentile(gaps_ns, (50, 90)))
        if len(gaps_ns)
        else (None, None)
    )
    return SessionFigures(
        sessions=len(turns),
        turns_mean=float(turns.mean()),
        turns_p50=float(np.percentile(turns, 50)),
        turns_p99=float(np.percentile(turns, 99)),
        turns_max=int(turns.max()),
        single_turn_share=float((turns == 1).mean()),
        gap_p50_s=gap_p50_s,
        gap_p90_s=gap_p90_s,
    )


def turns_and_gaps(trace: Trace) -> tuple[Ints, Ints] | None:
    """Return turns by session, and all gaps between turns in ns; None if no session is known."""
    if trace.session is None or not (trace.session >= 0).any():
        return None
    known = np.flatnonzero(trace.session >= 0)
    order = known[np.argsort(trace.session[known], kind="stable")]
    sessions, times_ns = trace.session[order], trace.arrival_ns[order]
    _, turns = np.unique(sessions, return_counts=True)
    same = sessions[1:] == sessions[:-1]
    return turns.astype(np.int64), np.diff(times_ns)[same]
