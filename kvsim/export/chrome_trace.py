"""A run as a timeline in the Trace Event Format, which Perfetto and chrome://tracing open.

A replica is a process. Its thread `engine steps` has a slice for each iteration, `events` marks
preemptions, rejections and the like, and each sequence slot is a thread with the requests that were
in it: prefill, decode, and what they lost to preemptions. Waiting is drawn as asynchronous slices,
which viewers stack by themselves, and the KV cache and the queue are counters.

Format: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import IO, Any

import numpy as np

from kvsim.export.lives import Lives, Phase, lives, losses, slots
from kvsim.export.span import Span, end_ns, engines_of
from kvsim.export.trace_events import Counters, metadata_event, microseconds, slice_event
from kvsim.rundir.read import Run
from kvsim.table_files import chunks
from kvsim.tables import EVENT_KINDS, HEAD_LACKS, OUTCOMES, SLOT_COLUMNS, Columns, tables_of

_STEPS_THREAD, _EVENTS_THREAD, _FIRST_SLOT = 1, 2, 3
_NO_REPLICA = -1
_TIMED_OUT = OUTCOMES.index("timed_out")
# Names of colors that chrome://tracing reserves; Perfetto colors by name.
_COLORS = {
    "decode": "thread_state_running",
    "prefill": "rail_load",
    "mixed": "thread_state_iowait",
    "idle": "grey",
    "front end": "grey",
    "queue": "thread_state_runnable",
    "preempted": "terrible",
}
_STEP = (
    *("start_ns", "duration_ns", "step", "prefill_seqs", "prefill_tokens", "decode_seqs"),
    *("running_seqs", "waiting_seqs", "preempted_seqs", "head_lacks"),
)
_REQUEST = (
    *("prompt_tokens", "output_tokens", "cached_tokens", "preemptions", "recomputed_tokens"),
    *("attempt", "class", "outcome"),
)
# What an event takes in the file, about; the largest part are the steps.
_STEP_BYTES, _WAITING_BYTES, _RUNNING_BYTES, _EVENT_BYTES = 470, 480, 520, 130


def about_bytes(run: Run, variants: Sequence[str], span: Span) -> int:
    """Return about how large the timeline becomes, before it is compressed."""
    size = 0
    for variant in variants:
        tables = run.tables[variant]
        found = lives(tables["requests"], span, end_ns(run, variant))
        steps = sum(
            int(span.holds(chunk["start_ns"]).sum())
            for chunk in chunks(tables["steps"], ("start_ns",))
        )
        events = int(span.holds(tables["events"]["time_ns"]).sum())
        size += steps * _STEP_BYTES + events * _EVENT_BYTES
        size += len(found.number) * _WAITING_BYTES
        size += int(found.runs_in(span).sum()) * _RUNNING_BYTES
    return size


def write_chrome_trace(run: Run, file: IO[str], variants: Sequence[str], span: Span) -> int:
    """Write the timeline of some variants; return the number of events.

    Steps are written as they are read, so that memory grows with the requests alone. Steps and
    events belong to the span in which they begin; requests are cut at its edges.
    """
    about = {"scenario": run.scenario, "kvsim": run.manifest["versions"]["kvsim"]}
    file.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(about) + ',"traceEvents":[')
    written = 0
    first_process = 1  # 0 is the idle task to viewers
    for variant in variants:
        timeline = _Timeline(run, variant, span, first_process, len(variants) > 1)
        for event in timeline.events():
            file.write(",\n" if written else "\n")
            file.write(event)
            written += 1
        first_process += engines_of(run, variant) + 1
    file.write("\n]}\n")
    return written


class _Timeline:
    """The events of one variant, each as JSON."""

    def __init__(
        self, run: Run, variant: str, span: Span, first_process: int, is_named: bool
    ) -> None:
        self._tables = run.tables[variant]
        self._span = span
        self._first_process = first_process
        self._engines = engines_of(run, variant)
        self._prefix = f"{variant} · " if is_named else ""
        requests = self._tables["requests"]
        codes = {c.name: c.codes for c in tables_of(tuple(run.manifest["class_names"]))["requests"]}
        self._classes = codes["class"]
        self._found: Lives = lives(requests, span, end_ns(run, variant))
        self._slots = slots(self._found, span)
        self._about = {name: requests[name][self._found.rows].tolist() for name in _REQUEST}

    def events(self) -> Iterator[str]:
        """Yield all events."""
        return chain(self._names(), self._lives(), self._marks(), self._steps())

    # Names

    def _names(self) -> Iterator[str]:
        events = self._tables["events"]
        marked = events["replica"][self._span.holds(events["time_ns"])]
        served = np.append(marked, self._found.replica)
        outside = [_NO_REPLICA] if (served == _NO_REPLICA).any() else []
        for replica in [*range(self._engines), *outside]:
            name = "no replica" if replica == _NO_REPLICA else f"replica {replica}"
            process = self._process(replica)
            yield metadata_event("process_name", process, 0, {"name": self._prefix + name})
            yield metadata_event("process_sort_index", process, 0, {"sort_index": process})
            if replica == _NO_REPLICA:
                yield from self._thread(process, _EVENTS_THREAD, "events")
                continue
            mine = self._slots[self._found.replica == replica]
            yield from self._thread(process, _STEPS_THREAD, "engine steps")
            yield from self._thread(process, _EVENTS_THREAD, "events")
            for slot in range(int(mine.max(initial=-1)) + 1):
                yield from self._thread(process, _FIRST_SLOT + slot, f"slot {slot}")

    @staticmethod
    def _thread(process: int, thread: int, name: str) -> Iterator[str]:
        yield metadata_event("thread_name", process, thread, {"name": name})
        yield metadata_event("thread_sort_index", process, thread, {"sort_index": thread})

    def _process(self, replica: int) -> int:
        return self._first_process + (self._engines if replica == _NO_REPLICA else replica)

    # Requests

    def _lives(self) -> Iterator[str]:
        lost = losses(self._tables["events"], self._found)
        replicas, numbers = self._found.replica.tolist(), self._found.number.tolist()
        for place, slot in enumerate(self._slots.tolist()):
            process = self._process(replicas[place])
            yield from self._waiting(process, numbers[place], self._found.before_service(place))
            if slot >= 0:
                thread = f'"pid":{process},"tid":{_FIRST_SLOT + slot}'
                yield from self._service(thread, place, lost.get(place, []))

    def _waiting(self, process: int, number: int, phases: Iterable[Phase]) -> Iterator[str]:
        """Yield a begin and an end for each phase; viewers pair them by category and id."""
        for phase in phases:
            cut = self._inside(phase)
            if cut is None or cut.from_ns == cut.to_ns:
                continue
            who = f'"cat":"{cut.name}","id2":{{"local":"{number:#x}"}},"name":"{cut.name}"'
            at = f'"pid":{process},"tid":{_EVENTS_THREAD},"ts":'
            args = f'"args":{{"request":{number}}}'
            color = _COLORS[cut.name]
            yield f'{{"ph":"b",{who},{at}{microseconds(cut.from_ns)},"cname":"{color}",{args}}}'
            yield f'{{"ph":"e",{who},{at}{microseconds(cut.to_ns)}}}'

    def _service(self, thread: str, place: int, lost: Sequence[Phase]) -> Iterator[str]:
        """Yield a request's slice in its slot, and its phases inside of it."""
        found = self._found
        whole = Phase("request", int(found.admitted_ns[place]), int(found.gone_ns[place]))
        number = int(found.number[place])
        cut = self._inside(whole)
        if cut is None:
            return
        args = json.dumps(self._args(place, number), separators=(",", ":"))
        slice_ = slice_event(f"request {number}", "request", cut, thread)
        yield f'{slice_},"args":{args}}}'
        for phase in found.in_slot(place, lost):
            part = self._inside(phase)
            if part is not None:
                color = _COLORS[part.name]
                yield f'{slice_event(part.name, "phase", part, thread)},"cname":"{color}"}}'

    def _args(self, place: int, number: int) -> dict[str, Any]:
        values = {name: column[place] for name, column in self._about.items()}
        values["class"] = self._classes[values["class"]]
        values["outcome"] = OUTCOMES[values["outcome"]]
        return {"request": number, **values}

    def _inside(self, phase: Phase) -> Phase | None:
        """Return the part of a phase that lies in the span."""
        start_ns = max(phase.from_ns, self._span.from_ns)
        stop_ns = min(phase.to_ns, self._span.to_ns)
        return Phase(phase.name, start_ns, stop_ns) if start_ns <= stop_ns else None

    # Events

    def _marks(self) -> Iterator[str]:
        """Yield what happened at an instant."""
        yield from self._timeouts()
        events = self._tables["events"]
        names = ("time_ns", "replica", "event", "request", "tokens")
        chosen = self._span.holds(events["time_ns"])
        for time_ns, replica, kind, request, tokens in zip(
            *(events[name][chosen].tolist() for name in names), strict=True
        ):
            yield self._mark(EVENT_KINDS[kind], time_ns, replica, request, f',"tokens":{tokens}')

    def _timeouts(self) -> Iterator[str]:
        found, outcomes = self._found, np.array(self._about["outcome"], dtype=np.int64)
        chosen = (outcomes == _TIMED_OUT) & self._span.holds(found.gone_ns)
        for place in np.flatnonzero(chosen).tolist():
            number, replica = int(found.number[place]), int(found.replica[place])
            yield self._mark("timed out", int(found.gone_ns[place]), replica, number)

    def _mark(self, name: str, time_ns: int, replica: int, request: int, more: str = "") -> str:
        where = (
            f'"pid":{self._process(replica)},"tid":{_EVENTS_THREAD},"ts":{microseconds(time_ns)}'
        )
        args = f'"args":{{"request":{request}{more}}}'
        return f'{{"ph":"i","s":"t","cat":"event","name":"{name}",{where},{args}}}'

    # Steps

    def _steps(self) -> Iterator[str]:
        """Yield a slice for each step, and counters where they change, replica by replica."""
        counters: dict[int, Counters] = {}
        for chunk in chunks(self._tables["steps"], ("replica", *_STEP, *SLOT_COLUMNS)):
            inside = self._span.holds(chunk["start_ns"])
            for replica in np.unique(chunk["replica"][inside]).tolist():
                rows = np.flatnonzero(inside & (chunk["replica"] == replica))
                rows = rows[np.argsort(chunk["start_ns"][rows], kind="stable")]
                counter = counters.setdefault(replica, Counters(self._process(replica)))
                yield from self._of_replica(chunk, rows, counter)
        for counter in counters.values():
            if counter.end_ns < self._span.to_ns:
                yield from counter.pause()

    def _of_replica(self, chunk: Columns, rows: Any, counter: Counters) -> Iterator[str]:
        thread = f'"pid":{counter.process},"tid":{_STEPS_THREAD}'
        steps = zip(*(chunk[name][rows].tolist() for name in _STEP), strict=True)
        uses = zip(*(chunk[name][rows].tolist() for name in SLOT_COLUMNS), strict=True)
        for step, use in zip(steps, uses, strict=True):
            start_ns, duration_ns = step[:2]
            if counter.end_ns < start_ns:
                yield from counter.pause()
            yield _step(thread, *step)
            yield from counter.take(start_ns, start_ns + duration_ns, step[6], step[7], use)


def _step(
    thread: str,
    start_ns: int,
    duration_ns: int,
    step: int,
    prefill_seqs: int,
    prefill_tokens: int,
    *counts: int,
) -> str:
    decode_seqs, running, waiting, preempted, lacks = counts
    kind = ("mixed" if decode_seqs else "prefill") if prefill_seqs else "decode"
    kind = kind if prefill_seqs or decode_seqs else "idle"
    slice_ = slice_event(kind, "step", Phase(kind, start_ns, start_ns + duration_ns), thread)
    return (
        f'{slice_},"cname":"{_COLORS[kind]}","args":{{"step":{step},'
        f'"prefill_tokens":{prefill_tokens},"prefill_seqs":{prefill_seqs},'
        f'"decode_tokens":{decode_seqs},"running":{running},"waiting":{waiting},'
        f'"preempted":{preempted},"head_lacks":"{HEAD_LACKS[lacks]}"}}}}'
    )
