"""`kvsim run`: simulate a scenario and its variants, say the answer, write tables and report."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.advice import BUDGET_S, refuse_without_capacity, with_advice
from kvsim.cli.crew import Dask, Jobs, crew
from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.rundir.read import Run


def run(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).")],
    out: Annotated[
        Path | None, typer.Option(help="Run directory; by default reports/<scenario name>.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, keyed by variant.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a summary for a pull request or chat.")
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

    if json and markdown:
        raise InputError("--json and --markdown: choose one")
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
        refuse_without_capacity(file)

    from kvsim.cli.progress import progress_of
    from kvsim.rundir.write import Further, new_directory, run_into
    from kvsim.scenario.schema import BASE

    with new_directory(target) as folder:
        with progress_of(list(variants), len(requests)) as (progress, tell):

            def further() -> Further:
                count = file.base.replications
                if count == 1 and dask is None:  # processes take a while to import, too
                    return {}
                from kvsim.study.replications import further_replications

                with crew(jobs, dask) as workers:
                    return further_replications(file, list(variants), count, workers, tell=tell)

            command = _command(scenario, replications, advise_budget_s if advise else None)
            result = run_into(folder, file, variants, requests, progress, further, command)
        if advise:
            result = with_advice(file, result, crew(jobs, dask), advise_budget_s)
        if report:
            from kvsim.report.run import write_report
            from kvsim.rundir.write import with_memory_map

            write_report(with_memory_map(result, folder))
        if save_trace is not None:
            from kvsim.rundir.write import sent_in
            from kvsim.workload.traces.own import write_trace

            write_trace(save_trace, sent_in(result))
    _tell(result.run, target, report, json, markdown)
    verdict = result.run.summaries[BASE]["verdict"]
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


def _tell(run: "Run", target: Path, report: bool, json: bool, markdown: bool) -> None:
    """Print the answer: for people, for a pull request, or for machines."""
    if json:
        from kvsim.rundir.read import SUMMARY

        print((target / SUMMARY).read_text(encoding="utf-8"), end="")
    elif markdown:
        from kvsim.report.markdown import as_markdown
        from kvsim.report.run import report_input
        from kvsim.rundir.read import open_run

        print(as_markdown(report_input(open_run(target))), end="")  # where its tables are now
    else:
        from kvsim.cli.text import painted
        from kvsim.cli.verdict import as_text

        print(painted(as_text(run, target, report)))


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
