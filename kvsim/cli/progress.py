"""Progress bars on stderr: simulated time and requests done by variant, then replications."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvsim.rundir import Progress as Tell
from kvsim.units import NS_PER_S, format_duration

TellDone = Callable[[int, int], None]  # simulations that are done, of how many


@contextmanager
def progress_of(
    variants: Sequence[str], requests: int
) -> Iterator[tuple[Tell | None, TellDone | None]]:
    """Yield what a run and its further replications tell their progress to.

    Both are None, unless stderr is a terminal.
    """
    if sys.stderr is None or not sys.stderr.isatty():  # it may have been closed
        yield None, None
        return
    # Importing rich takes longer than a small run: only who sees the bar pays for it.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[what]}"),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=Console(file=sys.stderr))
    with bars:
        tasks: dict[str, TaskID] = {
            name: bars.add_task(name[:20], total=requests, what="requests") for name in variants
        }
        others: list[TaskID] = []

        def tell(variant: str, now_ns: int, left: int) -> None:
            simulated = format_duration(now_ns / NS_PER_S)
            bars.update(tasks[variant], completed=left, what=f"requests, {simulated} simulated")

        def tell_done(done: int, of: int) -> None:
            if not others:
                others.append(bars.add_task("replications", total=of, what="simulations"))
            bars.update(others[0], completed=done)

        yield tell, tell_done


@contextmanager
def counted(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield what is told how many of how many are done; None, unless stderr is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():  # it may have been closed
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr)) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, of: bars.update(task, completed=done, total=of)
