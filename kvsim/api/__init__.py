"""The Python API: the commands as functions, their results as objects with pandas tables.

A mistake in the input raises `kvsim.errors.InputError`, as on the command line. Everything runs in
this process unless `jobs` says otherwise; with more, a script needs its main guard.
"""

from kvsim.api.runs import RunResult, run
from kvsim.api.scenarios import load
from kvsim.api.studies import CapacityResult, PlanResult, SweepResult, capacity, plan, sweep
from kvsim.studies.plan.candidates import Options as PlanOptions

__all__ = [
    "CapacityResult",
    "PlanOptions",
    "PlanResult",
    "RunResult",
    "SweepResult",
    "capacity",
    "load",
    "plan",
    "run",
    "sweep",
]
