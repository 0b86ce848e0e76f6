"""Recorded lengths: those of the arrivals' own trace, or drawn from another one."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.limits import Printable
from kvsim.workload.traces.policy import ReadsTrace


class TraceLengths(ReadsTrace):
    """Without `file`, each request has its own recorded lengths: arrivals must be a trace too.

    With `file`, rows of that log are drawn with replacement; it needs no times.
    """

    kind: Literal["trace"] = "trace"
    file: Printable | None = None
    """Request log, plain or compressed; null: the trace of the arrivals."""

    def lengths_tokens(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw rows of `file` with replacement; InputError without one; see `LengthLaw`."""
        prompt, output = self.read_lengths()
        rows = rng.integers(0, len(prompt), count)
        return prompt[rows], output[rows]
