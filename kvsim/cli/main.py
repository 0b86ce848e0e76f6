"""The command line: which commands there are, and how a run ends when something goes wrong.

Exit codes: 0 done (and the SLO is met, or there is none), 1 the SLO is missed or a replay differs,
2 the input or the machine does not allow it, 3 a defect of kvsim, 130 and 143 interrupted and
terminated.
"""

import atexit
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from kvsim.errors import InputError

BAD_INPUT = 2
DEFECT = 3

COMMANDS = (
    "run",
    "report",
    "export",
    "compare",
    "capacity",
    "init",
    "sweep",
    "trace",
    "memory",
    "conform",
    "validate",
    "profile",
    "plan",
    "sensitivity",
    "paper",
    "calibrate",
    "catalog",
    "schema",
)

_OBJECTS_UNSEARCHED = 250_000  # a run has made some 90,000 when it begins
# Just over 1 MiB: such a frame gets a chunk of 2 MiB, whose rest is for all other frames.
_STACK_WORDS = 140_000
# Of libraries: no threads that spin for matrices, no search of all packages for plugins.
_SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}


def app_with(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """Return the command line with these commands, each in a module of its name."""
    app = typer.Typer(
        help="Capacity planning of LLM serving: simulate a deployment before you rent it.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # importing rich would double the time of --help
        pretty_exceptions_enable=False,
    )
    for command in commands:
        app.command()(getattr(import_module(f"kvsim.cli.{command}"), command))
    app.callback()(_options)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from kvsim import __version__

        print(f"kvsim {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def on_one_stack(function: Callable[[], None]) -> Callable[[], None]:
    """Have all frames in one piece of memory, from this function on.

    CPython keeps frames in chunks of 16 KiB and gives each back once its first frame is left: a
    loop of calls across an edge asks the system for memory at each. A first frame that says it
    needs much makes the chunk so large that no edge is met (numpy's import took twice as long).
    """
    function.__code__ = function.__code__.replace(co_stacksize=_STACK_WORDS)
    return function


@on_one_stack
def main() -> None:
    """Run the command line; mistakes of the user become one message each and exit code 2."""
    # Imports make many objects and hardly any garbage, and what is left at the end the system
    # takes back at once: looking through all of it would be a third of a short run.
    gc.set_threshold(_OBJECTS_UNSEARCHED)
    atexit.register(gc.freeze)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if isinstance(sys.stdout, TextIOWrapper):  # an answer in a few other characters, not none
        sys.stdout.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGTERM, _interrupted)  # unwinds, so that nothing half-written stays
    if hasattr(signal, "SIGPIPE"):  # end quietly, as other filters do, when the reader has left
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    named = [word for word in sys.argv[1:2] if word in COMMANDS]
    try:
        app_with(named or COMMANDS)()
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
