"""`kvsim run`: simulate a scenario and its variants, say the answer, write tables and report."""

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.crew import Dask, Jobs, crew
from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.rundir.read import Run
    from kvsim.scenario.load import ScenarioFile
    from kvsim.study.tasks import Crew

BUDGET_S = 60.0  # of the search for advice


def run(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).")],
    out: Annotated[
        Path | None, typer.Option(help="Run directory; by default reports/<scenario name>.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, keyed by variant.")
    ] = False,
    replications: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, help="Independent draws; by default as the scenario says, or one."
        ),
    ] = None,
    jobs: Jobs = None,
    dask: Dask = None,
    report: Annotated[bool, typer.Option(help="Write the HTML report.")] = True,
    save_trace: Annotated[
        Path | None,
        typer.Option(help="Write what reached the base's servers as a trace (Parquet), to replay."),
    ] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="Find what to change next, by searches for capacity.")
    ] = False,
    advise_budget_s: Annotated[
        float, typer.Option(min=0, help="Seconds for that; no change is begun after them.")
    ] = BUDGET_S,
) -> None:
    """Simulate a scenario: does it meet its targets, by what margin, what limits it?

    Exit code: 0 the base meets its SLO or has none, 1 it misses it or nothing can be judged,
    2 bad input.
    """
    from kvsim.scenario.load import load_scenario, with_replications
    from kvsim.workload.parameters import files_read

    file = with_replications(load_scenario(scenario), replications)
    target = out or Path("reports") / file.base.name
    if save_trace is not None:
        read = [scenario, *files_read(file.base.workload).values()]
        _refuse_trace_at(save_trace, target, read)

    # The engine, Arrow and Plotly take a while to import: what the file says wrong is told before.
    from kvsim.scenario.requests import draw_requests
    from kvsim.scenario.resolve import resolve_all

    variants = resolve_all(file)
    requests = draw_requests(file, variants)
    if advise:
        _refuse_without_capacity(file)

    from kvsim.cli.progress import progress_of
    from kvsim.cli.verdict import as_text
    from kvsim.rundir.read import SUMMARY
    from kvsim.rundir.write import Further, new_directory, run_into
    from kvsim.scenario.schema import BASE
    from kvsim.study.replications import further_replications

    with new_directory(target) as folder:
        with progress_of(list(variants), len(requests)) as (progress, tell):

            def further() -> Further:
                count = file.base.replications
                with crew(jobs, dask) as workers:
                    return further_replications(file, list(variants), count, workers, tell=tell)

            command = _command(scenario, replications, advise_budget_s if advise else None)
            result = run_into(folder, file, variants, requests, progress, further, command)
        finished = result.run
        if advise:
            finished = _advised(file, finished, crew(jobs, dask), advise_budget_s)
        if report:
            from kvsim.report.run import write_report

            write_report(finished)
        if save_trace is not None:
            from kvsim.rundir.write import sent_in
            from kvsim.workload.traces.own import write_trace

            write_trace(save_trace, sent_in(result))
    if json:
        print((target / SUMMARY).read_text(encoding="utf-8"), end="")
    else:
        print(as_text(finished, target, report))
    verdict = finished.summaries[BASE]["verdict"]
    meets = verdict["met"] or not (file.base.slo or file.base.class_slos)
    raise typer.Exit(0 if meets else 1)


def _command(scenario: Path, replications: int | None, advise_budget_s: float | None) -> str:
    """Return what reproduces the run, without options that have their usual value."""
    words = ["kvsim", "run", str(scenario)]
    words += [] if replications is None else ["--replications", str(replications)]
    words += [] if advise_budget_s is None else ["--advise"]
    if advise_budget_s not in {None, BUDGET_S}:
        words += ["--advise-budget-s", f"{advise_budget_s:g}"]
    return shlex.join(words)


def _refuse_without_capacity(file: "ScenarioFile") -> None:
    from kvsim.studies.advice.search import refuse_unanswerable

    refuse_unanswerable(file)


def _advised(
    file: "ScenarioFile", run: "Run", workers: AbstractContextManager["Crew"], budget_s: float
) -> "Run":
    """Find what to change next, with a bar on stderr if it is a terminal; write it to the run."""
    from kvsim.cli.progress import counted
    from kvsim.rundir.write import write_advice
    from kvsim.scenario.schema import BASE
    from kvsim.studies.advice.answer import rows_of
    from kvsim.studies.advice.search import find_advice

    with counted("capacities") as counted_so:

        def tell(done: int, of: int, words: str) -> None:
            if counted_so:
                counted_so(done, of, f"capacities, now {words}")

        with workers as at_work:
            advice = find_advice(file, run.summaries[BASE], at_work, budget_s, tell)
    return write_advice(run, rows_of(advice))


def _refuse_trace_at(path: Path, target: Path, read: Sequence[Path]) -> None:
    """Refuse a place where a trace would replace what is no trace, or vanish, before the run."""
    problem = ""
    if path.exists() and not path.is_file():
        problem = "is there already, and is no file"
    elif path.resolve().is_relative_to(target.resolve()):
        problem = f"{target} will hold the run and nothing else"
    elif not path.resolve().parent.is_dir():
        problem = "its folder is not there"
    elif path.exists() and any(other.exists() and path.samefile(other) for other in read):
        problem = "this run reads it"
    if problem:
        raise InputError(f"--save-trace {path}: {problem}; choose another place")
