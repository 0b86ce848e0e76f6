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

    # A call would hand over each array by a dozen numbers, and count who refers to it: that takes
    # five times as long. So all becomes one function, which makes no arrays and raises nothing.
    compiled: Function = numba.njit(
        cache=True,  # it keeps object files for its cache
        forceinline=True,
        _nrt=False,
        error_model="numpy",
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )(function)
    return compiled
