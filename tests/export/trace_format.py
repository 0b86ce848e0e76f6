"""What a file in the Trace Event Format must be, by its public description.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU; and by Perfetto's
documentation: slices of a thread nest perfectly, or they are dropped.
"""

import json
from collections import defaultdict
from decimal import Decimal

# Of the color scheme of chrome://tracing.
RESERVED_COLORS = {
    *("thread_state_uninterruptible", "thread_state_iowait", "thread_state_running"),
    *("thread_state_runnable", "thread_state_sleeping", "thread_state_unknown"),
    *("background_memory_dump", "light_memory_dump", "detailed_memory_dump"),
    *("vsync_highlight_color", "generic_work", "good", "bad", "terrible", "black", "grey"),
    *("white", "yellow", "olive", "rail_response", "rail_animation", "rail_idle", "rail_load"),
    *("startup", "heap_dump_stack_frame", "heap_dump_object_type", "heap_dump_child_node_arrow"),
    *("cq_build_running", "cq_build_passed", "cq_build_failed", "cq_build_abandoned"),
    *("cq_build_attempt_runnig", "cq_build_attempt_passed", "cq_build_attempt_failed"),
}
METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def parsed(text):
    """Return the events of a file, times as exact decimals."""
    document = json.loads(text, parse_float=Decimal, parse_int=int)
    assert isinstance(document["traceEvents"], list)
    assert document["displayTimeUnit"] in {"ms", "ns"}
    return document["traceEvents"]


def check(events):
    """Check all rules; AssertionError tells the first that is broken."""
    named, used, threads, stacks = set(), set(), defaultdict(list), defaultdict(list)
    for event in events:
        kind = event["ph"]
        assert kind in {"M", "X", "i", "C", "b", "e"}, kind
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert event["pid"] > 0
        assert isinstance(event["tid"], int)
        assert isinstance(event["ts"], int | Decimal)
        assert event["ts"] >= 0
        assert event.get("cname", "grey") in RESERVED_COLORS
        assert isinstance(event.get("args", {}), dict)
        if kind == "M":
            key, of_type = METADATA[event["name"]]
            assert isinstance(event["args"][key], of_type)
            if event["name"].endswith("_name"):
                place = event["pid"], event["tid"]
                assert place not in named, "named twice"
                named.add(place)
            continue
        used.add((event["pid"], 0))
        if kind == "X":
            assert event["dur"] >= 0
            threads[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
        if kind == "i":
            assert event["s"] in {"g", "p", "t"}
        if kind == "C":
            assert event["args"]
            assert all(isinstance(value, int | Decimal) for value in event["args"].values())
        if kind in "Xi":
            used.add((event["pid"], event["tid"]))
        if kind in "be":
            _pair(event, stacks[event["pid"], event["cat"], event["id2"]["local"]])
    assert used <= named, f"unnamed: {used - named}"
    assert not any(stacks.values()), "begun and never ended"
    for slices in threads.values():
        _nest(slices)


def _pair(event, stack):
    if event["ph"] == "b":
        stack.append(event)
        return
    assert stack, "ended, but never begun"
    begin = stack.pop()
    assert begin["name"] == event["name"]
    assert begin["ts"] <= event["ts"]


def _nest(slices):
    """Check that each slice lies in those that are open when it starts."""
    open_ends = []
    for start, duration in sorted(slices, key=lambda each: (each[0], -each[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or start + duration <= open_ends[-1], "slices overlap"
        open_ends.append(start + duration)
