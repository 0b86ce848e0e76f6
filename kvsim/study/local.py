"""A crew of processes on this machine."""

import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any

from kvsim.study.here import Here
from kvsim.study.tasks import Crew, DeadWorkerError, Work


def crew_of(jobs: int | None = None) -> Crew:
    """Return a crew of so many processes, by default one a core; of one: this process."""
    size = jobs or len(os.sched_getaffinity(0))
    return Here() if size == 1 else Local(size)


class Local:
    """Processes that are started afresh, so that nothing is shared by accident."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool: ProcessPoolExecutor | None = None

    def start(self, work: Work[Any, Any, Any]) -> None:
        """See `Crew`."""
        self.stop()
        self._pool = ProcessPoolExecutor(self.size, get_context("spawn"), _take_up, (work,))

    def submit(self, item: Any) -> "Future[Any]":
        """See `Crew`."""
        assert self._pool is not None, "started first"
        outcome: Future[Any] = Future()
        try:
            future = self._pool.submit(_attempt, item)
        except BrokenProcessPool:  # it broke since the last look
            outcome.set_exception(DeadWorkerError())
            return outcome
        future.add_done_callback(lambda done: _pass_on(done, outcome))
        return outcome

    def stop(self) -> None:
        """See `Crew`."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _pass_on(done: "Future[Any]", outcome: "Future[Any]") -> None:
    """Tell the outcome in words that don't depend on the kind of pool."""
    if done.cancelled():
        outcome.cancel()
    elif isinstance(done.exception(), BrokenProcessPool):
        outcome.set_exception(DeadWorkerError())
    elif (error := done.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(done.result())


# In a worker


_work: Work[Any, Any, Any] | None = None


def _take_up(work: Work[Any, Any, Any]) -> None:
    """Keep what is shared; let the parent alone answer an interrupt from the keyboard."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    global _work  # a pool has no other place for what its workers share
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _work = work


def _end_with_parent() -> None:
    """Leave nothing behind when the parent was killed: it could not tell its workers."""
    parent = parent_process()
    assert parent is not None, "this is a worker"
    parent.join()
    os._exit(1)


def _attempt(item: Any) -> Any:
    assert _work is not None, "the pool's initializer has run"
    return _work.attempt(item)
