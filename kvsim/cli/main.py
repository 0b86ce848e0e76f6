"""The command line: which commands there are, and how a run ends when something goes wrong.

Exit codes: 0 done (and the SLO is met, or there is none), 1 the SLO is missed or a replay differs,
2 the input or the machine does not allow it, 3 a defect of kvsim, 130 and 143 interrupted and
terminated.
"""

import gc
import signal
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from kvsim.cli.calibrate import calibrate
from kvsim.cli.capacity import capacity
from kvsim.cli.catalog import catalog
from kvsim.cli.compare import compare
from kvsim.cli.conform import conform
from kvsim.cli.export import export
from kvsim.cli.init import init
from kvsim.cli.memory import memory
from kvsim.cli.paper import paper
from kvsim.cli.plan import plan
from kvsim.cli.profile import profile
from kvsim.cli.report import report
from kvsim.cli.run import run
from kvsim.cli.schema import schema
from kvsim.cli.sensitivity import sensitivity
from kvsim.cli.sweep import sweep
from kvsim.cli.trace import trace
from kvsim.cli.validate import validate
from kvsim.errors import InputError

BAD_INPUT = 2
DEFECT = 3

app = typer.Typer(
    help="Capacity planning of LLM serving: simulate a deployment before you rent it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # importing rich would double the time of --help
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(report)
app.command()(export)
app.command()(compare)
app.command()(capacity)
app.command()(init)
app.command()(sweep)
app.command()(trace)
app.command()(memory)
app.command()(conform)
app.command()(validate)
app.command()(profile)
app.command()(plan)
app.command()(sensitivity)
app.command()(paper)
app.command()(calibrate)
app.command()(catalog)
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
    # Imports make many objects and hardly any garbage: looking for it takes a tenth of the start.
    gc.set_threshold(50_000)
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGTERM, _interrupted)  # unwinds, so that nothing half-written stays
    if hasattr(signal, "SIGPIPE"):  # end quietly, as other filters do, when the reader has left
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        app()
    except InputError as error:
        _refuse(*(str(problem) for problem in error.problems))
    except OSError as error:
        _refuse(_describe(error))
    except MemoryError:
        _refuse("this machine has not enough memory for what the scenario asks for")
    except RecursionError:
        _refuse("the input is nested too deeply")
    except Exception:
        traceback.print_exc()
        sys.exit(DEFECT)


def _interrupted(number: int, _: object) -> NoReturn:
    _tell("interrupted")
    sys.exit(128 + number)


def _refuse(*messages: str) -> NoReturn:
    for message in messages:
        _tell(message)
    sys.exit(BAD_INPUT)


def _tell(message: str) -> None:
    if sys.stderr is not None:  # it may have been closed
        print(message, file=sys.stderr)


def _describe(error: OSError) -> str:
    """Say which file the system refuses, and why; pyarrow's errors only have a text."""
    if error.strerror is None:
        return f"the system refuses: {error}"
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
