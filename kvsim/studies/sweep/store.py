"""Every result that a directory has ever seen, by the key of its point, in one file of SQLite.

The file may be shared by several sweeps at once, and its writers may be killed at any moment: a
result is there as a whole or not at all. Only drivers write, workers never.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvsim.errors import InputError, Problem
from kvsim.studies.sweep.outcome import DONE, Outcome
from kvsim.study.tasks import Failure

STORE = "results.sqlite"
_PATIENCE_S = 60  # while another driver writes
_TABLE = """
CREATE TABLE IF NOT EXISTS results (
  key TEXT PRIMARY KEY,  -- kvsim.study.point.point_key
  status TEXT NOT NULL,  -- done, or the kind of a failure
  content TEXT NOT NULL  -- JSON of what came out, or the failure's message
) WITHOUT ROWID
"""


class Store:
    """Results by key; see `opened`."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def status(self, key: str) -> str | None:
        """Return `done` or the kind of failure, or None if there is no result."""
        row = self._database.execute("SELECT status FROM results WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def get(self, key: str) -> Outcome | Failure:
        """Return a result that is there."""
        query = "SELECT status, content FROM results WHERE key = ?"
        status, content = self._database.execute(query, (key,)).fetchone()
        if status != DONE:
            return Failure(status, content)
        try:
            return Outcome(**json.loads(content))
        except (TypeError, ValueError) as error:
            raise sqlite3.DatabaseError(f"the result {key} is damaged") from error

    def put(self, key: str, result: Outcome | Failure) -> None:
        """Keep a result; from now on no death of this process loses it."""
        if isinstance(result, Failure):
            row = (key, str(result.kind), result.message)
        else:
            row = (key, DONE, json.dumps(result.as_dict(), allow_nan=False))
        self._database.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", row)


def is_failure(status: str | None) -> bool:
    """Tell whether a status is that of a failure."""
    return status not in {None, DONE}


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    """Open a store, which is made if there is none.

    Raises:
        InputError: It is no such store, or can't be written.
    """
    try:
        database = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)
        try:
            _prepare(database)
            yield Store(database)
        finally:
            database.close()
    except sqlite3.Error as error:
        raise InputError(Problem(f"results can't be kept here: {error}", str(path))) from error


def _prepare(database: sqlite3.Connection) -> Any:
    """Write ahead, where the file system can: commits take microseconds, readers don't wait.

    Without a sync at each commit a loss of power may lose the last results, never the file.
    """
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute(_TABLE)
