"""The engine takes the decisions of the real vLLM scheduler, step for step, where both can.

Covers the recorded runs with what this engine models: synchronous and asynchronous scheduling of
models with full attention.
"""

from dataclasses import replace

import numpy as np
import pytest

from kvsim.engine.config import EngineConfig
from kvsim.errors import InputError
from tests.engine.harness import request_table, run, segments_of
from tests.engine.recordings import recorded_runs, steps_of

MODELLED = {"kv_groups": [["full"]]}
# Requests that a front end refuses, or that block the queue for ever: kvsim turns them away.
NEVER_SERVED = "09_never_fit"


def modelled_runs():
    for name, recorded, document in recorded_runs():
        config = recorded["config"]
        if all(config[key] == value for key, value in MODELLED.items()) and (
            not name.startswith(NEVER_SERVED) or "length_cap" in name
        ):
            yield pytest.param(recorded, document, id=name)


class RecordedClock:
    """The recordings' step time: 5000 + 20 T + floor(C / 2) microseconds."""

    def chunk_ns(self, new_tokens: int, prefix_tokens: int) -> float:
        return float(new_tokens + prefix_tokens)

    def step_ns(
        self, tokens: int, seqs: int, decode_seqs: int, decode_kv_tokens: int, chunks_ns: float
    ) -> int:
        return (5000 + 20 * tokens + (decode_kv_tokens + int(chunks_ns)) // 2) * 1000


def ns(milliseconds: float | None) -> int:
    return -1 if milliseconds is None else round(milliseconds * 1000) * 1000


def table_and_config(recorded, document):
    settings = recorded["config"]
    named = {key: settings[key] for key in EngineConfig.__dataclass_fields__ if key in settings}
    config = EngineConfig(**named, scheduling_policy=settings["policy"])
    rows = recorded.get("requests") or document["requests"]
    table = request_table(
        [(ns(row[1]), sum(length for _, length in row[2]), row[4], row[4]) for row in rows]
    )
    segments = segments_of([row[2] for row in rows], [row[3] for row in rows])
    priority = np.array([row[5] for row in rows])
    return replace(table, segments=segments, priority=priority), config


@pytest.mark.parametrize(("recorded", "document"), list(modelled_runs()))
def test_every_step_is_the_recorded_one(recorded, document):
    table, config = table_and_config(recorded, document)
    rows = recorded.get("requests") or document["requests"]
    expected = steps_of(recorded)
    # A livelock is recorded up to some step: no further one begins.
    cut_ns = ns(expected[-1]["time_ms"]) + 1 if "note" in recorded["summary"] else None
    trace = run(table, config, RecordedClock(), until_ns=cut_ns, spy=True)
    steps = trace.tables["steps"]
    numbers = {row[0]: index for index, row in enumerate(rows)}

    calls = [note for note in trace.plans if note.scheduled or note.preempted]
    assert len(calls) == len(expected)
    rows = iter(range(len(steps["start_ns"])))
    later = iter(trace.plans)
    after = next(later)
    for index, (step, note) in enumerate(zip(expected, calls, strict=True)):
        assert note.time_ns == ns(step["time_ms"]), index
        assert note.scheduled == [(numbers[r], n, c) for r, n, c in step["scheduled"]], index
        assert note.preempted == [numbers[request] for request in step["preempted"]], index
        if "block_tables" in step:
            tables = {
                numbers[int(r)]: tuple(groups[0]) for r, groups in step["block_tables"].items()
            }
            assert note.block_tables == tables, index
        if not step["scheduled"]:
            continue
        at = next(rows)
        row = {name: column[at] for name, column in steps.items()}
        assert row["start_ns"] == ns(step.get("start_ms", step["time_ms"])), index
        end_ns = row["start_ns"] + row["duration_ns"]
        assert end_ns == ns(step.get("end_ms", end_ns / 1e6)), index
        assert row["running_seqs"] == step["running"], index
        assert row["waiting_seqs"] == step["waiting"], index
        free_tokens = row["kv_free_tokens"] + row["kv_reusable_tokens"]
        assert free_tokens // config.block_size == step["free_blocks"], index
        # The next call from its end on sees what its output has left.
        while after is not None and after.time_ns < end_ns:
            after = next(later, None)
        if after is not None:
            assert len(after.free_queue_before) == step["free_blocks_after"], index
            queue = list(after.free_queue_before)
            assert queue == step.get("free_queue", queue), index
            if config.enable_prefix_caching:
                assert after.cached_keys_before == step["cached_hashes"], index

    requests = trace.tables["requests"]
    order = requests["request"].argsort()
    for index, outcome in enumerate(recorded["outcome"]):
        row = dict(zip(recorded["outcome_fields"], outcome, strict=True))
        at = order[index]
        assert requests["first_token_ns"][at] == ns(row["first_token_ms"])
        assert requests["finish_ns"][at] == ns(row["finish_ms"])
        assert requests["output_tokens"][at] == row["n_output"]
        assert requests["preemptions"][at] == row["n_preemptions"]
        assert requests["cached_tokens"][at] == (row.get("cached_tokens") or 0)


def test_a_livelock_of_the_real_one_is_told_and_not_simulated_for_ever():
    found = {name: (recorded, document) for name, recorded, document in recorded_runs()}
    recorded, document = found[next(name for name in found if "7_livelock" in name)]
    table, config = table_and_config(recorded, document)
    with pytest.raises(InputError, match="livelocks, as vLLM's does"):
        run(table, config, RecordedClock())
