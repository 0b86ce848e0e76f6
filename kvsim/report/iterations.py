"""Chart of engine steps: how long they take against how many tokens they compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.names import short_name
from kvsim.report.drawing import log_axis, thinned, told
from kvsim.report.figure import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    Chart,
    Key,
    Table,
    panel_axis,
    panels,
    plotly_text,
    sentence,
)
from kvsim.report.inputs import Variant
from kvsim.report.series import Floats, Ints
from kvsim.table_files import chunks
from kvsim.tables import Columns
from kvsim.units import NS_PER_MS

# What a step computes: words, color, marker, the same as a letter.
KINDS = (
    ("decode only", GREEN, "circle", "●"),
    ("prefill and decode", ORANGE, "diamond", "◆"),
    ("prefill only", PURPLE, "x", "✕"),
)
TABLE_ROWS = 26
MOST_POINTS = 800  # each is an element of its own for the browser, unlike the points of a line
FEWEST_OF_EACH = 3  # kind and bin
# The first bits of a number as floating point grow with it: exponent, then mantissa. So few of
# them are two bins of tokens an octave (1, 2, 3, 4 to 5, 6 to 7, 8 to 11, ...), and bins of
# durations less than 0.4 % wide.
_TOKEN_BITS, _TIME_BITS = 22, 15
_BINS = 48  # to 2^24 tokens; larger steps are in the last
_TIMES = 16_128  # to 2^63 ns
_STRATA = len(KINDS) * _BINS
_READ = ("replica", "step", "duration_ns", "prefill_tokens", "decode_seqs")
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: multiples spread evenly
_REPLICAS_APART = np.uint64(0xD1B54A32D192ED03)


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps by kind and bin of tokens.

    Attributes:
        drawn: By kind, tokens and durations in ns of those that are drawn.
        counts: How many there are, shape (kinds, bins).
        medians_ms: Their median duration in each bin, NaN without any; shape (bins,).
        alone_ms: That of the steps that only decode.
        mixed_ms: That of the others.
    """

    drawn: Sequence[tuple[Ints, Ints]]
    counts: Ints
    medians_ms: Floats
    alone_ms: float
    mixed_ms: float


def read_steps(steps: Columns, most: int) -> Steps:
    """Read the steps once, chunk by chunk, and choose at most so many to draw."""
    times, choice = np.zeros((len(KINDS), _BINS, _TIMES), dtype=np.int64), _Choice(most)
    for chunk in chunks(steps, _READ):
        tokens = np.maximum(chunk["prefill_tokens"] + chunk["decode_seqs"], 1)  # logarithms
        duration_ns = np.maximum(chunk["duration_ns"], 1)
        kind = (chunk["prefill_tokens"] > 0) * (2 - (chunk["decode_seqs"] > 0))
        stratum = kind * _BINS + np.minimum(_bin(tokens, _TOKEN_BITS), _BINS - 1)
        np.add.at(times.reshape(-1), stratum * _TIMES + _bin(duration_ns, _TIME_BITS), 1)
        order = chunk["step"].astype(np.uint64) * _SPREAD
        order += chunk["replica"].astype(np.uint64) * _REPLICAS_APART
        choice.add(stratum, order, tokens, duration_ns)
    return Steps(
        choice.by_kind(),
        times.sum(axis=2, dtype=np.int64),
        np.array([_median_ms(each) for each in times.sum(axis=0)]),
        _median_ms(times[0].sum(axis=0)),
        _median_ms(times[1:].sum(axis=(0, 1))),
    )


class _Choice:
    """Steps to draw, at most so many: of each kind and bin equally many, if it has them.

    These are the shortest and the longest, and of the others the first by `order`, which spreads
    them evenly over the run. What is chosen doesn't depend on the chunks in which steps come.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_each = most
        self._kept: Ints = np.zeros((4, 0), dtype=np.int64)  # stratum, order, tokens, duration
        self._last = np.full(_STRATA, 2**64 - 1, dtype=np.uint64)  # a later one isn't chosen, but
        self._shortest = np.full(_STRATA, 2**63 - 1)  # if it is shorter
        self._longest = np.zeros(_STRATA, dtype=np.int64)  # or longer

    def add(
        self, stratum: Ints, order: NDArray[np.uint64], tokens: Ints, duration_ns: Ints
    ) -> None:
        """Take some steps."""
        may_be_kept = order <= self._last[stratum]
        may_be_kept |= duration_ns < self._shortest[stratum]
        may_be_kept |= duration_ns > self._longest[stratum]
        rows = np.flatnonzero(may_be_kept)
        found = np.stack(
            (stratum[rows], order[rows].view(np.int64), tokens[rows], duration_ns[rows])
        )
        self._keep_of(np.hstack([self._kept, found]))
        while self._kept.shape[1] > self._most and self._of_each > FEWEST_OF_EACH:
            self._of_each = max(self._of_each * 3 // 4, FEWEST_OF_EACH)
            self._keep_of(self._kept)

    def _keep_of(self, kept: Ints) -> None:
        """Keep of each stratum the shortest, the longest, and the first others."""
        stratum, order, duration_ns = kept[0], kept[1].view(np.uint64), kept[3]
        extreme = np.zeros(len(stratum), dtype=np.bool_)
        for by in (duration_ns, -duration_ns):
            ranked = np.lexsort((kept[2], order, by, stratum))
            extreme[ranked[_rank_in_group(stratum[ranked]) == 0]] = True
        ranked = np.lexsort((kept[2], order, ~extreme, stratum))
        ranked = ranked[_rank_in_group(stratum[ranked]) < self._of_each]
        self._kept, others = kept[:, ranked], ranked[~extreme[ranked]]
        np.minimum.at(self._shortest, stratum, duration_ns)
        np.maximum.at(self._longest, stratum, duration_ns)
        full = np.bincount(stratum[ranked], minlength=_STRATA) >= self._of_each
        last = np.zeros_like(self._last)
        np.maximum.at(last, stratum[others], order[others])
        self._last[full] = last[full]

    def by_kind(self) -> list[tuple[Ints, Ints]]:
        """Return tokens and durations of the chosen steps, by kind."""
        stratum, _, tokens, duration_ns = self._kept
        kinds = [stratum // _BINS == kind for kind in range(len(KINDS))]
        return [(tokens[mine], duration_ns[mine]) for mine in kinds]


def _rank_in_group(sorted_groups: Ints) -> Ints:
    """Return how many of its group come before each row."""
    first = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    lengths = np.diff(first, append=len(sorted_groups))
    ranks: Ints = np.arange(len(sorted_groups)) - np.repeat(first, lengths)
    return ranks


def _bin(values: Ints, dropped_bits: int) -> Ints:
    """Return the bin of numbers from 1 on, counted from 0."""
    bits = values.astype(np.float32).view(np.int32) >> dropped_bits
    bins: Ints = (bits - (_ONE >> dropped_bits)).astype(np.int64)
    return bins


def _least(bins: Ints, dropped_bits: int) -> Floats:
    """Return the least number of each bin."""
    bits = (bins.astype(np.int32) + (_ONE >> dropped_bits)) << dropped_bits
    return bits.view(np.float32).astype(np.float64)


_ONE = int(np.array(1, np.float32).view(np.int32))


def _median_ms(times: NDArray[np.integer]) -> float:
    """Return the median of durations that are counted by bin; NaN without any."""
    ends = np.cumsum(times, dtype=np.int64)
    if not ends[-1]:
        return float("nan")
    middle = int(np.searchsorted(ends, (int(ends[-1]) + 1) // 2))
    return float(_least(np.array([middle, middle + 1]), _TIME_BITS).mean()) / NS_PER_MS


def _token_edges() -> Ints:
    """Return the fewest tokens of each bin, and of one more."""
    return np.ceil(_least(np.arange(_BINS + 1), _TOKEN_BITS)).astype(np.int64)


def iterations(variants: Sequence[Variant]) -> Chart:
    """Show durations of steps against their tokens, a panel a variant."""
    found = [read_steps(variant.steps, MOST_POINTS // len(variants)) for variant in variants]
    finding = sentence(told(list(map(_finding, variants, found))))
    data: list[dict[str, Any]] = []
    for place, each in enumerate(found):
        data += [_points(kind, *points, place) for kind, points in enumerate(each.drawn)]
        data.append(_median_line(each, place))
    return Chart(
        key="chart-iterations",
        title=finding,
        definition="Each point is an engine step: how long it takes against the tokens that it "
        "computes, prompts and decoding sequences together, both logarithmic. The line is the "
        "median of the steps in each bin of tokens.",
        alt=f"Points on logarithmic axes, one panel a variant. {finding}.",
        figure={"data": data, "layout": _layout(variants, found)},
        table=_table(variants, found),
        keys=[
            *(Key(f"{letter} {words}", color) for words, color, _, letter in KINDS),
            Key("median", BLUE, "solid"),
        ],
        note=_note(found),
    )


def _finding(variant: Variant, steps: Steps) -> str:
    name, alone_ms, mixed_ms = short_name(variant.name), steps.alone_ms, steps.mixed_ms
    if np.isnan(alone_ms) and np.isnan(mixed_ms):
        return f"{name} has no steps"
    if np.isnan(mixed_ms):
        return f"steps of {name} only decode, in {alone_ms:.3g} ms (median)"
    if np.isnan(alone_ms):
        return f"all steps of {name} compute prompts, in {mixed_ms:.3g} ms (median)"
    return (
        f"steps of {name} take {alone_ms:.3g} ms (median) if they only decode, and "
        f"{mixed_ms / alone_ms:.3g} × that with prompts"
    )


def _points(kind: int, tokens: Ints, duration_ns: Ints, place: int) -> dict[str, Any]:
    words, color, symbol, _ = KINDS[kind]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": tokens.tolist(),
        "y": [float(f"{ns / NS_PER_MS:.4g}") for ns in duration_ns.tolist()],
        "yaxis": panel_axis(place),
        "marker": {"color": color, "symbol": symbol, "size": 5, "opacity": 0.6},
        "hovertemplate": f"{words}: %{{y:.3~g}} ms for %{{x:,}} tokens<extra></extra>",
    }


def _median_line(steps: Steps, place: int) -> dict[str, Any]:
    bins = np.flatnonzero(~np.isnan(steps.medians_ms))
    edges = _token_edges()
    middles = (edges[bins] + edges[bins + 1] - 1) / 2
    return {
        "type": "scatter",
        "mode": "lines",
        "x": middles.tolist(),
        "y": [float(f"{ms:.4g}") for ms in steps.medians_ms[bins].tolist()],
        "yaxis": panel_axis(place),
        "line": {"color": BLUE, "width": 2},
        "hovertemplate": "median %{y:.3~g} ms<extra></extra>",
    }


def _layout(variants: Sequence[Variant], found: Sequence[Steps]) -> Mapping[str, Any]:
    tokens, times_ns = (
        np.concatenate([points[axis] for each in found for points in each.drawn]) for axis in (0, 1)
    )
    vertical = log_axis("ms", times_ns / NS_PER_MS)
    vertical["title"]["text"] = "ms a step"
    headings = [plotly_text(variant.name) for variant in variants]
    return panels(headings, [vertical] * len(variants), log_axis("tokens in the step", tokens))


def _note(found: Sequence[Steps]) -> str:
    steps = sum(int(each.counts.sum()) for each in found)
    points = sum(len(tokens) for each in found for tokens, _ in each.drawn)
    if points == steps:
        return ""
    return (
        f"Drawn: {points:,} of {steps:,} steps. Of each kind and bin of tokens the shortest and "
        "the longest are kept, and a few others, evenly spread over the run; the median counts "
        "all, to 0.4 %."
    )


def _table(variants: Sequence[Variant], found: Sequence[Steps]) -> Table:
    header, edges = ["Tokens in the step"], _token_edges()
    for name in (short_name(variant.name) for variant in variants):
        header += [f"{name}: steps", f"{name}: with prompts", f"{name}: median"]
    rows = []
    for place in np.flatnonzero(sum(each.counts.sum(axis=0) for each in found)).tolist():
        first, last = int(edges[place]), int(edges[place + 1]) - 1
        row = [f"{first:,}" if first == last else f"{first:,}–{last:,}"]
        for each in found:
            alone, *mixed = each.counts[:, place].tolist()
            median_ms = each.medians_ms[place]
            row += [f"{alone + sum(mixed):,}", f"{sum(mixed):,}"]
            row.append("–" if np.isnan(median_ms) else f"{median_ms:,.3g} ms")
        rows.append(row)
    return Table(header, thinned(rows, TABLE_ROWS))
