"""Recorded requests in memory, whatever file they came from: columns, not objects."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.requests import Segments


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded requests in order of arrival; int64 arrays of shape (requests,).

    Attributes:
        arrival_ns: Counts from the first request of the file, exactly; never decreases.
        prompt_tokens: Prompt lengths, at least 1.
        output_tokens: Answer lengths, at least 1.
        session: Number of each request's conversation, -1 for none; None if the file knows none.
        segments: What the prompts consist of; None if the file doesn't say.
        max_tokens: Limits that the clients set, `NO_LIMIT` for none; None if the file doesn't say.
        group: Samples of one request (n > 1) share a number and are neighbours; None: no samples.
        horizon_ns: When arrivals stopped; None: just after the last one.
        notes: What the reader left out, in words.
    """

    arrival_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    session: NDArray[np.int64] | None = None
    segments: Segments | None = None
    max_tokens: NDArray[np.int64] | None = None
    group: NDArray[np.int64] | None = None
    horizon_ns: int | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def holds_samples(self) -> bool:
        """Whether some request has several samples, each with a row."""
        return self.group is not None and bool((np.diff(self.group) == 0).any())

    def rows(self, first: int, end: int | None) -> "Trace":
        """Return the requests from number `first` up to, not including, `end` (None: the rest)."""
        return self.take(np.arange(len(self), dtype=np.int64)[first:end])

    def take(self, numbers: NDArray[np.int64]) -> "Trace":
        """Return the requests with these numbers, in this order."""
        changed: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                changed[field.name] = value[numbers]
            elif isinstance(value, Segments):
                changed[field.name] = value.take(numbers)
        return replace(self, **changed)
