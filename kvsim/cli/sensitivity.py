"""`kvsim sensitivity`: which inputs of a scenario move a figure of it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kvsim.cli.crew import Dask, Jobs, crew
from kvsim.cli.pages import refuse_foreign, write_text
from kvsim.cli.text import aligned, as_json, wrapped

if TYPE_CHECKING:
    from kvsim.scenario.load import ScenarioFile
    from kvsim.studies.sensitivity.factors import Factor
    from kvsim.studies.sensitivity.indices import Indices
    from kvsim.studies.sensitivity.tornado import Tornado
    from kvsim.study.tasks import Crew

DEFAULT_METRIC = "ttft_p99_s"
USUAL_SAMPLES = {"morris": 10, "sobol": 64}


def sensitivity(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML): its base is varied.")],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=LOW:HIGH",
            help="An input and its range; repeats. 'load', 'prompt length' and 'answer length' are "
            "factors, such as load=0.8:1.2. By default these and the usual settings.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Figure that is looked at; by default the first latency of the SLO."),
    ] = None,
    method: Annotated[
        Literal["tornado", "morris", "sobol"],
        typer.Option(help="One input at a time, or all together (needs kvsim[sensitivity])."),
    ] = "tornado",
    replications: Annotated[
        int | None,
        typer.Option(min=1, max=100, help="Draws of each point; by default 5, all together 1."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=2, max=65536, help="Trajectories of morris (10), base samples of sobol (64)."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="HTML page to write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite another file there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
    jobs: Jobs = None,
    dask: Dask = None,
) -> None:
    """Tell which inputs move a figure, by how much, and which effects may be luck.

    Exit code: 0 done, 2 bad input.
    """
    from kvsim.scenario.load import load_scenario

    ranges = _ranges(vary or [])
    file = load_scenario(scenario)
    if out is not None:
        refuse_foreign(out, force, [scenario])
    figure = metric or _metric_of(file)
    factors = _factors(file, ranges)
    with crew(jobs, dask) as workers:
        found = _found(file, factors, figure, method, (samples, replications), workers)
    if out is not None:
        command = ["kvsim", "sensitivity", str(scenario), "--metric", figure]
        command += [word for pair in vary or [] for word in ("--vary", pair)]
        command += ["--method", method] if method != "tornado" else []
        command += ["--samples", str(samples)] if samples else []
        command += ["--replications", str(replications)] if replications else []
        from kvsim.studies.sensitivity.page import build_page

        write_text(out, build_page(file, found, figure, shlex.join(command)))
    print(_as_json(found, figure) if json else _as_text(found, figure, out))


# What the options say


def _ranges(pairs: Sequence[str]) -> list[tuple[str, float, float]]:
    from kvsim.errors import InputError

    ranges: list[tuple[str, float, float]] = []
    problems = []
    for pair in pairs:
        name, _, ends = pair.partition("=")
        low, _, high = ends.partition(":")
        try:
            ends_of = name.strip(), float(low), float(high)
        except ValueError:
            problems.append(f"--vary {pair}: expected PATH=LOW:HIGH, such as load=0.8:1.2")
            continue
        if any(ends_of[0] == other for other, _, _ in ranges):
            problems.append(f"--vary {pair}: {ends_of[0]} is there already")
        ranges.append(ends_of)
    if problems:
        raise InputError(*problems)
    return ranges


def _metric_of(file: "ScenarioFile") -> str:
    """Return the first latency that the SLO bounds and results have."""
    from kvsim.metrics.catalog import METRICS

    return next((name for name in file.base.slo or {} if name in METRICS), DEFAULT_METRIC)


def _factors(file: "ScenarioFile", ranges: Sequence[tuple[str, float, float]]) -> "list[Factor]":
    """Return the factors, or every mistake in them."""
    from kvsim.errors import InputError, Problem
    from kvsim.studies.sensitivity.factors import factor_of, usual_factors

    if not ranges:
        return usual_factors(file)
    factors: list[Factor] = []
    problems: list[Problem] = []
    for one in ranges:
        try:
            factors.append(factor_of(file, *one))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return factors


# Simulations


def _found(
    file: "ScenarioFile",
    factors: "list[Factor]",
    metric: str,
    method: Literal["tornado", "morris", "sobol"],
    effort: tuple[int | None, int | None],
    workers: "Crew",
) -> "Tornado | Indices":
    """Simulate, with a bar on stderr if it is a terminal."""
    from kvsim.cli.progress import counted
    from kvsim.studies.sensitivity.indices import indices_of
    from kvsim.studies.sensitivity.model import simulated
    from kvsim.studies.sensitivity.tornado import tornado
    from kvsim.study.point import Point
    from kvsim.study.randomness import is_random

    samples, replications = effort
    with counted("simulations") as tell:
        model = simulated(file, factors, metric, workers, tell)
        draws = 1 if not is_random(file, Point()) else replications
        if method == "tornado":
            return tornado(factors, model, draws or 5)
        count = samples or USUAL_SAMPLES[method]
        return indices_of(factors, model, method, count, file.base.seed, draws or 1)


# Text


def _as_json(found: "Tornado | Indices", metric: str) -> str:
    from kvsim.studies.sensitivity.answer import indices_dict, tornado_dict
    from kvsim.studies.sensitivity.tornado import Tornado

    facts: dict[str, Any] = (
        tornado_dict(found, metric) if isinstance(found, Tornado) else indices_dict(found, metric)
    )
    return as_json(facts)


def _as_text(found: "Tornado | Indices", metric: str, out: Path | None) -> str:
    from kvsim.studies.sensitivity.answer import (
        indices_sentences,
        indices_table,
        tornado_sentences,
        tornado_table,
    )
    from kvsim.studies.sensitivity.tornado import Tornado

    if isinstance(found, Tornado):
        said, table = tornado_sentences(found, metric), tornado_table(found, metric)
    else:
        said, table = indices_sentences(found, metric), indices_table(found)
    blocks = ["\n".join(wrapped(sentence) for sentence in said)]
    blocks.append(aligned([table.header, *table.rows]))
    blocks += [f"Page: {out}"] if out is not None else []
    return "\n\n".join(blocks)
