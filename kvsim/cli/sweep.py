"""`kvsim sweep`: many points of one scenario; how many meet the SLO, and which is the cheapest."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.crew import Dask, Jobs, crew
from kvsim.cli.text import aligned, as_json, wrapped

if TYPE_CHECKING:
    from kvsim.studies.sweep.answer import Answer
    from kvsim.studies.sweep.load import SweepFile
    from kvsim.studies.sweep.run import SweepResult

MANY_POINTS = 100_000  # are rather a mistake
_MOST_ROWS = 20


def sweep(
    file: Annotated[Path, typer.Argument(help="Sweep file (YAML): a scenario and axes.")],
    out: Annotated[
        Path, typer.Option(help="Directory for table, page, and the results that sweeps share.")
    ] = Path("reports/sweeps"),
    jobs: Jobs = None,
    dask: Dask = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed points again.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Run it however many points it has.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
) -> None:
    """Simulate all points of a sweep: which meet the SLO, which is the cheapest, what they cost.

    What was simulated before is not run again. Exit code: 0 some point meets the SLO, or there is
    none, 1 no point does, 2 bad input.
    """
    from kvsim.studies.sweep.load import load_sweep

    loaded = load_sweep(file)
    _confirm(loaded, yes)

    from kvsim.cli.progress import counted
    from kvsim.studies.sweep.run import run_sweep

    with counted("points") as tell, crew(jobs, dask) as workers:
        result = run_sweep(
            loaded,
            out,
            workers,
            retry=retry,
            tell=tell,
            command=shlex.join(["kvsim", "sweep", str(file)]),
        )
    answer = result.answer
    if json:
        print(as_json(_document(result, answer)))
    else:
        print(_text(result, answer))
    raise typer.Exit(0 if answer.eligible.any() else 1)


def _confirm(loaded: "SweepFile", yes: bool) -> None:
    """Ask before a sweep of so many points that they may be a slip."""
    from kvsim.errors import InputError, Problem

    size = loaded.largest_size
    if yes or size <= MANY_POINTS:
        return
    what = f"its axes span {size:,} points"
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        if typer.confirm(f"{what}. Run them?", err=True):
            return
        raise typer.Exit(1)
    hint = "shorten some, or say --yes"
    raise InputError(Problem(f"{what}, more than {MANY_POINTS:,}; {hint}", loaded.document.file))


def _text(result: "SweepResult", answer: "Answer") -> str:
    """Return what is printed: the answer, the points that matter, where the rest is."""
    from kvsim.studies.sweep.tables import headlines, point_rows, shown_first

    shown = shown_first(answer)[:_MOST_ROWS]
    header, rows = point_rows(answer, shown, narrow=True)
    total = len(answer.eligible)
    more = f"{len(shown)} of {total:,} points" if len(shown) < total else "All points"
    about = f"{more}; * on the front of cost and latency. Simulated now: {result.ran:,}."
    blocks = [
        wrapped(f"{answer.sentence}."),
        *map(wrapped, headlines(answer)),
        aligned([*_in_two_lines(header), *rows]),
        wrapped(about),
        f"Table: {result.table_path}\nPage: {result.page_path}",
    ]
    return "\n\n".join(blocks)


def _in_two_lines(names: list[str]) -> list[list[str]]:
    """Break long names at an underscore, since their columns' values are short."""
    lower = [name[_break_of(name) :] for name in names]
    upper = [name.removesuffix(rest) for name, rest in zip(names, lower, strict=True)]
    return [upper, lower] if any(upper) else [lower]


def _break_of(name: str) -> int:
    breaks = [place + 1 for place, letter in enumerate(name) if letter in "_ "]
    return (
        min(breaks, key=lambda place: abs(2 * place - len(name))) if len(name) > 8 and breaks else 0
    )


def _document(result: "SweepResult", answer: "Answer") -> dict[str, Any]:
    """Return the same for machines; the table has the rest."""
    from kvsim.studies.sweep.tables import point_facts

    results = result.results
    return {
        "answer": answer.sentence,
        "points": len(answer.eligible),
        "replications": results.sweep.replications,
        "meet_slo": int(answer.eligible.sum()) if results.is_judged else None,
        "failed": int(results.failed.sum()),
        "simulated_now": result.ran,
        "best": None if answer.best is None else point_facts(answer, answer.best),
        "front": [point_facts(answer, place) for place in answer.front],
        "table": str(result.table_path),
        "page": str(result.page_path),
    }
