"""Runs all chapters: their tasks in processes side by side, then what they make of the results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kvsim.errors import InputError, Problem
from kvsim.paper import (
    address_space,
    block_sizes,
    concurrency,
    documents,
    four_samples,
    kv_shares,
    limits,
    memory_sizes,
    sharing,
    sustained,
    swapping,
    system_prompt,
)
from kvsim.paper.chapter import Chapter
from kvsim.paper.tasks import Task
from kvsim.study.local import crew_of
from kvsim.study.tasks import Failure, Tell, Work, run_tasks


class ChapterModule(Protocol):
    """What a module of this package is that has a chapter."""

    def tasks(self, folder: Path, quick: bool) -> Mapping[str, Task]:
        """Return the simulations that it needs, by names of its own."""
        ...

    def chapter(self, results: Mapping[str, Any]) -> Chapter:
        """Return what it makes of their results."""
        ...


# The longest tasks first, so that no core is left alone with one at the end.
CHAPTERS: Mapping[str, ChapterModule] = {
    "table1": memory_sizes,
    "figure2": kv_shares,
    "figure12": sustained,
    "figure18b": block_sizes,
    "figure19": swapping,
    "addresses": address_space,
    "limits": limits,
    "concurrency": concurrency,
    "sharing": sharing,
    "system_prompt": system_prompt,
    "four_samples": four_samples,
    "documents": documents,
}
_HEAVIEST = ("figure12", "figure2", "figure18b")


def run_chapters(
    folder: Path,
    quick: bool = False,
    jobs: int = 1,
    tell: Tell | None = None,
) -> list[Chapter]:
    """Simulate all that the chapters ask for.

    Args:
        folder: Where the scenario files are.
        quick: Minutes of simulated time instead of hours: figures are rough.
        jobs: Processes at work.
        tell: Told how many tasks are done, of how many.

    Raises:
        InputError: The folder or a file is not there, or a file is wrong.
    """
    if not folder.is_dir():
        what = "is no folder with the paper's scenarios; run in kvsim's repository, or name it"
        raise InputError(Problem(what, str(folder)))
    tasks = {
        (key, name): task
        for key in sorted(CHAPTERS, key=lambda key: key not in _HEAVIEST)
        for name, task in CHAPTERS[key].tasks(folder, quick).items()
    }
    found: dict[tuple[str, str], Any] = {}
    for place, outcome in run_tasks(crew_of(jobs), Work(_result, None), tasks.items()):
        if isinstance(outcome, Failure):
            raise outcome.error()
        found[place] = outcome
        if tell:
            tell(len(found), len(tasks))
    # In the order of the tasks, however they were done.
    results = {key: {n: found[k, n] for k, n in tasks if k == key} for key in CHAPTERS}
    return [module.chapter(results[key]) for key, module in CHAPTERS.items()]


def _result(_: None, task: Task) -> Any:
    return task.run()


def as_document(chapters: Sequence[Chapter]) -> dict[str, Any]:
    """Return the numbers of the page, ready for JSON."""
    return {chapter.key: chapter.as_dict() for chapter in chapters}
