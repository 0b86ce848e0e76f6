"""A crew of one: this process."""

from concurrent.futures import Future
from typing import Any

from kvsim.study.tasks import Work


class Here:
    """Makes each call at once, in this process: nothing is sent, a debugger sees all."""

    size = 1

    def __init__(self) -> None:
        self._work: Work[Any, Any, Any] | None = None

    def start(self, work: Work[Any, Any, Any]) -> None:
        """See `Crew`."""
        self._work = work

    def submit(self, item: Any) -> "Future[Any]":
        """See `Crew`."""
        assert self._work is not None, "started first"
        future: Future[Any] = Future()
        future.set_result(self._work.attempt(item))
        return future

    def stop(self) -> None:
        """See `Crew`."""
        self._work = None
