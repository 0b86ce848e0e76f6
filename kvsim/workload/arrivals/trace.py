"""Recorded arrivals: the requests of a trace, at their own times or faster or slower."""

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from kvsim.errors import InputError
from kvsim.units import NS_PER_S, seconds_to_ns
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.files import ReadsFile
from kvsim.workload.limits import Printable, Seconds, refuse_late
from kvsim.workload.renewal import horizon_of
from kvsim.workload.traces import Trace, read_trace


class TraceArrivals(ReadsFile):
    """Replays a trace in the Azure format, or a cut of it.

    The run's clock starts at the cut's start. Its horizon is the cut's length over `rate_scale`;
    without `end_s` the cut ends just after the last request.
    """

    kind: Literal["trace"] = "trace"
    file: Printable
    """CSV in the format of the Azure LLM inference traces, beside the scenario file."""
    rate_scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """2.0: twice the recorded rate, times are divided by 2."""
    start_s: Seconds = 0.0
    """Start of the cut, in recorded seconds after the trace's first request."""
    end_s: Seconds | None = None
    """End of the cut (not included), in recorded seconds; null: to the last request."""

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Return the recorded arrivals and lengths, nothing is drawn; see `ArrivalProcess`."""
        trace, length_ns = self._cut()
        if count is not None and count > len(trace):
            raise InputError(
                f"num_requests is {count}, but this cut of {self.file} holds {len(trace)} requests"
            )
        if duration_ns is not None and duration_ns > length_ns:
            raise InputError(
                f"duration_s is {duration_ns / NS_PER_S:g}, but this cut of {self.file} lasts "
                f"{length_ns / NS_PER_S:g} s at rate_scale {self.rate_scale:g}"
            )
        end_ns = length_ns if duration_ns is None else duration_ns
        kept = trace.rows(0, int(np.searchsorted(trace.arrival_ns, end_ns))).rows(0, count)
        return Arrivals(
            kept.arrival_ns,
            horizon_of(kept.arrival_ns, count, end_ns),
            recorded=kept,
        )

    def _cut(self) -> tuple[Trace, int]:
        """Return the cut, on the run's clock, and how long it lasts there in nanoseconds."""
        whole = read_trace(self.path)
        start_ns = seconds_to_ns(self.start_s)
        last_ns = int(whole.arrival_ns[-1])
        end_ns = last_ns + 1 if self.end_s is None else seconds_to_ns(self.end_s)
        if end_ns > last_ns + 1:
            raise InputError(
                f"end_s is {self.end_s:g}, but {self.file} ends after {last_ns / NS_PER_S:g} s"
            )
        first, end = (int(row) for row in np.searchsorted(whole.arrival_ns, [start_ns, end_ns]))
        if first >= end:
            raise InputError(
                f"no request of {self.file} lies between start_s {self.start_s:g} and end_s "
                f"{end_ns / NS_PER_S:g}"
            )
        cut = whole.rows(first, end)
        refuse_late((end_ns - start_ns) / self.rate_scale)
        times_ns = np.rint((cut.arrival_ns - start_ns) / self.rate_scale).astype(np.int64)
        length_ns = round((end_ns - start_ns) / self.rate_scale)
        return replace(cut, arrival_ns=times_ns), max(length_ns, int(times_ns[-1]) + 1)
