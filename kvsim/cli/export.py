"""`kvsim export`: a run as a timeline for Perfetto, or as metrics of vLLM for Prometheus."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.rundir.read import Run


def export(
    run: Annotated[Path, typer.Argument(help="Directory of a run, for example reports/chat.")],
    chrome_trace: Annotated[
        Path | None,
        typer.Option(
            help="Write a timeline for ui.perfetto.dev or chrome://tracing; .gz compresses it."
        ),
    ] = None,
    openmetrics: Annotated[
        Path | None,
        typer.Option(help="Write vLLM's metrics as OpenMetrics text; - prints them."),
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="Only this variant; may be given again.")
    ] = None,
    from_s: Annotated[
        float | None, typer.Option(min=0, help="Timeline: cut off what was before.")
    ] = None,
    to_s: Annotated[
        float | None, typer.Option(min=0, help="Timeline: cut off what comes then.")
    ] = None,
    step_s: Annotated[
        float | None,
        typer.Option(help="Metrics: samples so far apart, with times; default: the end alone."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="Metrics: when the run begins, 2026-01-31T08:00:00Z or seconds since 1970; "
            "default: 0."
        ),
    ] = None,
    max_mb: Annotated[
        float, typer.Option(min=0, help="Refuse to write more, before compression.")
    ] = 500,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file.")] = False,
) -> None:
    """Write a finished run in formats of other tools: Perfetto's, Prometheus'.

    Exit code: 0 done, 2 bad input.
    """
    _refuse_idle(chrome_trace, openmetrics, from_s, to_s, step_s, start)
    _refuse_endless({"--from-s": from_s, "--to-s": to_s, "--max-mb": max_mb})

    from kvsim.export.files import STDOUT, refuse_place
    from kvsim.export.span import chosen_variants
    from kvsim.rundir.read import open_run

    opened = open_run(run)
    for place in (chrome_trace, openmetrics):
        if place is not None:
            refuse_place(place, opened, force)
    variants = chosen_variants(opened, variant or [])
    if chrome_trace is not None:
        told = _write_timeline(opened, chrome_trace, variants, (from_s, to_s), max_mb)
        print(told, file=sys.stderr if openmetrics == STDOUT else sys.stdout)
    if openmetrics is not None:
        _write_metrics(opened, openmetrics, variants, (step_s, start), max_mb)


def _refuse_idle(
    chrome_trace: Path | None,
    openmetrics: Path | None,
    from_s: float | None,
    to_s: float | None,
    step_s: float | None,
    start: str | None,
) -> None:
    """Refuse options that would do nothing, and nothing to do.

    Raises:
        InputError: Lists them.
    """
    problems = []
    if chrome_trace is None and openmetrics is None:
        problems.append("say what to write: --chrome-trace FILE or --openmetrics FILE")
    if chrome_trace is not None and chrome_trace == openmetrics:
        problems.append(f"{chrome_trace}: the timeline and the metrics need a file each")
    if chrome_trace is not None and str(chrome_trace) == "-":
        problems.append("--chrome-trace -: name a file; only --openmetrics prints")
    if chrome_trace is None and (from_s is not None or to_s is not None):
        problems.append("--from-s and --to-s cut a timeline; --chrome-trace is missing")
    if from_s is not None and to_s is not None and from_s >= to_s:
        problems.append(f"--to-s {to_s:g}: must come after --from-s {from_s:g}")
    if openmetrics is None and step_s is not None:
        problems.append("--step-s samples metrics; --openmetrics is missing")
    if step_s is not None and not 1e-3 <= step_s <= 1e9:
        problems.append(f"--step-s {step_s:g}: Prometheus counts milliseconds; from 0.001 to 1e9")
    if start is not None and step_s is None:
        problems.append("--start dates samples; --step-s is missing")
    if problems:
        raise InputError(*problems)


def _refuse_endless(values: dict[str, float | None]) -> None:
    """Refuse what is no number, or too large for a clock that counts nanoseconds.

    Raises:
        InputError: Lists them.
    """
    wrong = [name for name, value in values.items() if value is not None and not value <= 1e9]
    if wrong:
        raise InputError(*(f"{name} {values[name]:g}: must be at most 1e9" for name in wrong))


def _write_timeline(
    run: "Run",
    path: Path,
    variants: Sequence[str],
    edges_s: tuple[float | None, float | None],
    max_mb: float,
) -> str:
    """Write the timeline; return what to say of it."""
    from kvsim.export.chrome_trace import about_bytes, write_chrome_trace
    from kvsim.export.files import written
    from kvsim.export.span import MB, Span, end_ns, in_words, refuse_large
    from kvsim.units import NS_PER_S, seconds_to_ns

    whole = Span()
    from_ns, to_ns = (
        default if edge_s is None else seconds_to_ns(edge_s)
        for edge_s, default in zip(edges_s, (whole.from_ns, whole.to_ns), strict=True)
    )
    span = Span(from_ns, to_ns)
    ends_ns = max(end_ns(run, name) for name in variants)
    if span.from_ns > ends_ns:
        raise InputError(f"--from-s: the run ends after {in_words(ends_ns)}")
    size_bytes = about_bytes(run, variants, span)
    length_ns = min(span.to_ns, ends_ns) - span.from_ns
    fits_s = length_ns / NS_PER_S * max_mb * MB / max(size_bytes, 1)
    until_s = span.from_ns / NS_PER_S + fits_s
    shown = f"{until_s:.0f}" if until_s >= 1000 else f"{until_s:.3g}"
    remedy = (
        f"cut out a part, as with --to-s {shown}, or choose a --variant; --max-mb raises the limit"
    )
    refuse_large(str(path), size_bytes, round(max_mb * MB), remedy)
    with written(path) as file:
        events = write_chrome_trace(run, file, variants, span)
    hint = "Open it at https://ui.perfetto.dev or in chrome://tracing; it stays on your machine."
    return f"{events:,} events of {in_words(length_ns)} in {path}\n{hint}"


def _write_metrics(
    run: "Run",
    path: Path,
    variants: Sequence[str],
    sampled: tuple[float | None, str | None],
    max_mb: float,
) -> None:
    from kvsim.export.files import STDOUT, written
    from kvsim.export.openmetrics import Sampling, about_bytes, write_openmetrics
    from kvsim.export.span import MB, refuse_large
    from kvsim.units import seconds_to_ns

    step_s, start = sampled
    every_ns = None if step_s is None else seconds_to_ns(step_s)
    sampling = Sampling(every_ns, _since_1970_ns(start or "0"))
    remedy = "choose a larger --step-s or a --variant; --max-mb raises the limit"
    size_bytes = about_bytes(run, variants, sampling)
    refuse_large(str(path), size_bytes, round(max_mb * MB), remedy)
    with written(path) as file:
        lines = write_openmetrics(run, file, variants, sampling)
    if path == STDOUT:
        return
    print(f"{lines:,} lines in {path}")
    if sampling.every_ns is not None:
        print(f"The run begins at {_date(sampling.start_ns)}.")
        print(f"For Prometheus: promtool tsdb create-blocks-from openmetrics {path} DATA_FOLDER")


def _since_1970_ns(text: str) -> int:
    """Read a time of day.

    Raises:
        InputError: It is none, or has no time zone.
    """
    from datetime import datetime
    from decimal import Decimal, InvalidOperation

    from kvsim.units import NS_PER_S

    try:
        seconds = Decimal(text)
    except InvalidOperation:
        try:
            day = datetime.fromisoformat(text)
        except ValueError as error:
            form = "write 2026-01-31T08:00:00Z, or seconds since 1970"
            raise InputError(f"--start {text}: is no time; {form}") from error
        if day.tzinfo is None:
            raise InputError(f"--start {text}: has no time zone; Z ends a time in UTC") from None
        seconds = Decimal(round(day.timestamp() * 1000)) / 1000
    if not (seconds.is_finite() and 0 <= seconds < 10**10):
        raise InputError(f"--start {text}: must lie between 1970 and 2286")
    return int(seconds * NS_PER_S)


def _date(ns: int) -> str:
    from datetime import UTC, datetime

    from kvsim.units import NS_PER_S

    return datetime.fromtimestamp(ns // NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
