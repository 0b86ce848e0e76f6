"""kvsim: how many GPUs, of which kind, for this traffic, and with which latency.

In Python: `load`, `run`, `sweep`, `capacity`, `plan` (docs/python.md), imported as they are used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.api import PlanOptions, capacity, load, plan, run, sweep

__version__ = "0.1.0"
__all__ = ["PlanOptions", "__version__", "capacity", "load", "plan", "run", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import kvsim.api  # takes as long as to run something

    return getattr(kvsim.api, name)


def __dir__() -> list[str]:
    return [*__all__]
