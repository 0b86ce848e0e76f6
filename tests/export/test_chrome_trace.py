"""The timeline is what the format asks for, and holds what the tables hold."""

import io
from collections import Counter, defaultdict
from decimal import Decimal

import numpy as np
import pytest

from kvsim.export.chrome_trace import about_bytes, write_chrome_trace
from kvsim.export.lives import _phases
from kvsim.export.span import Span, end_ns
from kvsim.tables import EVENT_KINDS, OUTCOMES
from tests.export.conftest import HOSTILE
from tests.export.trace_format import check, parsed

WHOLE = Span()
NS = Decimal("0.001")  # of a microsecond


def text_of(run, variants=("base",), span=WHOLE):
    file = io.StringIO()
    count = write_chrome_trace(run, file, list(variants), span)
    assert count == file.getvalue().count('\n{"ph"')
    return file.getvalue()


KNOWN = {}


def events_of(run, variant="base", span=WHOLE):
    key = run.folder, variant, span
    if key not in KNOWN:
        KNOWN[key] = parsed(text_of(run, [variant], span))
        check(KNOWN[key])
    return KNOWN[key]


def ns(us):
    return int(us / NS)


def sliced(events, category):
    return [event for event in events if event["ph"] == "X" and event["cat"] == category]


def total_ns(slices):
    return sum(ns(event["dur"]) for event in slices)


@pytest.mark.parametrize("variant", ["base", "contiguous", "swapping"])
def test_steps_are_those_of_the_table(eventful, variant):
    steps = eventful.tables[variant]["steps"]
    slices = sliced(events_of(eventful, variant), "step")
    assert len(slices) == len(steps["step"])
    assert total_ns(slices) == steps["duration_ns"].sum()
    starts = sorted((event["pid"] - 1, ns(event["ts"])) for event in slices)
    table = zip(steps["replica"].tolist(), steps["start_ns"].tolist(), strict=True)
    assert starts == sorted(table)
    for name, column in (
        ("prefill_tokens", "prefill_tokens"),
        ("decode_tokens", "decode_seqs"),
        ("running", "running_seqs"),
        ("waiting", "waiting_seqs"),
    ):
        assert sum(event["args"][name] for event in slices) == steps[column].sum()
    kinds = Counter(event["name"] for event in slices)
    decodes, prefills = steps["decode_seqs"] > 0, steps["prefill_seqs"] > 0
    assert kinds["mixed"] == (decodes & prefills).sum()
    assert kinds["prefill"] == (~decodes & prefills).sum()


def test_requests_are_those_of_the_table(run):
    requests = run.tables["base"]["requests"]
    events = events_of(run)
    slices = sliced(events, "request")
    admitted, finish_ns = requests["admitted_ns"] >= 0, requests["finish_ns"]
    gone_ns = np.where(finish_ns < 0, end_ns(run, "base"), finish_ns)
    assert len(slices) == admitted.sum()
    assert total_ns(slices) == (gone_ns - requests["admitted_ns"])[admitted].sum()
    for name in ("prompt_tokens", "output_tokens", "preemptions", "cached_tokens"):
        assert sum(event["args"][name] for event in slices) == requests[name][admitted].sum()
    outcomes = Counter(OUTCOMES[code] for code in requests["outcome"][admitted].tolist())
    assert Counter(event["args"]["outcome"] for event in slices) == outcomes


def test_phases_fill_the_requests(run):
    """Prefill and decoding add up to a request; preemptions lie within them."""
    phases = sliced(events := events_of(run), "phase")
    by_name = {name: [e for e in phases if e["name"] == name] for name in ("prefill", "decode")}
    assert total_ns(by_name["prefill"] + by_name["decode"]) == total_ns(sliced(events, "request"))
    requests = run.tables["base"]["requests"]
    begun = requests["first_token_ns"] >= 0
    assert len(by_name["decode"]) == begun.sum()


def test_waiting_is_that_of_the_table(run):
    requests = run.tables["base"]["requests"]
    waited_ns = defaultdict(int)
    for event in events_of(run):
        if event["ph"] in "be":
            waited_ns[event["name"]] += ns(event["ts"]) * (1 if event["ph"] == "e" else -1)
    finish_ns = requests["finish_ns"]
    gone_ns = np.where(finish_ns < 0, end_ns(run, "base"), finish_ns)
    queued_ns, admitted_ns = requests["queued_ns"], requests["admitted_ns"]
    in_queue_ns = np.where(admitted_ns >= 0, admitted_ns, gone_ns) - queued_ns
    assert waited_ns["queue"] == in_queue_ns[queued_ns >= 0].sum()
    before_ns = np.where(queued_ns >= 0, queued_ns, gone_ns) - requests["arrival_ns"]
    assert waited_ns["front end"] == before_ns.sum()


@pytest.mark.parametrize("variant", ["base", "contiguous", "swapping"])
def test_what_happened_is_marked(eventful, variant):
    tables = eventful.tables[variant]
    marks = Counter(e["name"] for e in events_of(eventful, variant) if e["ph"] == "i")
    told = Counter(EVENT_KINDS[code] for code in tables["events"]["event"].tolist())
    late = int((tables["requests"]["outcome"] == OUTCOMES.index("timed_out")).sum())
    assert marks == told + Counter({"timed out": late})


def test_the_runs_have_what_could_go_wrong(eventful, cut):
    kinds = set(eventful.tables["base"]["events"]["event"].tolist())
    assert {EVENT_KINDS.index(kind) for kind in ("preempted", "resumed", "rejected")} <= kinds
    kinds = set(eventful.tables["swapping"]["events"]["event"].tolist())
    assert {EVENT_KINDS.index(kind) for kind in ("swapped_out", "swapped_in")} <= kinds
    assert OUTCOMES.index("timed_out") in eventful.tables["base"]["requests"]["outcome"]
    assert OUTCOMES.index("unfinished") in cut.tables["base"]["requests"]["outcome"]
    lost = [e for e in sliced(events_of(eventful, "swapping"), "phase") if e["name"] == "preempted"]
    assert lost


def test_a_slot_holds_one_request_and_none_is_too_many(run):
    """As many slots as requests are served at the same time, and no more."""
    by_replica = defaultdict(list)
    for event in sliced(events_of(run), "request"):
        by_replica[event["pid"]].append(event)
    for slices in by_replica.values():
        changes = [(event["ts"], 1) for event in slices]
        changes += [(event["ts"] + event["dur"], -1) for event in slices]
        served = np.cumsum([change for _, change in sorted(changes)])
        assert len({event["tid"] for event in slices}) == served.max()


def test_counters_hold_between_their_changes(run):
    """At the start of each step they are what the table says; after the last one nothing runs."""
    steps = run.tables["base"]["steps"]
    told = defaultdict(list)
    for event in events_of(run):
        if event["ph"] == "C":
            told[event["pid"], event["name"]].append((ns(event["ts"]), event["args"]))
    for replica in np.unique(steps["replica"]).tolist():
        mine = steps["replica"] == replica
        for name, column, counter in (
            ("running", "running_seqs", "requests"),
            ("waiting", "waiting_seqs", "requests"),
            ("held", "kv_held_tokens", "KV cache tokens"),
            ("free", "kv_free_tokens", "KV cache tokens"),
        ):
            times, values = zip(*told[replica + 1, counter], strict=True)
            places = np.searchsorted(
                np.array(times, dtype=np.int64), steps["start_ns"][mine], side="right"
            )
            found = [values[place - 1][name] for place in places.tolist()]
            assert found == steps[column][mine].tolist()
        assert told[replica + 1, "requests"][-1][1] == {"running": 0, "waiting": 0}
        pools = {sum(args.values()) for _, args in told[replica + 1, "KV cache tokens"]}
        assert len(pools) == 1, "the parts of the KV cache make up all of it"


@pytest.mark.parametrize("at_s", [0.0, 0.7, 2.5])
def test_the_parts_of_a_cut_timeline_are_the_whole(eventful, at_s):
    at_ns = round(at_s * 1e9)
    whole = events_of(eventful)
    before = events_of(eventful, span=Span(0, at_ns))
    after = events_of(eventful, span=Span(at_ns))
    for category in ("request", "phase"):
        parts_ns = total_ns(sliced(before, category)) + total_ns(sliced(after, category))
        assert parts_ns == total_ns(sliced(whole, category))
    steps = [len(sliced(events, "step")) for events in (before, after, whole)]
    assert steps[0] + steps[1] == steps[2]
    edge = Decimal(at_ns) * NS
    assert all(e["ts"] <= edge for e in before)
    assert all(e["ts"] >= edge for e in after if e["ph"] != "M")


def test_variants_stand_side_by_side(eventful):
    both = text_of(eventful, ["base", "swapping"])
    events = parsed(both)
    check(events)
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {
        *("base · replica 0", "base · replica 1", "base · no replica"),
        *("swapping · replica 0", "swapping · replica 1", "swapping · no replica"),
    }
    assert text_of(eventful, ["base", "swapping"]) == both


def test_who_reached_no_replica_has_a_process_if_there_is_any(quiet):
    names = {e["args"]["name"] for e in events_of(quiet) if e["name"] == "process_name"}
    assert names == {"replica 0"}


def test_names_do_no_harm(hostile):
    events = parsed(text_of(hostile, list(hostile.summaries)))
    check(events)
    assert f"{HOSTILE} · replica 0" in {e["args"].get("name") for e in events if e["ph"] == "M"}


def test_the_size_is_known_before(run):
    variants = list(run.summaries)
    size = len(text_of(run, variants).encode())
    assert 0.6 * size < about_bytes(run, variants, Span()) < 1.6 * size


def test_threads_are_named_that_have_slices(eventful):
    """In a cut as well: who runs only later has no thread."""
    events = events_of(eventful, span=Span(0, 700_000_000))
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["tid"] > 2}
    assert named == {(e["pid"], e["tid"]) for e in sliced(events, "request")}


@pytest.mark.parametrize(
    ("told", "first_ns", "phases"),
    [
        ([(10, True), (20, False)], 5, [(10, 20)]),
        ([(10, True), (20, False), (30, True), (40, False)], 5, [(10, 20), (30, 40)]),
        ([(10, True)], 5, [(10, 100)]),  # its client gave up
        ([(10, True)], 50, [(10, 50)]),  # lost during its prefill: no token was before
        ([(10, True)], -1, [(10, 100)]),
        ([(10, True), (15, True)], 50, [(10, 50)]),
        ([(10, True), (60, True), (70, False)], 50, [(10, 50), (60, 70)]),
        ([(10, True), (20, False)], 12, [(12, 20)]),  # the first token was in flight
        ([(90, True), (110, False)], 5, [(90, 100)]),
    ],
)
def test_what_was_lost_lies_before_or_after_the_first_token(told, first_ns, phases):
    found = _phases(told, first_ns, gone_ns=100)
    assert [(phase.from_ns, phase.to_ns) for phase in found] == phases


STEP = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 10}
NAMED = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "p"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "t"}},
]
BEGIN = {"ph": "b", "cat": "c", "id2": {"local": "0x1"}, "name": "a", "pid": 1, "tid": 1, "ts": 5}


@pytest.mark.parametrize(
    "events",
    [
        [{**STEP, "dur": -1}],
        [STEP, {**STEP, "ts": 5}],
        [{**STEP, "tid": 2}],
        [{**STEP, "cname": "no color"}],
        [{**STEP, "ph": "?"}],
        [BEGIN],
        [{**BEGIN, "ph": "e"}],
        [BEGIN, {**BEGIN, "ph": "e", "ts": 4}],
        [BEGIN, {**BEGIN, "ph": "e", "id2": {"local": "0x2"}}],
        [{"ph": "C", "name": "a", "pid": 1, "tid": 0, "ts": 0, "args": {"x": "1"}}],
        [{"ph": "i", "s": "x", "name": "a", "pid": 1, "tid": 1, "ts": 0}],
        [NAMED[0]],
    ],
)
def test_the_checker_finds_what_is_wrong(events):
    check([*NAMED, STEP, {**STEP, "ts": 10}, {**STEP, "ts": 12, "dur": 3}])
    with pytest.raises(AssertionError):
        check([*NAMED, *events])
