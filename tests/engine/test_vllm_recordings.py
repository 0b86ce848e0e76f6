"""The engine takes the decisions of the real vLLM scheduler: every field of every recorded step."""

import json
from dataclasses import replace

import pytest

from kvsim.conformance.compare import conform
from kvsim.conformance.replay import engine_config, replay, request_table
from kvsim.conformance.step_time import recorded_step_time
from kvsim.engine.allocators import PoolShape
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.config import EngineConfig
from kvsim.engine.fleet import why_never
from kvsim.engine.request import Request
from kvsim.errors import InputError
from kvsim.tables import OUTCOMES
from kvsim.workload.files import decompressed
from tests.conformance.recorded import FILES, FOLDER, recorded
from tests.engine.harness import run

REJECTED = OUTCOMES.index("rejected")
CONFIG = EngineConfig(
    max_num_seqs=8, max_num_batched_tokens=512, max_model_len=512, num_gpu_blocks=401
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_run_is_identical(file):
    for verdict in conform(file):
        assert verdict.identical, verdict
        assert verdict.steps_identical == verdict.steps


def test_the_front_end_refuses_what_vllms_refuses():
    with decompressed(FOLDER / "09_never_fit.json.xz") as file:
        check = json.load(file)["frontend_check"]
    assert check["max_model_len"] == CONFIG.max_model_len
    pool = PagedPool(PoolShape.of(CONFIG))
    for prompt_tokens, result, *_ in check["rows"]:
        request = Request(0, 0, 0, prompt_tokens, max_tokens=10)
        assert bool(why_never(request, CONFIG, pool)) == (result == "rejected"), prompt_tokens


def test_a_pool_takes_a_request_of_the_longest_length_exactly_if_vllm_starts_with_it():
    with decompressed(FOLDER / "09_never_fit.json.xz") as file:
        check = json.load(file)["startup_check"]
    for num_gpu_blocks, result, *_ in check["rows"]:
        config = replace(CONFIG, num_gpu_blocks=num_gpu_blocks, block_size=check["block_size"])
        longest = Request(0, 0, 0, config.max_model_len - 1, max_tokens=2)
        fits = PagedPool(PoolShape.of(config)).can_ever_fit(longest)
        assert fits == (result == "starts"), num_gpu_blocks


@pytest.mark.parametrize("name", ["02_preemption/cache", "04_prefix_caching/heavy_pressure"])
def test_the_tables_count_cached_tokens_as_vllm_does(name):
    recording = recorded(name)
    cost = recorded_step_time(recording)
    trace = run(request_table(recording), engine_config(recording), cost)
    sums = {column: int(values.sum()) for column, values in trace.tables["requests"].items()}
    counters = recording.summary["prefix_cache"]
    assert counters["preempted_hits"] > 0
    assert sums["resumed_cached_tokens"] == counters["preempted_hits"]
    assert sums["cached_tokens"] == counters["hits"]
    assert sums["prompt_tokens"] == counters["queries"]
    assert sums["preemptions"] == counters["preempted_requests"]


def test_a_livelock_of_the_real_one_is_told_and_not_simulated_for_ever():
    recording = recorded("09_never_fit/prompt_larger_than_pool_no_full_isl")
    assert len(replay(recording).steps) == len(recording.steps)  # as far as it was recorded
    endless = replace(recording, steps=recording.steps * 1000, summary={})
    with pytest.raises(InputError, match="livelocks, as vLLM's does"):
        replay(endless)


def test_with_its_front_end_the_engine_rejects_what_would_block_it():
    recording = recorded("09_never_fit/prompt_larger_than_pool_default")
    config = replace(CONFIG, max_model_len=8192, num_gpu_blocks=101)
    trace = run(request_table(recording), config, recorded_step_time(recording))
    assert trace.tables["requests"]["outcome"].tolist().count(REJECTED) == 1
    assert (trace.tables["requests"]["finish_ns"] >= 0).all()
