"""What workers are asked to do in tests: functions of a module, so that they can be sent."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from kvsim.errors import InputError, Problem


def add(shared: int, item: int) -> int:
    return shared + item


def pid(shared: object, item: object) -> int:
    time.sleep(0.02)
    return os.getpid()


def refuse(shared: object, item: object) -> None:
    raise InputError(Problem("is wrong", "a.yaml", 3), Problem("is wrong, too"))


def divide(shared: int, item: int) -> float:
    return shared / item


def exhaust(shared: object, item: object) -> None:
    raise MemoryError


def leave(shared: object, item: object) -> None:
    raise SystemExit(7)


def unsendable(shared: object, item: int) -> Any:
    return (lambda: item) if item % 2 else item


def unreadable(shared: object, item: int) -> Any:
    return Unreadable() if item % 2 else item


class Unreadable:
    """Can be sent, but not received."""

    def __reduce__(self) -> tuple[Any, ...]:
        return divide, (1, 0)


def killed_by(killers: frozenset[int], item: int) -> int:
    if item in killers:
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return item**2


def killed_once(folder: Path, item: int) -> int:
    """Die at the first attempt at each item; the folder remembers."""
    try:
        (folder / str(item)).touch(exist_ok=False)
    except FileExistsError:
        return item
    os.kill(os.getpid(), signal.SIGKILL)
    return -1


def note_and_sleep(folder: Path, item: int) -> int:
    (folder / f"{os.getpid()}.worker").touch()
    time.sleep(600)
    return item


def rest(shared: object, item: int) -> int:
    time.sleep(0.2 * item)
    return item
