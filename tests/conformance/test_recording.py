"""What files of recorded schedules hold, and what is said of those that don't."""

import gzip
import json
import lzma
from dataclasses import replace

import pyarrow as pa
import pytest

from kvsim.conformance.compare import conform, judge
from kvsim.conformance.recording import read_recordings
from kvsim.conformance.replay import replay
from kvsim.errors import InputError
from tests.conformance.recorded import recorded


def document():
    """Return two requests of 20 and 5 tokens, recorded as they must be served."""
    return {
        "format": "golden-schedule/1",
        "step_cost": {"base": 5000, "per_token": 20, "per_2_context": 1, "empty_step": 1000},
        "requests": [[7, 0, [[1, 20]], 2, 2, 0], [9, 1.5, [[3, 5]], 4, 1, 0]],
        "runs": [
            {
                "name": "small",
                "config": {
                    "block_size": 16,
                    "num_gpu_blocks": 9,
                    "max_num_seqs": 4,
                    "max_num_batched_tokens": 64,
                    "max_model_len": 64,
                },
                "step_fields": ["time_ms", "scheduled", "finished", "free_blocks"],
                "steps": [
                    [0, [[7, 20, 0]], [], 6],
                    [5.41, [7, [9, 5, 0]], [7, 9], 5],
                ],
                "outcome_fields": ["finish_ms", "n_output"],
                "outcome": [[10.543, 2], [10.543, 1]],
                "summary": {"steps": 2},
            }
        ],
    }


def written(tmp_path, content, name="mine.json"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_a_schedule_worked_out_by_hand_is_identical(tmp_path):
    (verdict,) = conform(written(tmp_path, document()))
    assert verdict.identical, verdict
    assert (verdict.name, verdict.steps, verdict.steps_identical) == ("mine/small", 2, 2)


@pytest.mark.parametrize(
    "compress",
    [gzip.compress, lzma.compress, lambda raw: pa.compress(raw, "zstd", asbytes=True)],
    ids=["gz", "xz", "zst"],
)
def test_compression_is_told_by_content(tmp_path, compress):
    plain = written(tmp_path, document())
    packed = written(tmp_path, compress(plain.read_bytes()), "mine.bin")
    assert list(conform(packed)) == list(conform(plain))


def change(run, what, value):
    *parents, last = what
    for key in parents:
        run = run[key]
    run[last] = value


@pytest.mark.parametrize(
    ("what", "value", "told"),
    [
        (("steps", 1, 3), 4, "step 1 at 5.41 ms, free_blocks: expected 4, found 5"),
        (("steps", 1, 1), [7], "scheduled[1]: expected nothing, found [9, 5, 0]"),
        (("steps", 1, 2), [9, 7], "step 1 at 5.41 ms, finished[0]: expected 9, found 7"),
        (("steps", 0, 0), 0.001, "step 0 at 0.001 ms, time_ms: expected 0.001, found 0.0"),
        (("outcome", 1, 1), 2, "outcome of request 9, n_output: expected 2, found 1"),
        (("summary", "steps"), 3, "summary.steps: expected 3, found 2"),
    ],
)
def test_the_first_difference_is_told(tmp_path, what, value, told):
    changed = document()
    change(changed["runs"][0], what, value)
    (verdict,) = conform(written(tmp_path, changed))
    assert not verdict.identical
    assert told in str(verdict.difference)
    assert verdict.steps_identical == (1 if what[0] == "steps" else 2)


def test_a_step_too_many_is_told(tmp_path):
    changed = document()
    changed["runs"][0]["steps"].append([10.543, [], [], 8])
    (verdict,) = conform(written(tmp_path, changed))
    assert str(verdict.difference) == "number of steps: expected 3, found 2"


@pytest.mark.parametrize(
    ("what", "value", "why"),
    [
        (("config", "num_speculative_tokens"), 3, "settings num_speculative_tokens"),
        (("config", "max_num_seqs"), 65, "kvsim refuses it: max_num_batched_tokens (64)"),
        (("step_fields", 3), "gpu_clock", "fields gpu_clock of a step"),
        (("outcome_fields", 0), "e2e_ms", "fields e2e_ms of an outcome"),
        (("summary", "hits"), None, "fields hits of the summary"),
    ],
)
def test_what_the_engine_does_not_have_is_not_identical(tmp_path, what, value, why):
    changed = document()
    change(changed["runs"][0], what, value)
    (verdict,) = conform(written(tmp_path, changed))
    assert not verdict.identical
    assert verdict.not_modeled.startswith(why)


def test_without_a_formula_steps_last_as_long_as_they_did(tmp_path):
    changed = document()
    del changed["step_cost"]
    run = changed["runs"][0]
    run["step_fields"].append("end_ms")
    for step, end_ms in zip(run["steps"], (6.25, 9.001), strict=True):
        step.append(end_ms)
    run["steps"][1][0] = 6.25
    run["outcome"] = [[9.001, 2], [9.001, 1]]
    (verdict,) = conform(written(tmp_path, changed))
    assert verdict.identical, verdict


def test_requests_are_handed_over_by_arrival_and_number_whatever_their_place(tmp_path):
    changed = document()
    changed["requests"].reverse()
    changed["runs"][0]["outcome"].reverse()
    (verdict,) = conform(written(tmp_path, changed))
    assert verdict.identical, verdict


@pytest.mark.parametrize("name_first", ["0_p", "1_p"])
def test_equal_ones_are_admitted_by_their_vllm_id_under_priority(tmp_path, name_first):
    changed = document()
    run = changed["runs"][0]
    run["config"] |= {"policy": "priority", "max_num_seqs": 1}
    ids = ["0_p", "1_p"] if name_first == "0_p" else ["1_p", "0_p"]
    changed["requests"] = [[n, 0, [[n, 5]], 9, 1, 0, ids[n]] for n in range(2)]
    run["outcome"] = [[5.102, 1], [10.204, 1]] if name_first == "0_p" else [[10.204, 1], [5.102, 1]]
    run["steps"] = []
    run["step_fields"] = ["time_ms", "scheduled"]
    first = ids.index("0_p")
    run["steps"] = [[0, [[first, 5, 0]]], [5.102, [[1 - first, 5, 0]]]]
    (verdict,) = conform(written(tmp_path, changed))
    assert verdict.identical, verdict


@pytest.mark.parametrize(
    ("what", "value", "told"),
    [
        (("format",), "golden-schedule/2", "format: Input should be 'golden-schedule/1'"),
        (("runs",), [], "runs: List should have at least 1 item"),
        (("requests", 0, 1), -1, "requests.0"),
        (("requests", 1, 0), 7, "two requests have the same number"),
        (("requests",), None, "has no requests"),
        (("runs", 0, "config", "block_size"), "many", "runs.0.config.block_size"),
        (("runs", 0, "config", "block_size"), 1 << 27, "runs.0.config.block_size"),
        (("runs", 0, "config", "kv_groups"), [["full", None, 1 << 27]], "a KV group is"),
        (("runs", 0, "config", "num_gpu_blocks"), 10**12, "runs.0.config.num_gpu_blocks"),
        (("runs", 0, "outcome"), [], "has 0 outcomes for 2 requests"),
        (("requests",), [], "has no requests"),
        (("requests", 0), [7, 0], "requests.0.2: Field required"),
        (("requests", 0), 7, "requests.0: should be a row: a list"),
        (("runs", 0, "name"), None, "runs.0.name: Input should be a valid string"),
        (("runs", 0, "config", "kv_groups"), [], "runs.0.config.kv_groups: "),
        (("runs", 0, "config", "kv_groups"), [["chunked", 8]], "kv_groups.0: a KV group is"),
        (("runs", 0, "config", "kv_groups"), [["sliding", "8"]], "kv_groups.0: a KV group is"),
        (("runs", 0, "config", "kv_groups"), [["sliding", -8]], "kv_groups.0: a KV group is"),
        (("runs", 0, "config", "kv_groups"), [["sliding"]], "kv_groups.0: a KV group is"),
        (("runs", 0, "config", "kv_groups"), [["full"], []], "kv_groups.1: a KV group is"),
        (("runs", 0, "config", "kv_groups"), [["full", 16]], "not ['full', 16]"),
        (("runs", 0, "config", "kv_groups"), [["full", None, 16, 1]], "a KV group is"),
        (("runs", 0, "steps", 1, 1), [8], "step 1: 8 goes on, but was never scheduled"),
        (("runs", 0, "steps", 1, 1), [[8, 1, 0]], "step 1: there is no request 8"),
        (("runs", 0, "steps", 1, 1), [["a", "b", "c"]], "step 1: scheduled must be a list of"),
        (("runs", 0, "steps", 1), [1, 2], "step 1: has 2 values for 4 fields"),
        (("runs", 0, "step_fields", 1), "planned", "step_fields: scheduled isn't there"),
        (("runs", 0, "step_fields", 2), "time_ms", "the field 'time_ms' is named twice"),
        (("runs", 0, "steps", 1, 0), "soon", "step 1: time_ms must be a time in ms, not 'soon'"),
        (("runs", 0, "steps", 1, 0), -1, "step 1: time_ms must be a time in ms, not -1"),
        (("runs", 0, "steps", 1, 2), 7, "step 1: finished must be a list of requests"),
        (("runs", 0, "steps", 1, 3), True, "step 1: free_blocks must be a whole number"),
        (("runs", 0, "step_fields", 0), "when", "step_fields: time_ms isn't there"),
        (("runs", 0, "outcome", 1, 0), "late", "outcome 1: finish_ms must be a time in ms, or"),
        (("runs", 0, "summary", "steps"), [3] * 99, "summary: steps must be a whole number, 0"),
        (("runs", 0, "summary", "prefix_cache"), {"hitz": None}, "vLLM's six counters"),
        (("step_cost",), None, "has neither a step_cost nor end_ms"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path, what, value, told):
    changed = document()
    change(changed, what, value)
    path = written(tmp_path, changed)
    with pytest.raises(InputError) as error:
        list(read_recordings(path))
    assert str(path) in str(error.value)
    assert told in str(error.value)
    assert all(len(line) < 300 for line in str(error.value).splitlines())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        b'{"a": NaN}',
        b"[1e999]",
        lzma.compress(b"{}" * 99)[:-9],
    ],
)
def test_what_is_no_schedule_is_refused(tmp_path, content):
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=r"mine\.json"):
        list(read_recordings(path))


@pytest.mark.parametrize(
    ("change_it", "told"),
    [
        (lambda file: file.update(commment="mine"), "commment: unknown, so not looked at"),
        (lambda file: file["step_cost"].update(bass=1), "step_cost.bass: unknown"),
        (lambda file: file["runs"][0].update(sumary={"steps": 99}), "did you mean summary?"),
    ],
)
def test_unknown_keys_are_told(tmp_path, change_it, told):
    changed = document() | {"vllm_version": "0.33.0", "description": "about the file"}
    change_it(changed)
    (verdict,) = conform(written(tmp_path, changed))
    assert verdict.identical
    (problem,) = verdict.unread
    assert told in str(problem)


def cut(steps):
    """Return the small document with its first steps only."""
    changed = document()
    run = changed["runs"][0]
    del run["steps"][steps:]
    run["summary"] = {}
    run["outcome_fields"], run["outcome"] = [], [[], []]
    return changed


def test_a_cut_recording_is_left_at_the_first_step_too_many(tmp_path):
    changed = cut(1)
    changed["requests"][0][4] = 40
    changed["runs"][0]["config"]["max_model_len"] = 1 << 20
    (recording,) = read_recordings(written(tmp_path, changed))
    assert len(replay(recording).steps) == 2
    told = str(judge(recording).difference)
    assert told.startswith("number of steps: expected 1, found another one at 5.41 ms; ")
    assert "a note that begins with 'stopped'" in told


def test_a_cut_recording_that_says_so_is_identical(tmp_path):
    changed = cut(1)
    changed["runs"][0]["summary"]["note"] = "stopped by hand"
    (verdict,) = conform(written(tmp_path, changed))
    assert verdict.identical, verdict


def test_a_livelock_is_left_at_the_first_step_too_many():
    recording = recorded("09_never_fit/prompt_larger_than_pool_no_full_isl")
    assert len(replay(replace(recording, summary={})).steps) == len(recording.steps) + 1


def test_requests_that_can_never_fit_are_no_asynchronous_steps(tmp_path):
    changed = document()
    changed["runs"][0]["config"] |= {"num_gpu_blocks": 2, "async_scheduling": True}
    changed["requests"][1][2] = [[3, 30]]
    (verdict,) = conform(written(tmp_path, changed))
    assert str(verdict.difference) == "number of steps: expected 2, found 0"


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("groups", [[["full"]], [["full"], ["sliding", 4]], [["sliding", 3]]])
def test_a_prompt_beyond_the_longest_context_takes_slots_for_that_only(
    tmp_path, caching, asynchronous, groups
):
    """R34: allocate_slots, like the check before it (R17), caps what it asks for."""
    changed = document()
    changed["requests"] = [[1, 0, [[11, 9]], 12, 1, 0]]
    run = changed["runs"][0]
    run["config"] |= {"block_size": 1, "max_model_len": 8, "num_gpu_blocks": 8 * len(groups) + 1}
    run["config"] |= {"async_scheduling": asynchronous, "enable_prefix_caching": caching}
    run["config"] |= {"kv_groups": groups}
    run["steps"] = [[0, [[1, 9, 0]], [1], 0]]
    run["outcome"], run["summary"] = [[5.184, 1]], {"steps": 1}
    (verdict,) = conform(written(tmp_path, changed))
    assert verdict.identical, verdict


def test_a_broken_law_is_a_difference(tmp_path, monkeypatch):
    from kvsim.engine.allocators.paged import PagedPool

    monkeypatch.setattr(PagedPool, "free", lambda pool, seq: None)
    (recording,) = read_recordings(written(tmp_path, document()))
    verdict = judge(recording)
    assert "broken: all KV slots come back" in str(verdict.difference)
