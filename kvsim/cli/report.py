"""`kvsim report`: build the page of a finished run again, from its tables."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="Directory of a run, for example reports/chat.")],
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print a summary for a pull request or chat instead."),
    ] = False,
) -> None:
    """Build the HTML report of a finished run again, from its tables: the same bytes.

    Exit code: 0 done, 2 bad input.
    """
    from kvsim.report.run import report_input
    from kvsim.rundir.read import REPORT, open_run

    found = report_input(open_run(run))
    if markdown:
        from kvsim.report.markdown import as_markdown

        print(as_markdown(found), end="")
        return
    from kvsim.cli.pages import write_text
    from kvsim.report.page import build_report

    write_text(run / REPORT, build_report(found))
    print(f"Report: {run / REPORT}")
