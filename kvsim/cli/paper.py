"""`kvsim paper`: the figures of the PagedAttention paper beside what kvsim predicts of them."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.pages import beside, refuse_foreign, write_text

if TYPE_CHECKING:
    from kvsim.paper.chapter import Chapter

DEFAULT_FOLDER = Path("scenarios/paper")


def paper(
    folder: Annotated[
        Path, typer.Argument(help="Folder with the paper's scenarios.")
    ] = DEFAULT_FOLDER,
    out: Annotated[
        Path, typer.Option(help="HTML page to write; its numbers go beside it as JSON.")
    ] = Path("reports/paper.html"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite other files there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON, too.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes instead of hours of traffic: rough figures.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at work; by default one a core.")
    ] = None,
) -> None:
    """Simulate the PagedAttention paper (SOSP 2023): its figures, ours, and why they differ."""
    from kvsim.paper.page import build_page, verdict
    from kvsim.paper.run import as_document

    numbers = beside(out, ".json")
    refuse_foreign(out, force, beside=[numbers])
    chapters = _chapters(folder, quick, jobs or len(os.sched_getaffinity(0)))
    command = ["kvsim", "paper", *([] if folder == DEFAULT_FOLDER else [str(folder)])]
    page = build_page(chapters, shlex.join([*command, *(["--quick"] if quick else [])]))
    document = _as_json(as_document(chapters))
    write_text(out, page)
    write_text(numbers, document)
    if json:
        print(document, end="")
        return
    for text in _texts(chapters):
        print(text, end="\n\n")
    print(f"{verdict(chapters)}.\nPage: {out}\nNumbers: {numbers}")


def _chapters(folder: Path, quick: bool, jobs: int) -> "list[Chapter]":
    """Run all chapters, with a bar on stderr if it is a terminal."""
    from kvsim.cli.crew import outliving_workers
    from kvsim.cli.progress import counted
    from kvsim.paper.run import run_chapters

    with outliving_workers(), counted("simulations") as tell:
        return run_chapters(folder, quick, jobs, tell)


def _texts(chapters: "list[Chapter]") -> list[str]:
    """Return each chapter's figures as aligned text; the reasons stand on the page."""
    from kvsim.cli.text import aligned

    return [
        "\n".join([one.title, aligned([row[:-1] for row in (table.header, *table.rows)])])
        for one in chapters
        for table in [one.table()]
    ]


def _as_json(document: object) -> str:
    import json as json_format

    return json_format.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
