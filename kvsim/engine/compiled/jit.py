"""Marks what numba compiles, in the process that compiles; everywhere else it is plain Python."""

import sys
from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])

BUILDER = "kvsim.engine.compiled.build"  # the module that is run to compile


def jit(function: Function) -> Function:
    """Return a function, compiled when it is first called if this process is there for that."""
    if sys.orig_argv[1:3] != ["-m", BUILDER]:
        return function
    import numba

    compiled: Function = numba.njit(cache=True, _nrt=False, forceinline=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)  # it keeps object files for its cache
    return compiled
