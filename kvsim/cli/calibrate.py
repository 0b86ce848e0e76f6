"""`kvsim calibrate`: from a user's own measurements to what her servers are priced from."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvsim.calibrate.result import BenchmarkResult
    from kvsim.calibrate.run import Calibration
    from kvsim.scenario.load import ScenarioFile


def calibrate(
    scenario: Annotated[
        Path, typer.Argument(help="Scenario that describes the server; its workload is not used.")
    ],
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Results of benchmarks: JSON of vllm bench serve, guidellm, aiperf or genai-perf."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Profile to write.")] = Path("profile.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the profile.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Root of all random streams.")] = 0,
) -> None:
    """Fit the overheads of a server to benchmarks of it, and write them as a profile.

    Kernels are left as they were measured. Constants that the results can't tell apart stay as they
    are in the scenario's profile.
    """
    from kvsim.calibrate.files import read_results
    from kvsim.errors import InputError, Problem
    from kvsim.scenario.load import load_scenario

    if out.exists() and not (force and out.is_file()):
        raise InputError(Problem("exists; --force overwrites it", str(out)))
    file = load_scenario(scenario)
    measured = read_results(results)

    from kvsim.calibrate.profile_file import profile_text
    from kvsim.workload.files import written_whole

    calibration = _calibrated(file, measured, seed)
    with written_whole(out) as working:
        working.write_text(profile_text(calibration), encoding="utf-8")
    if json:
        import json as json_format

        print(json_format.dumps(calibration.as_dict(), indent=1, allow_nan=False))
    else:
        print(_text(calibration, out))


def _calibrated(
    file: "ScenarioFile", measured: "list[BenchmarkResult]", seed: int
) -> "Calibration":
    """Fit, with a bar on stderr if it is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from kvsim.calibrate.run import calibrate as fitted

    shown = sys.stderr is not None and sys.stderr.isatty()  # it may have been closed
    with Progress(console=Console(file=sys.stderr), disable=not shown) as bars:
        task = bars.add_task("simulations")
        return fitted(
            file, measured, seed, lambda done, most: bars.update(task, completed=done, total=most)
        )


def _text(calibration: "Calibration", out: Path) -> str:
    from kvsim.calibrate.tables import constants_table, errors_table, summary_table
    from kvsim.cli.text import aligned, wrapped

    parts = [
        aligned(constants_table(calibration.fit.constants)),
        aligned(errors_table(calibration)),
        aligned(summary_table(calibration)),
        *(wrapped(note) for note in calibration.notes),
        f"Profile: {out}. A scenario beside it names it by cost: {{profile: {out.name}}}",
    ]
    return "\n\n".join(parts)
