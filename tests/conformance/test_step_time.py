"""Replayed steps last as long as the recording says, by its formula or by their ends."""

from dataclasses import replace

import pytest

from kvsim.conformance.compare import judge
from kvsim.conformance.replay import replay
from kvsim.conformance.step_time import recorded_step_time
from tests.conformance.recorded import recorded

ASYNCHRONOUS = ["02_preemption/cache_async", "08_priority/cache_async"]


def with_ends_only(name):
    """Return a recording without formula and starts; ends are those of the replay by formula."""
    recording = recorded(name)
    ends_ms = [step["end_ms"] for step in replay(recording).steps]
    steps = [
        {field: value for field, value in step.items() if field != "start_ms"} | {"end_ms": end_ms}
        for step, end_ms in zip(recording.steps, ends_ms, strict=True)
    ]
    return replace(recording, step_cost=None, steps=tuple(steps))


@pytest.mark.parametrize("name", [*ASYNCHRONOUS, "01_plain_chat/sync", "02_preemption/nocache"])
def test_ends_are_enough(name):
    verdict = judge(with_ends_only(name))
    assert verdict.identical, verdict


def test_a_step_in_flight_does_not_count_the_wait_for_the_one_before():
    recording = with_ends_only(ASYNCHRONOUS[0])
    by_formula = replay(recorded(ASYNCHRONOUS[0])).steps
    cost = recorded_step_time(recording)
    for step in by_formula[:50]:
        lasts_ms = step["end_ms"] - step["start_ms"]
        assert cost.step_ns(1, 1, 1, 1, 0.0) == pytest.approx(lasts_ms * 1e6, abs=1)
    assert any(step["start_ms"] > step["time_ms"] for step in by_formula[:50])


def test_an_empty_asynchronous_step_has_no_length():
    recording = with_ends_only(ASYNCHRONOUS[0])
    first = recording.steps[0]
    empty = {**first, "scheduled": []}
    steps = (empty, *recording.steps)
    cost = recorded_step_time(replace(recording, steps=steps))
    assert cost.step_ns(1, 1, 1, 1, 0.0) == recorded_step_time(recording).step_ns(1, 1, 1, 1, 0.0)
