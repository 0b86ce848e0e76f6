"""`kvsim conform`: does kvsim's engine take the decisions that were recorded of a real one?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvsim.conformance.compare import Verdict
    from kvsim.errors import Problem

DIFFERS = 1


def conform(
    files: Annotated[
        list[Path], typer.Argument(help="Recorded schedules: .json, plain or .gz, .xz, .zst.")
    ],
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
) -> None:
    """Replay recorded schedules of vLLM through kvsim's engine, and tell the first differences."""
    from kvsim.conformance.compare import conform as verdicts_of
    from kvsim.errors import InputError

    verdicts: list[Verdict] = []
    problems: list[Problem] = []
    for file in files:
        try:
            for verdict in verdicts_of(file):
                verdicts.append(verdict)
                if not json:
                    print(_line(verdict), flush=True)
        except InputError as error:
            problems += error.problems
    unread = list(dict.fromkeys(str(each) for verdict in verdicts for each in verdict.unread))
    if json and verdicts:
        import json as json_format

        told = _for_machines(verdicts) | _told(unread=unread, problems=list(map(str, problems)))
        print(json_format.dumps(told, indent=2))
    elif verdicts:
        print(_sum(verdicts), *(f"Note: {_on_one_line(note)}" for note in unread), sep="\n")
    if problems:
        raise InputError(*problems)
    if not all(verdict.identical for verdict in verdicts):
        raise typer.Exit(DIFFERS)


def _told(**lists: list[str]) -> dict[str, list[str]]:
    return {name: messages for name, messages in lists.items() if messages}


def _on_one_line(text: str) -> str:
    """Return a text of a file as a terminal may get it: nothing in it but what prints."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _line(verdict: "Verdict") -> str:
    beginning = f"{_on_one_line(verdict.name):<48} {verdict.steps:>6,} steps"
    if verdict.not_modeled:
        return f"{beginning}  not modeled: {_on_one_line(verdict.not_modeled)}"
    if verdict.difference is not None:
        found = f"differs: {verdict.steps_identical:,} steps are identical; first difference at"
        return f"{beginning}  {found}\n    {_on_one_line(str(verdict.difference))}"
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
