"""`kvsim conform`: does kvsim's engine take the decisions that were recorded of a real one?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvsim.conformance.compare import Verdict

DIFFERS = 1


def conform(
    files: Annotated[
        list[Path], typer.Argument(help="Recorded schedules: .json, plain or .gz, .xz, .zst.")
    ],
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
) -> None:
    """Replay recorded schedules of vLLM through kvsim's engine, and tell the first differences."""
    from kvsim.conformance.compare import conform as verdicts_of

    verdicts: list[Verdict] = []
    for file in files:
        for verdict in verdicts_of(file):
            verdicts.append(verdict)
            if not json:
                print(_line(verdict), flush=True)
    if json:
        import json as json_format

        print(json_format.dumps(_for_machines(verdicts), indent=2))
    else:
        print(_sum(verdicts))
    if not all(verdict.identical for verdict in verdicts):
        raise typer.Exit(DIFFERS)


def _line(verdict: "Verdict") -> str:
    beginning = f"{verdict.name:<48} {verdict.steps:>6,} steps"
    if verdict.not_modeled:
        return f"{beginning}  not modeled: {verdict.not_modeled}"
    if verdict.difference is not None:
        found = f"differs: {verdict.steps_identical:,} steps are identical; first difference at"
        return f"{beginning}  {found}\n    {verdict.difference}"
    return f"{beginning}  identical"


def _sum(verdicts: "list[Verdict]") -> str:
    total = _totals(verdicts)
    return (
        f"{total['identical']:,} of {total['runs']:,} runs are identical, "
        f"{total['steps_identical']:,} of {total['steps']:,} steps"
    )


def _totals(verdicts: "list[Verdict]") -> dict[str, int]:
    return {
        "runs": len(verdicts),
        "identical": sum(verdict.identical for verdict in verdicts),
        "steps": sum(verdict.steps for verdict in verdicts),
        "steps_identical": sum(verdict.steps_identical for verdict in verdicts),
    }


def _for_machines(verdicts: "list[Verdict]") -> dict[str, Any]:
    from dataclasses import asdict

    differences: list[dict[str, Any]] = []
    for verdict in verdicts:
        if verdict.not_modeled:
            differences.append({"run": verdict.name, "not_modeled": verdict.not_modeled})
        elif verdict.difference is not None:
            differences.append({"run": verdict.name, **asdict(verdict.difference)})
    return {**_totals(verdicts), "differences": differences}
