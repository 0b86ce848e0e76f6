"""A crew that stays between works of the same kind: workers take a second to start."""

from concurrent.futures import Future
from types import TracebackType
from typing import Any

from kvsim.study.tasks import Crew, Work


class Kept:
    """A crew whose workers are let go at the end of a `with` block, not after each `run_tasks`."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._idle: Work[Any, Any, Any] | None = None  # what the waiting workers can take up again
        self._work: Work[Any, Any, Any] | None = None
        self._running: set[Future[Any]] = set()

    @property
    def size(self) -> int:
        """See `Crew`."""
        return self._crew.size

    def start(self, work: Work[Any, Any, Any]) -> None:
        """See `Crew`; workers that wait with this very work go on."""
        if self._idle is None or self._idle is not work:
            self._crew.start(work)
        self._idle, self._work = None, work

    def submit(self, item: Any) -> "Future[Any]":
        """See `Crew`."""
        future = self._crew.submit(item)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def stop(self) -> None:
        """Keep the workers, unless some are still at work that nobody waits for."""
        if self._running:
            self._crew.stop()
            self._idle = None
        else:
            self._idle = self._work

    def __enter__(self) -> "Kept":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._crew.stop()
        self._idle = None
