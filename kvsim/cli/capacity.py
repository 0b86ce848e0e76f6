"""`kvsim capacity`: the highest load, or the setting, that still meets the SLO."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.crew import Dask, Jobs, crew
from kvsim.cli.pages import refuse_foreign, write_text
from kvsim.cli.text import aligned, as_json, wrapped

if TYPE_CHECKING:
    from kvsim.scenario.load import ScenarioFile
    from kvsim.studies.capacity.answer import CapacityAnswer
    from kvsim.studies.capacity.search import Options
    from kvsim.study.tasks import Crew

_FLAGS = {  # of the options of a search
    "variant": "--variant",
    "vary": "--vary",
    "start": "--from",
    "end": "--to",
    "smallest": "--smallest",
    "goodput": "--goodput",
    "precision": "--precision",
    "max_replications": "--max-replications",
    "budget_s": "--budget-s",
}


def capacity(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML) with an slo.")],
    vary: Annotated[
        str | None,
        typer.Option(help="What is varied, such as engine.max_num_seqs; by default the load."),
    ] = None,
    from_: Annotated[
        float | None, typer.Option("--from", help="Smallest value that may be tried.")
    ] = None,
    to: Annotated[
        float | None, typer.Option("--to", help="Largest value that may be tried.")
    ] = None,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="The smallest value that meets the SLO.")
    ] = False,
    goodput: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Share of requests that must meet all bounds, not percentiles."
        ),
    ] = None,
    variant: Annotated[str, typer.Option(help="Variant of the scenario.")] = "base",
    precision: Annotated[
        float,
        typer.Option(min=0.001, max=1, help="Width of the interval, as a share of the value."),
    ] = 0.05,
    max_replications: Annotated[
        int, typer.Option(min=1, help="Most replications at one value.")
    ] = 64,
    budget_s: Annotated[
        float | None, typer.Option(min=0, help="Stop after so many seconds.")
    ] = None,
    jobs: Jobs = None,
    dask: Dask = None,
    out: Annotated[
        Path | None, typer.Option(help="HTML page with the curve that was found.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite another file there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Search the highest load that meets the SLO, with a confidence interval.

    Exit code: 0 found, 1 no value meets the SLO, 2 bad input.
    """
    from kvsim.scenario.load import load_scenario
    from kvsim.studies.capacity.search import Options

    file = load_scenario(scenario)
    options = Options(
        variant=variant,
        vary=vary,
        start=from_,
        end=to,
        smallest=smallest,
        goodput=goodput,
        precision=precision,
        max_replications=max_replications,
        budget_s=budget_s,
    )
    if out is not None:
        refuse_foreign(out, force, [scenario])
    with crew(jobs, dask) as workers:
        answer = _search(file, options, workers)
    if out is not None:
        from kvsim.studies.capacity.page import build_page

        write_text(out, build_page(answer, file.base.name, _command(scenario, options)))
    if json:
        print(as_json(answer.as_dict()))
    else:
        print(_as_text(answer))
        if out is not None:
            print(f"\nPage: {out}")
    raise typer.Exit(0 if answer.feasible is not None else 1)


def _search(file: "ScenarioFile", options: "Options", workers: "Crew") -> "CapacityAnswer":
    """Search, with a bar on stderr if it is a terminal."""
    from kvsim.cli.progress import counted
    from kvsim.studies.capacity.search import find_capacity

    with counted("simulations planned so far") as counted_so:

        def tell(done: int, planned: int, value: float) -> None:
            if counted_so:
                counted_so(done, planned, f"simulations planned so far, now at {value:.4g}")

        return find_capacity(file, options, workers, tell)


def _as_text(answer: "CapacityAnswer") -> str:
    """Return what is printed, at most 80 columns wide where names allow it."""
    from kvsim.studies.capacity.words import tried_table

    table = tried_table(answer)
    blocks = [wrapped(answer.sentence), aligned([table.header, *table.rows])]
    return "\n\n".join([*blocks, "\n".join(wrapped(f"Note: {note}") for note in answer.notes)])


def _command(scenario: Path, options: "Options") -> str:
    """Return what reproduces the answer, without options that have their usual value."""
    usual = type(options)()
    words = ["kvsim", "capacity", str(scenario)]
    for name, flag in _FLAGS.items():
        value = getattr(options, name)
        if value != getattr(usual, name):
            words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)
