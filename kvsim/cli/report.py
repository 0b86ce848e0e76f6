"""`kvsim report`: build the page of a finished run again, from its tables."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="Directory of a run, for example reports/chat.")],
) -> None:
    """Build the HTML report of a finished run again, from its tables: the same bytes.

    Exit code: 0 done, 2 bad input.
    """
    from kvsim.cli.pages import write_text
    from kvsim.report.page import build_report
    from kvsim.report.run import report_input
    from kvsim.rundir.read import REPORT, open_run

    write_text(run / REPORT, build_report(report_input(open_run(run))))
    print(f"Report: {run / REPORT}")
