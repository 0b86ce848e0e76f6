"""A progress bar on stderr: simulated time and requests done, variant by variant."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvsim.rundir import Progress as Tell
from kvsim.units import NS_PER_S, format_duration


@contextmanager
def progress_of(variants: Sequence[str], requests: int) -> Iterator[Tell | None]:
    """Yield what a run tells its progress to; None, unless stderr is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():  # it may have been closed
        yield None
        return
    # Importing rich takes longer than a small run: only who sees the bar pays for it.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} requests, {task.fields[simulated]} simulated"),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=Console(file=sys.stderr))
    with bars:
        tasks: dict[str, TaskID] = {
            name: bars.add_task(name[:20], total=requests, simulated="0 s") for name in variants
        }

        def tell(variant: str, now_ns: int, left: int) -> None:
            simulated = format_duration(now_ns / NS_PER_S)
            bars.update(tasks[variant], completed=left, simulated=simulated)

        yield tell


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
