"""The engine takes the decisions of the real vLLM scheduler, step for step, where both can.

Covers the recorded runs with what this engine models: first come first served, synchronous, no
full attention.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from kvsim.engine.config import EngineConfig
from kvsim.errors import InputError
from kvsim.memory.kv_groups import KVGroup
from tests.engine.harness import request_table, run, segments_of
from tests.engine.recordings import recorded_runs, steps_of

MODELLED = {
    "async_scheduling": False,
}
# Requests that a front end refuses, or that block the queue for ever: kvsim turns them away.
NEVER_SERVED = "09_never_fit"
# With mixed block sizes vLLM also keeps a key for a part of a block, which nothing ever finds.
OTHER_KEYS = {"11_sliding_window_hybrid/full32+swa16_cache_retention0"}


def modelled_runs():
    for name, recorded, document in recorded_runs():
        config = recorded["config"]
        if all(config[key] == value for key, value in MODELLED.items()) and (
            not name.startswith(NEVER_SERVED) or name.endswith("length_cap_at_max_model_len")
        ):
            yield pytest.param(name, recorded, document, id=name)


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


def kv_group(default_size, kind, window=None, block_size=None):
    assert kind in ("full", "sliding")
    return KVGroup(block_size or default_size, window or 0)


def table_and_config(recorded, document):
    settings = recorded["config"]
    named = {key: settings[key] for key in EngineConfig.__dataclass_fields__ if key in settings}
    named["kv_groups"] = tuple(kv_group(settings["block_size"], *g) for g in settings["kv_groups"])
    config = EngineConfig(**named, scheduling_policy=settings["policy"])
    rows = recorded.get("requests") or document["requests"]
    table = request_table(
        [(ns(row[1]), sum(length for _, length in row[2]), row[4], row[4]) for row in rows]
    )
    segments = segments_of([row[2] for row in rows], [row[3] for row in rows])
    priority = np.array([row[5] for row in rows])
    return replace(table, segments=segments, priority=priority), config


@pytest.mark.parametrize(("name", "recorded", "document"), list(modelled_runs()))
def test_every_step_is_the_recorded_one(name, recorded, document):
    table, config = table_and_config(recorded, document)
    rows = recorded.get("requests") or document["requests"]
    expected = steps_of(recorded)
    # A livelock is recorded up to some step: no further one begins.
    cut_ns = ns(expected[-1]["time_ms"]) + 1 if "note" in recorded["summary"] else None
    trace = run(table, config, RecordedClock(), until_ns=cut_ns, spy=True)
    steps = trace.tables["steps"]
    numbers = {row[0]: index for index, row in enumerate(rows)}

    assert len(trace.plans) == len(expected)
    for index, (step, note) in enumerate(zip(expected, trace.plans, strict=True)):
        assert steps["start_ns"][index] == ns(step["time_ms"]), index
        assert note.scheduled == [(numbers[r], n, c) for r, n, c in step["scheduled"]], index
        assert note.preempted == [numbers[request] for request in step["preempted"]], index
        assert steps["running_seqs"][index] == step["running"], index
        assert steps["waiting_seqs"][index] == step["waiting"], index
        free_tokens = steps["kv_free_tokens"][index] + steps["kv_reusable_tokens"][index]
        block_tokens = math.lcm(*(group.block_size for group in config.kv_groups))
        assert free_tokens // block_tokens == step["free_blocks"], index
        if config.enable_prefix_caching and name not in OTHER_KEYS:
            assert note.cached_keys == step["cached_hashes"], index
        if "block_tables" in step:
            tables = {
                numbers[int(r)]: tuple(map(tuple, groups))
                for r, groups in step["block_tables"].items()
            }
            assert note.block_tables == tables, index
        if index:
            after = expected[index - 1]
            assert len(note.free_queue_before) == after["free_blocks_after"], index
            queue = list(note.free_queue_before)
            assert queue == after.get("free_queue", queue), index

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
