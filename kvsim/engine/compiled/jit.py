"""numba's compiler where it is installed; without it functions stay as they are."""

import hashlib
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import kvsim.tables

Function = TypeVar("Function", bound=Callable[..., object])

try:
    import numba
except ImportError:  # it is an extra
    numba = None


def jit(function: Function) -> Function:
    """Compile a function when it is first called; its machine code is kept for later processes."""
    if numba is None:
        return function
    folder = _cache_dir()
    others = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)  # it is looked at here, and not later
    try:
        compiled: Function = numba.njit(cache=_is_writable(folder), nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = others
    return compiled


@cache
def _cache_dir() -> Path:
    """Return a folder of the user's for the machine code of these very sources.

    numba itself would only look at the file of a function, not at those of the functions and
    constants that it uses.
    """
    digest = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.glob("*.py")), Path(kvsim.tables.__file__)):
        digest.update(path.read_bytes())
    return _user_cache_dir() / "kvsim" / digest.hexdigest()[:16]


def _user_cache_dir() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    given = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return Path(given) if given else Path.home() / ".cache"


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return False
    return os.access(folder, os.W_OK)
