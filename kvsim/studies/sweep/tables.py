"""Points of a sweep in rows of text, for the terminal and for the page."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from kvsim.metrics.catalog import METRICS, format_figure
from kvsim.statistics import Interval
from kvsim.studies.sweep.answer import Answer, ranked
from kvsim.studies.sweep.names import metric_label, short_names, value_text
from kvsim.studies.sweep.outcome import DONE

_WIDEST = 16  # letters of a value where there is little room
_BRIEF = {
    "usd_per_million_output_tokens": "$/1M out",
    "output_tokens_per_s": "output/s",
    "goodput_requests_per_s": "goodput/s",
    "requests_per_s": "requests/s",
}


def shown_first(answer: Answer) -> list[int]:
    """Return all settings: the best, the front, then by rank."""
    best = [] if answer.best is None else [answer.best]
    return list(dict.fromkeys([*best, *answer.front, *ranked(answer)]))


def point_rows(
    answer: Answer, shown: Sequence[int], narrow: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of some settings; `narrow` takes short words and no intervals."""
    results = answer.results
    names = short_names(results.sweep)
    several = len(results.sweep.variants) > 1
    header = [*names.values(), *(["variant"] if several else []), "SLO"]
    header += [brief(name) if narrow else METRICS[name].label for name in answer.metrics]
    rows = []
    for place in shown:
        point = results.settings[place]
        cells = [value_text(point.changes[path]) for path in names]
        cells = [_cut(cell) for cell in cells] if narrow else cells
        cells += [point.variant] if several else []
        cells += [verdict_word(answer, place) + _mark(answer, place, narrow)]
        cells += [_figure(answer, place, name, narrow) for name in answer.metrics]
        rows.append(cells)
    return header, rows


def brief(metric: str) -> str:
    """Return a metric's name where there is little room; latencies are in seconds."""
    return _BRIEF.get(metric) or METRICS[metric].label


def _mark(answer: Answer, place: int, narrow: bool) -> str:
    if place not in answer.front:
        return ""
    return "*" if narrow else ", the choice" if place == answer.best else ", on the front"


def verdict_word(answer: Answer, place: int) -> str:
    """Say in a word what became of a setting."""
    results = answer.results
    count = results.sweep.replications
    status = results.status[place * count : (place + 1) * count]
    failures = [each for each in status if each != DONE]
    if failures:
        return failures[0]
    met = results.met[place * count : (place + 1) * count]
    if all(each is None for each in met):
        return "ran"
    held = sum(each is True for each in met)
    return "met" if held == count else "missed" if held == 0 else f"{held} of {count}"


def headlines(answer: Answer) -> Iterator[str]:
    """Yield what else must be known: the front, failures."""
    if len(answer.front) > 1:
        first, last = (_pair(answer, place) for place in (answer.front[0], answer.front[-1]))
        names = f"{metric_label(answer.cost)} and {metric_label(answer.latencies[0])}"
        yield f"Front of {names}: {len(answer.front)} points, from {first} to {last}."
    failures = Counter(status for status in answer.results.status if status != DONE)
    if failures:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(failures.items()))
        yield f"Failed: {counts}. First error: {_first_error(answer)}"


def _first_error(answer: Answer) -> str:
    """Return the first line of the first failure, the last of a traceback."""
    results = answer.results
    failed = zip(results.status, results.errors, strict=True)
    status, message = next(pair for pair in failed if pair[0] != DONE)
    return error_line(status, message)


def error_line(status: str, message: str) -> str:
    """Return what is said of a failure in one line."""
    lines = message.strip().splitlines() or [status]
    return lines[-1] if status == "defect" else lines[0]


def point_facts(answer: Answer, place: int) -> dict[str, Any]:
    """Return a setting with its figures, ready for JSON."""
    results = answer.results
    point = results.settings[place]
    figures = {name: _as_dict(results.interval(place, name)) for name in answer.metrics}
    return {"variant": point.variant, "changes": dict(point.changes), "figures": figures}


def _as_dict(interval: Interval | None) -> dict[str, float | None] | None:
    if interval is None:
        return None
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _figure(answer: Answer, place: int, name: str, narrow: bool) -> str:
    interval = answer.results.interval(place, name)
    if interval is None:
        return "–"
    mean = format_figure(name, interval.mean)
    if narrow:
        per_s = f" {METRICS[name].unit}" if METRICS[name].unit.endswith("/s") else ""
        return mean.removesuffix(per_s).removeprefix("$")  # the header tells
    half = interval.half_width
    return mean if half is None else f"{mean} ± {format_figure(name, half)}"


def _pair(answer: Answer, place: int) -> str:
    texts = (
        format_figure(name, answer.results.mean(place, name))
        for name in (answer.cost, answer.latencies[0])
    )
    return " at ".join(texts)
