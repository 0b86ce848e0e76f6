"""The command line: which commands there are, and how a run ends when something goes wrong.

Exit codes: 0 done (and the SLO is met, or there is none), 1 the SLO is missed, 2 the input or the
disk does not allow it, 130 interrupted.
"""

import signal
import sys
from typing import Annotated, NoReturn

import typer

from kvsim.cli.memory import memory
from kvsim.cli.run import run
from kvsim.cli.schema import schema
from kvsim.errors import InputError

BAD_INPUT = 2
INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    help="Capacity planning of LLM serving: simulate a deployment before you rent it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # importing rich would double the time of --help
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(memory)
app.command()(schema)


def _show_version(wanted: bool) -> None:
    if wanted:
        from kvsim import __version__

        print(f"kvsim {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command line; mistakes of the user become one message each and exit code 2."""
    signal.signal(signal.SIGINT, _interrupted)
    if hasattr(signal, "SIGPIPE"):  # end quietly, as other filters do, when the reader has left
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        app()
    except InputError as error:
        _refuse(*(str(problem) for problem in error.problems))
    except OSError as error:
        _refuse(_describe(error))


def _interrupted(*_: object) -> NoReturn:
    print("interrupted", file=sys.stderr)
    sys.exit(INTERRUPTED)


def _refuse(*messages: str) -> NoReturn:
    for message in messages:
        print(message, file=sys.stderr)
    sys.exit(BAD_INPUT)


def _describe(error: OSError) -> str:
    """Say which file the system refuses, and why; pyarrow's errors only have a text."""
    if error.strerror is None:
        return f"the system refuses: {error}"
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
