"""Calls dealt out to a crew; results come back as they are done, whatever happens to a worker."""

import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from kvsim.errors import InputError

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")
Shared = TypeVar("Shared")

MOST_DEATHS = 3  # of workers at one item; it is given up then


@dataclass(frozen=True, slots=True)
class Failure:
    """What is recorded instead of a result.

    Attributes:
        kind: `refused`: the input allows no result; `defect`: kvsim failed, `message` ends with
            the traceback; `killed`: workers died of it, for want of memory as a rule.
        message: What happened, for the user.
    """

    kind: Literal["refused", "defect", "killed"]
    message: str


def result_of(outcome: Result | Failure) -> Result:
    """Return a result, where one failure ends the whole.

    Raises:
        InputError: The input, or this machine, allows no result.
        RuntimeError: kvsim failed.
    """
    if not isinstance(outcome, Failure):
        return outcome
    if outcome.kind == "defect":
        raise RuntimeError(outcome.message)
    raise InputError(outcome.message)


@dataclass(frozen=True, slots=True)
class Work(Generic[Shared, Item, Result]):
    """What a crew does: `call(shared, item)` for each item.

    `call` is a function of a module, so that it can be sent; `shared` is sent to each worker once.
    """

    call: Callable[[Shared, Item], Result]
    shared: Shared

    def attempt(self, item: Item) -> Result | Failure:
        """Make the call; an error becomes a failure, which can be sent from anywhere."""
        try:
            return self.call(self.shared, item)
        except InputError as error:
            return Failure("refused", str(error))
        except MemoryError:
            return Failure("killed", "this machine has not enough memory for it")
        except Exception:
            return Failure("defect", traceback.format_exc())


class DeadWorkerError(Exception):
    """A worker died while it had this item, or while the item waited for it."""


class Crew(Protocol):
    """Workers that can be set to one work at a time, through futures."""

    @property
    def size(self) -> int:
        """How many items are at work at a time."""
        ...

    def start(self, work: Work[Any, Any, Any]) -> None:
        """Take up a work; also after a worker died, to be whole again."""
        ...

    def submit(self, item: Any) -> "Future[Any]":
        """Return a result to come; its exception is a `DeadWorkerError` if a worker died."""
        ...

    def stop(self) -> None:
        """Give up what isn't done, and let the workers go."""
        ...


def run_tasks(
    crew: Crew, work: Work[Shared, Item, Result], items: Iterable[tuple[Key, Item]]
) -> Iterator[tuple[Key, Result | Failure]]:
    """Yield the result of each item with its key, in the order in which they are done.

    Items are taken as there is room for them, so that there may be many. When a worker dies,
    everything that was under way is done again, one at a time, so that the item that kills workers
    is known by name: after three deaths it is a failure. Finished items are never lost.
    """
    coming = iter(items)
    suspects: deque[tuple[Key, Item]] = deque()  # were under way when a worker died
    deaths: dict[Key, int] = {}
    running: dict[Future[Any], tuple[Key, Item]] = {}
    crew.start(work)
    try:
        while True:
            _fill(crew, running, coming, suspects)
            if not running:
                return
            broken = False
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                key, item = running.pop(future)
                if not isinstance(future.exception(), DeadWorkerError):
                    yield key, future.result()
                    continue
                broken = True
                deaths[key] = deaths.get(key, 0) + 1
                if deaths[key] >= MOST_DEATHS:
                    yield key, Failure("killed", f"{MOST_DEATHS} workers died of it")
                else:
                    suspects.append((key, item))
            if broken:
                crew.start(work)
    finally:
        crew.stop()


def _fill(
    crew: Crew,
    running: dict[Future[Any], tuple[Key, Item]],
    coming: Iterator[tuple[Key, Item]],
    suspects: deque[tuple[Key, Item]],
) -> None:
    """Set the crew to work: one suspect alone, or items for each worker and one more to wait."""
    if suspects:
        if not running:
            key, item = suspects.popleft()
            running[crew.submit(item)] = key, item
        return
    while len(running) < 2 * crew.size:
        try:
            key, item = next(coming)
        except StopIteration:
            return
        running[crew.submit(item)] = key, item
