"""Options of commands that simulate much: who does it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvsim.study.tasks import Crew

Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Processes at work; by default one a core.")
]
Dask = Annotated[
    str | None,
    typer.Option("--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster to run on."),
]


@contextmanager
def crew(jobs: int | None, dask: str | None = None) -> Iterator["Crew"]:
    """Yield who does the work; they are let go at the end, also after an error.

    Raises:
        InputError: It is no number of processes, or no such cluster answers.
    """
    from kvsim.study.local import crew_of

    with outliving_workers():
        if dask is None:
            workers = crew_of(jobs)
        else:
            from kvsim.study.dask import dask_crew

            workers = dask_crew(dask)
        try:
            yield workers
        finally:
            workers.stop()


@contextmanager
def outliving_workers() -> Iterator[None]:
    """Be told when something is sent to a worker that has died, and not die of it.

    A command ends quietly where its reader has left (`kvsim.cli.main`), and the system takes a
    worker for a reader, too.
    """
    if not hasattr(signal, "SIGPIPE"):  # Windows
        yield
        return
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)
