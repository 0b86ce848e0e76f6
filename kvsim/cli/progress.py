"""Progress bars on stderr: of a run by variant and replications; of anything that is counted."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from kvsim.rundir.write import Progress as TellRun
from kvsim.units import NS_PER_S, format_duration

if TYPE_CHECKING:
    from kvsim.study.tasks import Tell


class TellCounted(Protocol):
    """Who is told how many are done."""

    def __call__(self, done: int, of: int, doing: str = ..., /) -> None:
        """Take in how many are done, of how many, and what is being done if it changes."""
        ...


@contextmanager
def progress_of(
    variants: Sequence[str], requests: int
) -> "Iterator[tuple[TellRun | None, Tell | None]]":
    """Yield what a run and its further replications tell their progress to.

    Both are None, unless stderr is a terminal.
    """
    if not _is_seen():
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
def counted(what: str) -> Iterator[TellCounted | None]:
    """Yield what is told how many are done; None, unless stderr is a terminal.

    The bar shows rate and time left; what was there before the first telling counts for neither.
    """
    if not _is_seen():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.3g}/s" if task.speed else "")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(""),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr)) as bars:
        task = bars.add_task(what, total=None)

        def tell(done: int, of: int, doing: str = what) -> None:
            if bars.tasks[0].total is None:
                bars.reset(task, total=of, completed=done)
            bars.update(task, completed=done, total=of, description=doing)

        yield tell


def _is_seen() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # it may have been closed
