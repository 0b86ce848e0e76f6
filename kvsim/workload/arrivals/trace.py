"""Recorded arrivals: the requests of a trace, at their own times or faster or slower."""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvsim.errors import InputError
from kvsim.units import NS_PER_S, seconds_to_ns
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.arrivals._renewal import horizon_of
from kvsim.workload.limits import MOST_TOKENS, Printable, Seconds, refuse_late
from kvsim.workload.requests import NO_LIMIT, Segments
from kvsim.workload.traces import Trace
from kvsim.workload.traces.policy import ReadsTrace


class TraceArrivals(ReadsTrace):
    """Replays a request log, or a cut of it.

    The run's clock starts at the cut's start. Its horizon is the cut's length over `rate_scale`;
    without `end_s` the cut ends just after the last request.
    """

    kind: Literal["trace"] = "trace"
    file: Printable
    """Request log, plain or compressed by gzip or zstd, beside the scenario file."""
    rate_scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """2.0: twice the recorded rate, times are divided by 2."""
    start_s: Seconds = 0.0
    """Start of the cut, in recorded seconds after the trace's first request."""
    end_s: Seconds | None = None
    """End of the cut (not included), in recorded seconds; null: to the last request."""
    sample_fraction: float = Field(default=1.0, gt=0, le=1)
    """Each session (each request, where the log knows none) is kept with this probability."""
    prompt_scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Prompt lengths are multiplied by it and rounded; at least one token is left."""
    output_scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """The same for answer lengths, and for limits that the log records."""
    resample: bool = False
    """Keep the arrival times, but draw each request's lengths from all requests, prompt and
    answer together and with replacement: another trace of the same kind with every seed."""

    def arrivals(
        self, count: int | None, duration_ns: int | None, rng: np.random.Generator
    ) -> Arrivals:
        """Return the recorded arrivals and requests, drawn only as asked; see `ArrivalProcess`."""
        cut, length_ns = self._cut()
        trace = self._scaled(self._resampled(self._sampled(cut, rng), rng))
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
        if count is not None and trace.rows(count - 1, count + 1).holds_samples:
            raise InputError(
                f"num_requests counts samples in {self.file}: {count} of them end within a request"
            )
        horizon_ns = horizon_of(kept.arrival_ns, count, end_ns)
        if trace.horizon_ns == 0 and count is None and duration_ns is None and self.end_s is None:
            horizon_ns = 0  # recorded of a run whose own end is its horizon
        return Arrivals(kept.arrival_ns, horizon_ns, recorded=kept)

    def _cut(self) -> tuple[Trace, int]:
        """Return the cut, on the run's clock, and how long it lasts there in nanoseconds."""
        whole = self.read()
        start_ns = seconds_to_ns(self.start_s)
        last_ns = max(int(whole.arrival_ns[-1]), (whole.horizon_ns or 0) - 1)
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

    def _sampled(self, trace: Trace, rng: np.random.Generator) -> Trace:
        """Keep each session, group of samples or request with the probability asked for."""
        if self.sample_fraction == 1:
            return trace
        units = _units(trace)
        kept = rng.random(int(units.max()) + 1) < self.sample_fraction
        if not kept[units].any():
            raise InputError(
                f"sample_fraction {self.sample_fraction:g} leaves no request of {self.file}"
            )
        return trace.take(np.flatnonzero(kept[units]))

    def _resampled(self, trace: Trace, rng: np.random.Generator) -> Trace:
        """Redraw the lengths if asked; InputError where they can't be told from the contents."""
        if not self.resample:
            return trace
        if trace.segments is not None or _has_samples(trace):
            raise InputError(
                f"resample: {self.file} records what prompts have in common, which lengths drawn "
                "anew would contradict"
            )
        drawn = trace.take(rng.integers(0, len(trace), len(trace)))
        return replace(drawn, arrival_ns=trace.arrival_ns, session=trace.session, group=trace.group)

    def _scaled(self, trace: Trace) -> Trace:
        """Scale lengths and limits; InputError where the contents would contradict them."""
        segments = trace.segments
        if segments is not None and self.prompt_scale != 1:
            raise InputError(
                f"prompt_scale: {self.file} records the contents of its prompts, whose lengths "
                "can't be scaled"
            )
        if self.output_scale != 1 and _repeats_answers(segments):
            raise InputError(
                f"output_scale: {self.file} records prompts that repeat earlier answers, whose "
                "lengths can't be scaled"
            )
        limits = trace.max_tokens
        if limits is not None and self.output_scale != 1:
            limits = np.where(limits == NO_LIMIT, limits, _times(limits, self.output_scale))
        return replace(
            trace,
            prompt_tokens=_times(trace.prompt_tokens, self.prompt_scale),
            output_tokens=_times(trace.output_tokens, self.output_scale),
            max_tokens=limits,
        )


def _units(trace: Trace) -> NDArray[np.int64]:
    """Return what each request belongs to, numbered from 0: its session, samples, or itself."""
    rows = np.arange(len(trace), dtype=np.int64)
    alone = rows if trace.group is None else trace.group
    if trace.session is None:
        return np.unique(alone, return_inverse=True)[1].astype(np.int64)
    own = np.where(trace.session < 0, alone, alone.max() + 1 + trace.session)
    return np.unique(own, return_inverse=True)[1].astype(np.int64)


def _repeats_answers(segments: Segments | None) -> bool:
    """Tell whether a prompt has more of an answer's stream than the answer's own prompt."""
    if segments is None:
        return False
    requests = len(segments.answer_seed)
    seeds, stream = np.unique(
        np.concatenate([segments.answer_seed, segments.seed]), return_inverse=True
    )
    answered, prompted = np.split(stream, [requests])
    longest = np.zeros(len(seeds), dtype=np.int64)
    np.maximum.at(longest, prompted, segments.tokens)
    last = segments.first[1:] - 1
    continues = prompted[last] == answered
    starts_at = np.where(continues, segments.tokens[last], 0)
    return bool((longest[answered] > starts_at).any())


def _has_samples(trace: Trace) -> bool:
    return trace.group is not None and len(np.unique(trace.group)) < len(trace)


def _times(lengths: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    if scale == 1:
        return lengths
    scaled: NDArray[np.int64] = np.clip(np.rint(lengths * scale), 1, MOST_TOKENS).astype(np.int64)
    return scaled
