"""Scenarios with schedulers of earlier engines: what is filled in, and what is refused."""

import pytest

from kvsim.engine.schedulers import EARLIER_ENGINE
from kvsim.errors import InputError
from kvsim.scenario.load import load_scenario
from kvsim.scenario.resolve import resolve, resolve_all
from kvsim.scenario.schema import Scenario

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SHORT = {"max_model_len": 2048, "max_num_batched_tokens": 4096}
LAYOUTS = {
    "vllm_v0": "paged",
    "sarathi": "paged",
    "orca": "contiguous",
    "faster_transformer": "contiguous",
}


def scenario(scheduler, engine=SHORT, **rest):
    kind = scheduler if isinstance(scheduler, str) else scheduler["kind"]
    values = {
        "model": LLAMA,
        "gpu": "a100_sxm",
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 2.0},
            "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 20},
            "num_requests": 10,
        },
        "kv_cache": LAYOUTS.get(kind, "paged"),
        "scheduler": scheduler,
        "engine": engine,
        **rest,
    }
    return Scenario.model_validate(values)


def problems(*arguments, **rest):
    with pytest.raises(InputError) as caught:
        resolve(scenario(*arguments, **rest))
    return {problem.path: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_an_earlier_engine_runs_with_the_settings_of_its_time(kind):
    variant = resolve(scenario(kind))
    for name, value in EARLIER_ENGINE.items():
        assert getattr(variant.engine, name) == value, name
    assert variant.engine.enable_chunked_prefill == (kind == "sarathi")
    assert variant.engine.watermark == (0.01 if LAYOUTS[kind] == "paged" else 0.0)
    assert variant.profile.overhead.kind == "synchronous"
    scheduler = variant.build_scheduler(variant.engine, variant.build_allocator(lambda _: 1), [])
    assert scheduler.most_in_flight == 1


def test_what_is_written_wins():
    variant = resolve(
        scenario("vllm_v0", {**SHORT, "watermark": 0.2}, cost={"profile": "vllm-0.12"})
    )
    assert variant.engine.watermark == 0.2
    assert variant.profile.overhead.kind == "async_engine"
    assert not variant.engine.async_scheduling


@pytest.mark.parametrize("kind", LAYOUTS)
def test_settings_that_it_has_no_choice_about_are_refused_in_one_go(kind):
    found = problems(
        kind,
        {
            **SHORT,
            "async_scheduling": True,
            "enable_prefix_caching": True,
            "scheduling_policy": "priority",
            "long_prefill_token_threshold": 100,
            "max_num_active_seqs": 3,
            "enable_chunked_prefill": kind != "sarathi",
        },
        kv_cache="paged" if LAYOUTS[kind] == "contiguous" else "contiguous",
    )
    assert found == {
        "engine.async_scheduling": f"the scheduler {kind} runs with false; remove it",
        "engine.enable_prefix_caching": f"the scheduler {kind} runs with false; remove it",
        "engine.scheduling_policy": f"the scheduler {kind} runs with fcfs; remove it",
        "engine.long_prefill_token_threshold": f"the scheduler {kind} runs with 0; remove it",
        "engine.max_num_active_seqs": f"the scheduler {kind} runs with null; remove it",
        "engine.enable_chunked_prefill": (
            f"the scheduler {kind} runs with {str(kind == 'sarathi').lower()}; remove it"
        ),
        "kv_cache": f"the scheduler {kind} works with kv_cache: {LAYOUTS[kind]} only",
    }


def test_whole_prompts_get_the_budget_that_the_longest_one_needs():
    long = {"max_model_len": 30_000}
    assert resolve(scenario("vllm_v0", long)).engine.max_num_batched_tokens == 30_000
    assert resolve(scenario("sarathi", long)).engine.max_num_batched_tokens == 2048
    found = problems("vllm_v0", {**long, "max_num_batched_tokens": 2048})
    assert list(found) == ["engine.max_num_batched_tokens"]


def test_the_null_block_came_with_v1():
    assert not resolve(scenario("vllm_v0")).scenario.kv_cache.null_block
    kept = {"kind": "paged", "null_block": True}
    assert resolve(scenario("vllm_v0", kv_cache=kept)).scenario.kv_cache.null_block


def test_values_that_say_the_same_are_welcome():
    off = {"async_scheduling": False, "enable_prefix_caching": False, "max_num_active_seqs": None}
    assert not resolve(scenario("orca", {**SHORT, **off})).engine.async_scheduling


def test_sliding_windows_are_refused():
    found = problems("vllm_v0", {}, model="openai/gpt-oss-20b", gpu="h100_sxm")
    assert "sliding windows" in found["engine.disable_hybrid_kv_cache_manager"]
    whole = {**SHORT, "disable_hybrid_kv_cache_manager": True}
    variant = resolve(scenario("vllm_v0", whole, model="openai/gpt-oss-20b", gpu="h100_sxm"))
    assert variant.engine.kv_groups == ()


def test_swapping_needs_to_know_the_link():
    own = {
        "name": "mine",
        "hbm_bytes": 8e10,
        "hbm_bytes_per_s": 2e12,
        "bf16_flop_per_s": 3e14,
    }
    found = problems({"kind": "vllm_v0", "preemption": "swap"}, gpu=own)
    assert list(found) == ["scheduler.preemption"]
    assert resolve(scenario("vllm_v0", gpu=own)).kv_block is None
    known = {**own, "pcie_bytes_per_s": 3e10}
    assert resolve(scenario("vllm_v0", gpu=known)).kv_block.link_bytes_per_s == 3e10


def test_a_block_is_what_one_gpu_copies():
    variant = resolve(scenario({"kind": "vllm_v0", "preemption": "swap", "swap_space_gib": 1}))
    block = variant.kv_block
    assert block.size_bytes == 16 * 8 * 128 * 2 * 2 * 32
    assert block.tensors == 2 * 32
    allocator = variant.build_allocator(lambda _: 1)
    scheduler = variant.build_scheduler(variant.engine, allocator, [])
    assert scheduler.swap_space.capacity_blocks == 2**30 // block.size_bytes
    halves = {**SHORT, "tensor_parallel_size": 2}
    assert resolve(scenario("vllm_v0", halves)).kv_block.size_bytes == block.size_bytes // 2
    staged = resolve(scenario("vllm_v0", {**SHORT, "pipeline_parallel_size": 2})).kv_block
    assert (staged.size_bytes, staged.tensors) == (block.size_bytes // 2, 32)


def test_the_usual_scheduler_leaves_the_documents_as_they_were():
    usual = resolve(scenario("vllm"))
    assert "scheduler" not in usual.as_dict()
    assert usual.engine.async_scheduling
    assert resolve(scenario("vllm_v0")).as_dict()["scheduler"]["kind"] == "vllm_v0"


def test_a_mistake_is_told_with_file_line_and_path(write):
    path = write("engine: {max_model_len: 2048, async_scheduling: true}\nscheduler: vllm_v0\n")
    with pytest.raises(InputError) as caught:
        resolve_all(load_scenario(path))
    (problem,) = [each for each in caught.value.problems if "async" in each.path]
    assert (problem.line, problem.path) == (7, "engine.async_scheduling")


def test_vllms_own_name_for_the_swap_space_leads_to_the_right_place(write):
    path = write("engine: {swap_space: 4}\n")
    with pytest.raises(InputError, match="swap_space_gib"):
        load_scenario(path)
