"""Calls dealt out to a crew; results come back as they are done, whatever happens to a worker."""

import pickle
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, Literal, Protocol, TypeVar

from kvsim.errors import BrokenLawError, InputError

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

    def error(self, where: str = "") -> InputError | BrokenLawError:
        """Return what is raised where this ends the whole; `where` is said first."""
        kind = BrokenLawError if self.kind == "defect" else InputError
        return kind(f"{where}: {self.message}" if where else self.message)


Tell = Callable[[int, int], None]  # how many items are done, of how many


@dataclass(frozen=True, slots=True)
class Work(Generic[Shared, Item, Result]):
    """What a crew does: `call(shared, item)` for each item.

    Attributes:
        call: A function of a module, so that it can be sent.
        shared: Is sent to each worker once. The files of a scenario that is in it go along to
            workers that don't see this machine's disk.
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

    def attempt_packed(self, item: bytes) -> bytes:
        """Do the same in a worker: item and result travel pickled, so that crews are alike."""
        try:
            return pickle.dumps(self.attempt(pickle.loads(item)))
        except Exception:  # the item can't be read here, or the result can't be sent
            return pickle.dumps(Failure("defect", traceback.format_exc()))


class DeadWorkerError(Exception):
    """Workers died while they had this item, or while it waited for them."""

    def __init__(self, deaths: int = 1) -> None:
        super().__init__(f"{deaths} workers died")
        self.deaths = deaths


class Crew(Protocol):
    """Workers that can be set to one work at a time, through futures."""

    @property
    def size(self) -> int:
        """How many items are at work at a time."""
        ...

    def start(self, work: Work[Any, Any, Any]) -> None:
        """Take up a work; also after a worker died, to be whole again.

        Raises:
            InputError: There is nobody who could do it.
        """
        ...

    def submit(self, item: Any) -> "Future[Any]":
        """Return a result to come.

        Its exception is a `DeadWorkerError` if a worker died, an `InputError` if nobody is left to
        work, anything else if the item can't be sent.
        """
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

    The crew stays ready for the next work, unless this one is given up before its end.

    Raises:
        InputError: There is nobody who could do the work, or nobody any more.
    """
    hand = _Hand(crew, iter(items))
    crew.start(work)
    try:
        while hand.fill():
            key, item, future = hand.next_done()
            error = future.exception()
            if error is None:
                yield key, future.result()
            elif isinstance(error, DeadWorkerError):
                if hand.is_given_up(key, item, error.deaths):
                    yield key, Failure("killed", f"{hand.deaths[key]} workers died of it")
                crew.start(work)
            elif isinstance(error, InputError):
                raise error
            else:
                yield key, Failure("defect", "".join(traceback.format_exception(error)))
    except BaseException:
        crew.stop()
        raise


class _Hand(Generic[Key, Item]):
    """What is under way, and what comes next."""

    def __init__(self, crew: Crew, coming: Iterator[tuple[Key, Item]]) -> None:
        self.deaths: dict[Key, int] = {}
        self._crew = crew
        self._coming = coming
        self._suspects: deque[tuple[Key, Item]] = deque()  # were under way when a worker died
        self._running: dict[Future[Any], tuple[Key, Item]] = {}
        self._done: SimpleQueue[Future[Any]] = SimpleQueue()

    def fill(self) -> bool:
        """Set the crew to work, and tell whether anything is under way.

        One suspect is run alone. Else there are items for each worker, and as many to wait, so that
        nobody is idle.
        """
        if self._suspects:
            if not self._running:
                self._submit(*self._suspects.popleft())
            return True
        most = 2 * self._crew.size if self._crew.size > 1 else 1
        while len(self._running) < most:
            following = next(self._coming, None)
            if following is None:
                break
            self._submit(*following)
        return bool(self._running)

    def next_done(self) -> tuple[Key, Item, "Future[Any]"]:
        """Wait for the next item that is done."""
        future = self._done.get()
        return *self._running.pop(future), future

    def is_given_up(self, key: Key, item: Item, deaths: int) -> bool:
        """Count deaths, one where it was not alone; tell whether they are too many to try again."""
        self.deaths[key] = self.deaths[key] + deaths if key in self.deaths else 1
        if self.deaths[key] >= MOST_DEATHS:
            return True
        self._suspects.append((key, item))
        return False

    def _submit(self, key: Key, item: Item) -> None:
        future = self._crew.submit(item)
        self._running[future] = key, item
        future.add_done_callback(self._done.put)
