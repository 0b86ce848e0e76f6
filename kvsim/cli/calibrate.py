"""`kvsim calibrate`: from a user's own measurements to what her servers are priced from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvsim.calibrate.result import BenchmarkResult
    from kvsim.calibrate.run import Calibration
    from kvsim.scenario.load import ScenarioFile


def calibrate(
    scenario: Annotated[
        Path | None,
        typer.Argument(help="Scenario that describes the server; its workload is not used."),
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Results of benchmarks: JSON of vllm bench serve, guidellm, aiperf or genai-perf."
        ),
    ] = None,
    kernels: Annotated[
        Path | None,
        typer.Option(help="Instead: folder of kernel timings to pack for a GPU of your own."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="With --kernels: whose rows, if there are several GPUs.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write; by default profile.yaml or kernels.npz.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Root of all random streams.")] = 0,
) -> None:
    """Fit the overheads of a server to benchmarks of it, and write them as a profile.

    Kernels are left as they were measured. Constants that the results can't tell apart stay as they
    are in the scenario's profile.
    """
    from kvsim.errors import InputError, Problem
    from kvsim.workload.files import refuse_inputs

    target = out or Path("profile.yaml" if kernels is None else "kernels.npz")
    if target.exists() and not (force and target.is_file()):
        raise InputError(Problem("exists; --force overwrites it", str(target)))
    refuse_inputs(target, [*([scenario] if scenario else []), *(results or [])])
    if kernels is not None:
        if scenario is not None:
            raise InputError("--kernels packs tables alone: leave out scenario and results")
        _pack(kernels, gpu, target)
    elif scenario is None:
        raise InputError("name the scenario of the server and results of benchmarks, or --kernels")
    else:
        _fit(scenario, results or [], target, seed, json)


def _pack(folder: Path, gpu: str | None, target: Path) -> None:
    from kvsim.calibrate.kernel_tables import pack_kernels

    name, packed = pack_kernels(folder, gpu, target)
    print(f"{name}: {', '.join(packed)}")
    print(
        f"Kernels: {target}. A scenario beside it names it by gpu: {{kernels: {target.name}, ...}}"
    )


def _fit(scenario: Path, results: list[Path], target: Path, seed: int, json: bool) -> None:
    from kvsim.calibrate.files import read_results
    from kvsim.scenario.load import load_scenario

    file = load_scenario(scenario)
    measured = read_results(results)

    from kvsim.calibrate.profile_file import profile_text
    from kvsim.workload.files import written_whole

    calibration = _calibrated(file, measured, seed)
    with written_whole(target) as working:
        working.write_text(profile_text(calibration), encoding="utf-8")
    if json:
        import json as json_format

        print(json_format.dumps(calibration.as_dict(), indent=1, allow_nan=False))
    else:
        print(_text(calibration, target))


def _calibrated(
    file: "ScenarioFile", measured: "list[BenchmarkResult]", seed: int
) -> "Calibration":
    """Fit, with a bar on stderr if it is a terminal."""
    from kvsim.calibrate.run import calibrate as fitted
    from kvsim.cli.progress import counted

    with counted("simulations") as tell:
        return fitted(file, measured, seed, tell)


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
