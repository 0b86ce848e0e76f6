"""A sensitivity in words, tables and plain data."""

from typing import Any

from kvsim.metrics.catalog import format_figure
from kvsim.report.figure import Table
from kvsim.statistics import Interval
from kvsim.studies.sensitivity.indices import Indices
from kvsim.studies.sensitivity.tornado import Bar, End, Tornado


def tornado_sentences(found: Tornado, metric: str) -> list[str]:
    """Return what moves a figure most, and what can't be told from nothing."""
    base = format_figure(metric, found.base.mean)
    strongest = next((bar for bar in found.bars if bar.is_clear), None)
    if strongest is None:
        return [f"Nothing that was varied clearly moves {metric}, {base}.", _draws(found)]
    ends = [end for end in (strongest.low, strongest.high) if end.mean is not None]
    told = " and ".join(
        f"{format_figure(metric, end.mean)} at {strongest.factor.show(end.value)}" for end in ends
    )
    said = [f"{metric} moves most with {strongest.factor.label}: {told}; as it is, {base}."]
    unclear = [bar.factor.label for bar in found.bars if not bar.is_clear and bar.reach >= 0]
    if unclear:
        said.append(f"Not told from no effect: {', '.join(unclear)}.")
    return [*said, *_without(found), _draws(found)]


def _without(found: Tornado) -> list[str]:
    """Say which ends have no figure, and why."""
    return [
        f"{bar.factor.label} {bar.factor.show(end.value)} has no figure: {end.why}."
        for bar in found.bars
        for end in (bar.low, bar.high)
        if end.why
    ]


def _draws(found: Tornado) -> str:
    if found.replications == 1:
        return "From a single draw: no interval tells what is luck."
    return f"Means of {found.replications} paired draws, with 95 % intervals of the changes."


def tornado_table(found: Tornado, metric: str) -> Table:
    """Return how far the figure moves at both ends of each factor."""
    header = ["factor", "low", "high", "change at low", "change at high"]
    rows = []
    for bar in found.bars:
        shown = (bar.factor.show(bar.low.value), bar.factor.show(bar.high.value))
        changes = (_change(end, metric) for end in (bar.low, bar.high))
        rows.append([bar.factor.label, *shown, *changes])
    return Table(header, rows)


def _change(end: End, metric: str) -> str:
    if end.change is None:
        return "–"
    half = end.change.half_width
    if not end.change.mean and not half:
        return "none"
    shown = _signed(end.change.mean, metric)
    return shown if half is None else f"{shown} ± {format_figure(metric, half)}"


def _signed(value: float, metric: str) -> str:
    return ("−" if value < 0 else "+") + format_figure(metric, abs(value))


def indices_sentences(found: Indices, metric: str) -> list[str]:
    """Return which factor matters most, and how that was found."""
    mean = format_figure(metric, found.mean)
    return [
        _leader(found, metric),
        f"{found.method.capitalize()} over {found.evaluations:,} evaluations, whose mean is {mean} "
        f"and whose standard deviation {format_figure(metric, found.deviation)}.",
        *(f"{name}: {meaning}." for name, meaning in found.said.items()),
    ]


def _leader(found: Indices, metric: str) -> str:
    """Name the factor that matters most, if its interval lies beyond the next one's index."""
    first, second = found.indices[:2]
    value, half = first.values[found.main], first.confidence[found.main]
    shown = f"{found.main} {_with_confidence(value, half)}"
    if value - half > second.values[found.main]:
        return f"{metric} depends most on {first.factor.label} ({shown})."
    return (
        f"Too few samples to tell what {metric} depends on most; the largest index is that of "
        f"{first.factor.label} ({shown})."
    )


def indices_table(found: Indices) -> Table:
    """Return the indices of each factor, with the half width of their 95 % intervals."""
    names = list(found.said)
    rows = [
        [
            index.factor.label,
            f"{index.factor.show(index.factor.low)} to {index.factor.show(index.factor.high)}",
            *(_with_confidence(index.values[name], index.confidence.get(name)) for name in names),
        ]
        for index in found.indices
    ]
    return Table(["factor", "range", *names], rows)


def _with_confidence(value: float, half: float | None) -> str:
    shown = f"{value:.3g}"
    return shown if half is None else f"{shown} ± {half:.2g}"


# For machines


def tornado_dict(found: Tornado, metric: str) -> dict[str, Any]:
    """Return a tornado as plain data, ready for JSON."""
    return {
        "method": "one at a time",
        "metric": metric,
        "replications": found.replications,
        "base": _interval(found.base),
        "factors": [_bar(bar) for bar in found.bars],
        "sentences": tornado_sentences(found, metric),
    }


def _bar(bar: Bar) -> dict[str, Any]:
    return {
        "factor": bar.factor.name,
        "base": bar.factor.base,
        "clear": bar.is_clear,
        **{
            name: {
                "value": bar.factor.plain(end.value),
                "figure": end.mean,
                "change": None if end.change is None else _interval(end.change),
                "why": end.why,
            }
            for name, end in (("low", bar.low), ("high", bar.high))
        },
    }


def _interval(interval: Interval) -> dict[str, float | int | None]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


def indices_dict(found: Indices, metric: str) -> dict[str, Any]:
    """Return indices as plain data, ready for JSON."""
    return {
        "method": found.method,
        "metric": metric,
        "evaluations": found.evaluations,
        "mean": found.mean,
        "deviation": found.deviation,
        "factors": [
            {
                "factor": index.factor.name,
                "low": index.factor.low,
                "high": index.factor.high,
                **index.values,
                **{f"{name}_confidence": half for name, half in index.confidence.items()},
            }
            for index in found.indices
        ],
        "sentences": indices_sentences(found, metric),
    }
