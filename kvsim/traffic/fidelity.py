"""How well a fitted workload imitates its log: draws beside the log, in the same figures."""

from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.arrivals import WINDOWS_S, dispersion
from kvsim.metrics.catalog import format_number, percent
from kvsim.report.drawing import number
from kvsim.report.figure import Table
from kvsim.traffic.fit import LEAST_DISPERSION, draws_for
from kvsim.traffic.lengths import PERCENTILES, rank_correlation
from kvsim.traffic.summary import Traffic
from kvsim.units import NS_PER_S, format_duration, seconds_to_ns
from kvsim.workload.build import build_requests
from kvsim.workload.parameters import Workload
from kvsim.workload.requests import RequestTable

DRAWS = 5
# Up to these, the imitation is called close; beyond, the sentence says what is off. Rate and
# dispersion may be further off where chance alone does as much.
CLOSE_RATE = 0.05
CLOSE_DISPERSION = 1.5  # times too much or too little
CLOSE_LENGTHS = 0.05  # Kolmogorov–Smirnov distance
CLOSE_CORRELATION = 0.1


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of the log and of its imitation; `off` says how far apart they are, in words."""

    name: str
    log: float | None
    imitation: float | None
    off: str
    is_close: bool


def compare(traffic: Traffic, workload: Workload, seed: int = 0) -> list[Compared]:
    """Draw requests from a workload several times, and compare them with the log it was fitted to.

    Raises:
        InputError: The workload can't be drawn.
    """
    draws = draws_for(len(traffic.log), DRAWS)
    drawn = [build_requests(workload, seed, draw) for draw in range(draws)]
    return [
        _rate(traffic, drawn),
        *_dispersions(traffic, drawn),
        *_lengths("prompt", traffic.log.prompt_tokens, [one.prompt_tokens for one in drawn]),
        *_lengths("answer", traffic.log.output_tokens, [one.output_tokens for one in drawn]),
        _correlation(traffic, drawn),
    ]


def _rate(traffic: Traffic, drawn: list[RequestTable]) -> Compared:
    rate_per_s = len(traffic.log) * NS_PER_S / traffic.end_ns
    found = float(np.mean([len(one) for one in drawn])) * NS_PER_S / traffic.end_ns
    off = found / rate_per_s - 1
    return Compared(
        "requests per second",
        rate_per_s,
        found,
        f"{off:+.1%}",
        abs(off) <= _rate_margin(traffic, len(drawn)),
    )


def _rate_margin(traffic: Traffic, draws: int) -> float:
    """Return how far off the rate may be: what is called close, or what happens by chance (95 %).

    A count with index of dispersion I has the relative standard deviation sqrt(I / count).
    """
    windows = traffic.arrivals.windows if traffic.arrivals else ()
    index = max((window.dispersion or 0.0 for window in windows), default=1.0)
    return max(CLOSE_RATE, 1.96 * sqrt(index / (len(traffic.log) * draws)))


def _dispersions(traffic: Traffic, drawn: list[RequestTable]) -> list[Compared]:
    if traffic.arrivals is None:
        return []
    found = []
    for window in traffic.arrivals.windows:
        window_ns = seconds_to_ns(window.seconds)
        indices = [dispersion(one.arrival_ns, traffic.end_ns, window_ns) for one in drawn]
        known = [max(index, LEAST_DISPERSION) for index in indices if index is not None]
        if window.dispersion is not None and known:
            index = float(np.exp(np.mean(np.log(known))))
            times = index / max(window.dispersion, LEAST_DISPERSION)
            # The log's own index is known no better: its logarithm has this standard deviation.
            spread = sqrt(2 * window_ns / traffic.end_ns)
            close = abs(log(times)) <= max(log(CLOSE_DISPERSION), 1.96 * spread)
            name = f"dispersion over {format_duration(window.seconds)}"
            found.append(Compared(name, window.dispersion, index, f"x {times:.2f}", close))
    return found


def _lengths(
    name: str, recorded: NDArray[np.int64], drawn: list[NDArray[np.int64]]
) -> list[Compared]:
    pooled = np.concatenate(drawn)
    distance = ks_distance(recorded, pooled)
    close = distance <= CLOSE_LENGTHS
    rows = []
    for percentile in PERCENTILES:
        values = (
            float(np.percentile(recorded, percentile)),
            float(np.percentile(pooled, percentile)),
        )
        off = f"{values[1] / values[0] - 1:+.1%}"
        rows.append(Compared(f"{name} tokens p{percentile}", *values, off, True))
    rows.append(Compared(f"{name} tokens, KS distance", None, distance, "", close))
    return rows


def _correlation(traffic: Traffic, drawn: list[RequestTable]) -> Compared:
    prompt = np.concatenate([one.prompt_tokens for one in drawn])
    output = np.concatenate([one.output_tokens for one in drawn])
    wanted, found = traffic.rank_correlation, rank_correlation(prompt, output)
    off = (found or 0.0) - (wanted or 0.0)
    close = abs(off) <= CLOSE_CORRELATION
    return Compared("rank correlation", wanted, found, f"{off:+.2f}", close)


def ks_distance(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return the Kolmogorov–Smirnov distance: the most by which two distributions differ."""
    values = np.union1d(one, other)
    shares = [np.searchsorted(np.sort(s), values, side="right") / len(s) for s in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())


def fidelity_table(compared: list[Compared]) -> Table:
    """Return the comparison as finished text."""
    rows = [
        [row.name, number(row.log), number(row.imitation), row.off + ("" if row.is_close else " !")]
        for row in compared
    ]
    return Table(["figure", "log", "imitation", "off"], rows)


def fidelity_sentence(compared: list[Compared]) -> str:
    """Say in one sentence how well the imitation does, and what is off."""
    wrong = [row for row in compared if not row.is_close]
    if not wrong:
        return "The imitation is close in rate, dispersion and lengths."
    told = ", ".join(f"{row.name} ({row.off or f'{row.imitation:.2f}'})" for row in wrong)
    return f"The imitation does badly in: {told}. Replay the log itself where that matters."


def not_imitated(traffic: Traffic) -> list[str]:
    """Say what the log has that a fitted workload doesn't."""
    words = []
    if traffic.reuse is not None and traffic.reuse.unbounded:
        words.append(
            f"Shared beginnings of prompts ({percent(traffic.reuse.unbounded)} of the prompt "
            "tokens) are not imitated: its prompts have nothing in common."
        )
    if traffic.sessions is not None and traffic.sessions.turns_max > 1:
        words.append("Sessions are not imitated: each request stands alone.")
    if traffic.samples > 1:
        words.append(
            f"Samples ({format_number(traffic.samples)} a request) are not imitated: each request "
            "has one answer."
        )
    longest = [w for w in WINDOWS_S if w <= traffic.end_ns / NS_PER_S / 10]
    if not longest:
        words.append("The log is too short to tell how bursty it is.")
    return words
