"""A crew of processes on this machine."""

import gc
import hashlib
import os
import pickle
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from typing import Any

from kvsim.errors import InputError
from kvsim.study.here import Here
from kvsim.study.tasks import Crew, DeadWorkerError, Work

_NOBODY_BEGAN = (
    "the worker processes end before they have begun. A script that has work done by several "
    'processes must call it below `if __name__ == "__main__":`, since each of them reads the '
    "script; else what they say themselves stands above. With one job there are no processes"
)


def crew_of(jobs: int | None = None) -> Crew:
    """Return a crew of so many processes, by default one a core; of one: this process.

    Raises:
        InputError: It is no number of processes.
    """
    if jobs is not None and not (isinstance(jobs, int) and jobs >= 1):
        raise InputError(f"jobs: should be a whole number from 1 on, not {jobs!r}")
    size = _cores() if jobs is None else jobs
    return Here() if size == 1 else Local(size)


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Local:
    """Processes that are started afresh, so that nothing is shared by accident.

    They live from the first work to the last, until `stop`, or until nobody has this object any
    more. Each keeps one end of a leash: it ends when the other end is closed, also because this
    process was killed.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool: ProcessPoolExecutor | None = None
        self._broken = False
        self._work = b""
        self._name = ""

    def start(self, work: Work[Any, Any, Any]) -> None:
        """See `Crew`."""
        if getattr(current_process(), "_inheriting", False):
            sys.exit(1)  # a worker that reads a script without a guard; its parent tells
        self._work = pickle.dumps(work)
        self._name = hashlib.sha256(self._work).hexdigest()
        if self._broken and not self._began.poll():
            raise InputError(_NOBODY_BEGAN)
        if self._pool is None or self._broken:
            self.stop()
            self._open()

    def submit(self, item: Any) -> "Future[Any]":
        """See `Crew`."""
        outcome: Future[Any] = Future()
        try:
            self._send(pickle.dumps(item), None, outcome)
        except Exception as error:  # whatever an object raises that can't be pickled
            outcome.set_exception(error)
        return outcome

    def stop(self) -> None:
        """See `Crew`."""
        if self._pool is not None:
            self._leash.close()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _open(self) -> None:
        context = get_context("spawn")
        end, self._leash = context.Pipe(duplex=False)
        self._began, begun = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(self.size, context, _begin, (end, begun))
        self._broken = False

    def _send(self, item: bytes, work: bytes | None, outcome: "Future[Any]") -> None:
        assert self._pool is not None, "started first"
        try:
            with _interrupts_held():
                future = self._pool.submit(_attempt, self._name, work, item)
        except RuntimeError:  # it broke since the last look, or was stopped
            self._broken = True
            outcome.set_exception(DeadWorkerError())
        else:
            future.add_done_callback(lambda done: self._pass_on(done, item, outcome))

    def _pass_on(self, done: "Future[bytes | None]", item: bytes, outcome: "Future[Any]") -> None:
        """Tell the outcome in words that don't depend on the kind of pool."""
        if done.cancelled():
            outcome.cancel()
        elif isinstance(done.exception(), BrokenProcessPool):
            self._broken = True
            outcome.set_exception(DeadWorkerError())
        elif (error := done.exception()) is not None:
            outcome.set_exception(error)
        elif (result := done.result()) is None:  # it had not been told of the work yet
            self._send(item, self._work, outcome)
        else:
            try:
                outcome.set_result(pickle.loads(result))
            except Exception as error:
                outcome.set_exception(error)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let a process that is started meanwhile never see an interrupt from the keyboard."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In a worker

_MOST_WORKS = 4  # that are remembered
_works: OrderedDict[str, Work[Any, Any, Any]] = OrderedDict()


def _begin(leash: Connection, begun: Connection) -> None:
    """Let the parent alone answer an interrupt from the keyboard, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(leash,), daemon=True).start()
    begun.send_bytes(b"begun")


def _end_with(leash: Connection) -> None:
    """Leave nothing behind: wait until the other end is closed, which may have been killed."""
    try:
        leash.poll(None)
    finally:
        os._exit(1)


def _attempt(name: str, work: bytes | None, item: bytes) -> bytes | None:
    """Return a packed result; None if the work of this name isn't known here and was not sent."""
    if work is not None:
        _learn(name, work)
    return _works[name].attempt_packed(item) if name in _works else None


def _learn(name: str, work: bytes) -> None:
    first = not _works
    _works[name] = pickle.loads(work)
    while len(_works) > _MOST_WORKS:
        _works.popitem(last=False)
    if first:
        # All that was imported stays: to look for garbage in it takes longer than half a point.
        gc.collect()
        gc.freeze()
