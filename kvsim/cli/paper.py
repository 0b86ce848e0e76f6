"""`kvsim paper`: the figures of the PagedAttention paper beside what kvsim predicts of them."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    from kvsim.workload.files import written_whole

    numbers = out.with_suffix(".json")
    _refuse_foreign(out, numbers, force)
    chapters = _chapters(folder, quick, jobs or len(os.sched_getaffinity(0)))
    command = ["kvsim", "paper", *([] if folder == DEFAULT_FOLDER else [str(folder)])]
    page = build_page(chapters, shlex.join([*command, *(["--quick"] if quick else [])]))
    document = _as_json(as_document(chapters))
    out.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(out) as working:
        working.write_text(page, encoding="utf-8")
    with written_whole(numbers) as working:
        working.write_text(document, encoding="utf-8")
    if json:
        print(document, end="")
        return
    for text in _texts(chapters):
        print(text, end="\n\n")
    print(f"{verdict(chapters)}.\nPage: {out}\nNumbers: {numbers}")


def _refuse_foreign(page: Path, numbers: Path, force: bool) -> None:
    """Refuse to overwrite what kvsim did not write."""
    from kvsim.errors import InputError, Problem
    from kvsim.traffic.page import is_page

    if page == numbers:
        raise InputError(Problem("the numbers would replace the page; name it .html", str(page)))
    for path in (page, numbers):
        if path.exists() and not path.is_file():
            raise InputError(Problem("is no file that could be replaced", str(path)))
    if page.exists() and not force and not is_page(page):
        raise InputError(Problem("exists; --force overwrites it", str(page)))
    if numbers.exists() and not force and not page.exists():
        raise InputError(Problem("exists; --force overwrites it", str(numbers)))


def _chapters(folder: Path, quick: bool, jobs: int) -> "list[Chapter]":
    """Run all chapters, with a bar on stderr if it is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from kvsim.paper.run import run_chapters

    shown = sys.stderr is not None and sys.stderr.isatty()  # it may have been closed
    with Progress(console=Console(file=sys.stderr), disable=not shown) as progress:
        bar = progress.add_task("simulations", total=None)
        return run_chapters(
            folder, quick, jobs, lambda done, of: progress.update(bar, completed=done, total=of)
        )


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
