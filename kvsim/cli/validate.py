"""`kvsim validate`: measured servers beside what kvsim predicts of them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.pages import refuse_foreign, write_text

if TYPE_CHECKING:
    from kvsim.validate.case import Case
    from kvsim.validate.peers import Errors
    from kvsim.validate.run import Row
    from kvsim.validate.summary import Summary


def validate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Experiment records (JSON), engine points or KV cache sizes (CSV); "
            "by default the public ones that kvsim ships."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="HTML page to write, with charts.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Root of all random streams.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at work; by default one a core.")
    ] = None,
) -> None:
    """Simulate measured servers, and tell how far predictions are from measurements."""
    from kvsim.validate.files import read_all
    from kvsim.validate.peers import peers_of
    from kvsim.validate.summary import summarize

    if out is not None:
        refuse_foreign(out, force, files or [])
    cases = read_all(files or [])
    rows = _rows(cases, seed, jobs or len(os.sched_getaffinity(0)))
    peers = peers_of([case.id for case in cases])
    summary = summarize(rows, cases, peers)
    if out is not None:
        from kvsim.validate.page import build_page

        command = " ".join(["kvsim", "validate", *(str(file) for file in files or [])])
        write_text(out, build_page(rows, cases, summary, peers, command))
    if json:
        import json as json_format

        document = {"rows": [row.as_dict() for row in rows], "summary": summary.as_dict()}
        print(json_format.dumps(document, indent=1, allow_nan=False))
        return
    for part in _texts(rows, summary, peers):
        print(part, end="\n\n")
    if out is not None:
        print(f"Page: {out}")


def _rows(cases: "list[Case]", seed: int, jobs: int) -> "list[Row]":
    """Predict all cases, with a bar on stderr if it is a terminal."""
    from kvsim.cli.progress import counted
    from kvsim.validate.run import validate as rows_of

    with counted("measured servers") as tell:
        return rows_of(cases, seed, jobs, tell)


def _texts(rows: "list[Row]", summary: "Summary", peers: "Mapping[str, Errors]") -> Iterator[str]:
    from kvsim.cli.text import aligned
    from kvsim.validate.tables import all_tables, unpredicted_table

    for table in all_tables(rows, summary, peers):
        yield aligned([table.header, *table.rows])
    for reason, ids, _ in unpredicted_table(summary).rows:
        yield f"Not predicted: {ids}\n    {reason}"
