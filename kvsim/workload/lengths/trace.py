"""Recorded lengths: those of the arrivals' own trace, or drawn from another one."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.files import ReadsFile
from kvsim.workload.limits import Printable
from kvsim.workload.traces import read_trace


class TraceLengths(ReadsFile):
    """Without `file`, each request has its own recorded lengths: arrivals must be a trace too.

    With `file`, rows of that trace are drawn with replacement.
    """

    kind: Literal["trace"] = "trace"
    file: Printable | None = None
    """CSV in the format of the Azure LLM inference traces; null: the trace of the arrivals."""

    def lengths_tokens(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw rows of `file` with replacement; InputError without one; see `LengthLaw`."""
        trace = read_trace(self.path)
        rows = rng.integers(0, len(trace), count)
        return trace.prompt_tokens[rows], trace.output_tokens[rows]
