"""Request logs, read as they are published: each file here is one format."""

from pathlib import Path

from kvsim.workload.traces import azure
from kvsim.workload.traces.trace import Trace

__all__ = ["Trace", "read_trace"]


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        InputError: With the line of every bad row (the first twenty of them).
    """
    return azure.read_trace(path)
