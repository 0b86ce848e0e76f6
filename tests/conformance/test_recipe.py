"""What `docs/conformance.md` tells readers to copy works: its small file, its recorder."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvsim.conformance.compare import conform, judge
from kvsim.conformance.recording import read_recordings
from tests.conformance.imitation import Clock, Request, Scheduler, Server

GUIDE = Path(__file__).parents[2] / "docs" / "conformance.md"


def block(language):
    """Return the only block of the guide in a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return found


@pytest.fixture(scope="module")
def recipe():
    names = {"__name__": "record_schedule"}
    exec(compile(block("python"), "record_schedule.py", "exec"), names)
    return SimpleNamespace(**names)


def test_the_small_file_is_identical(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(block("json"))
    (verdict,) = conform(path)
    assert verdict.identical, verdict
    assert not verdict.unread


def requests_of(rows):
    return [
        (at_s, Request(f"cmpl-{n}", prompt, most)) for n, (at_s, prompt, most) in enumerate(rows)
    ]


def tokens(seed, count):
    return list(range(1000 * seed, 1000 * seed + count))


SYSTEM = tokens(1, 40)
ROWS = [
    (0.0, SYSTEM + tokens(2, 30), 9),
    (0.0002, SYSTEM + tokens(3, 5), 1),
    (0.021, SYSTEM + tokens(4, 55), 12),
    (0.0212, tokens(5, 17), 20),
    (1.0, SYSTEM + tokens(2, 30) + tokens(6, 3), 4),  # found idle
    (2.0, tokens(7, 100), 2),
]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_what_the_recorder_writes_is_identical(recipe, tmp_path, asynchronous, caching):
    class RecordingScheduler(recipe.Records, Scheduler):
        pass

    scheduler = RecordingScheduler(asynchronous, caching)
    scheduler.clock, scheduler.path = Clock(), tmp_path / "schedule.json"
    scheduler.began_s = 0.0
    Server(scheduler, scheduler.clock).serve(requests_of(ROWS))
    scheduler.shutdown()
    (recording,) = read_recordings(scheduler.path)
    assert len(recording.steps) >= 30
    if caching:
        hits = sum(
            before for step in recording.steps for _, n, before in step["scheduled"] if n > 1
        )
        assert hits >= 4 * 32
    verdict = judge(recording)
    assert verdict.identical, verdict


def test_arrivals_are_those_of_the_call_that_sees_them(recipe, tmp_path):
    """Else kvsim would have served the first request before the clock went on."""

    class RecordingScheduler(recipe.Records, Scheduler):
        pass

    scheduler = RecordingScheduler(False, False)
    scheduler.clock, scheduler.began_s = Clock(), 0.0
    scheduler.add_request(Request("a", tokens(1, 9), 1))
    scheduler.add_request(Request("b", tokens(2, 9), 1))
    scheduler.clock.now_s = 0.3
    scheduler.schedule()
    told = scheduler.recording()
    assert [row[1] for row in told["requests"]] == [300.05, 300.05]
    assert told["runs"][0]["summary"]["note"].startswith("stopped")
    assert told["runs"][0]["steps"] == []  # its end isn't known


def test_kv_groups_come_from_the_kv_cache_config(recipe):
    class RecordingScheduler(recipe.Records, Scheduler):
        pass

    scheduler = RecordingScheduler(False, False)
    scheduler.kv_cache_config.kv_cache_groups = [
        SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=size, **window))
        for size, window in ((16, {}), (32, {}), (16, {"sliding_window": 128}))
    ]
    assert scheduler.settings()["kv_groups"] == [["full"], ["full", None, 32], ["sliding", 128]]


def test_segments_are_equal_exactly_where_prompts_begin_equally(recipe):
    first = [1, 2, 3, 4]
    answers = [[50, 51], [60], [70]]
    prompts = [first, [1, 2, 9], [*first, 50, 51, 8]]
    told = recipe.segments(list(zip(prompts, answers, strict=True)))
    assert told == [[[0, 4]], [[0, 2], [2, 1]], [[0, 4], [1, 2], [4, 1]]]


def test_a_file_as_recorded_needs_no_starts(recipe, tmp_path):
    """The guide's small file without its formula and with ends only."""
    changed = json.loads(block("json"))
    del changed["step_cost"]
    run = changed["runs"][0]
    run["step_fields"].append("end_ms")
    for step, end_ms in zip(run["steps"], (5.41, 10.551), strict=True):
        step.append(end_ms)
    path = tmp_path / "ends.json"
    path.write_text(json.dumps(changed))
    (verdict,) = conform(path)
    assert verdict.identical, verdict
