"""A crew of the imagination: it finishes items in any order, and dies as it is told."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from random import Random
from typing import Any

from kvsim.study.tasks import DeadWorkerError, Work


class Imagined:
    """A thread of it finishes one of the items under way for each that was submitted.

    Args:
        size: How many workers.
        order: Chooses which item is done next.
        deaths: Item → how often it kills all workers.
        outcomes: Item → errors of its first attempts.
    """

    def __init__(
        self,
        size: int,
        order: Random | None = None,
        deaths: Mapping[int, int] | None = None,
        outcomes: Mapping[int, list[Exception]] | None = None,
    ) -> None:
        self.size = size
        self.stopped = False
        self.attempts: Counter[int] = Counter()
        self._order = order or Random(0)
        self._deaths = Counter(deaths or {})
        self._outcomes = dict(outcomes or {})
        self._under_way: list[tuple[int, Future[Any]]] = []
        self._lock = threading.Lock()
        self._submitted: SimpleQueue[bool] = SimpleQueue()
        self._dead = False
        threading.Thread(target=self._run, daemon=True).start()

    def start(self, work: Work[Any, Any, Any]) -> None:
        self._work = work
        self._dead = False

    def submit(self, item: int) -> "Future[Any]":
        future: Future[Any] = Future()
        with self._lock:
            if self._dead:
                future.set_exception(DeadWorkerError())
                return future
            assert len(self._under_way) < 2 * self.size
            self._under_way.append((item, future))
        self._submitted.put(True)
        return future

    def stop(self) -> None:
        self.stopped = True

    def _run(self) -> None:
        while self._submitted.get():
            time.sleep(0.0003)  # more of them may come meanwhile
            with self._lock:
                done = self._finish_one() if self._under_way else []
            for future, result in done:
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _finish_one(self) -> list[tuple["Future[Any]", Any]]:
        """Return what became of one item, or of all of them."""
        item, future = self._under_way.pop(self._order.randrange(len(self._under_way)))
        self.attempts[item] += 1
        if self._outcomes.get(item):
            return [(future, self._outcomes[item].pop(0))]
        if not self._deaths[item]:
            return [(future, self._work.attempt(item))]
        self._deaths[item] -= 1
        self._dead = True
        lost = [future, *(one for _, one in self._under_way)]
        self._under_way = []
        return [(one, DeadWorkerError()) for one in lost]
