"""How layers form KV groups, and what that leaves of a GPU's memory."""

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from kvsim.gpu import load_gpu
from kvsim.memory import (
    KVGroup,
    kv_layout,
    memory_budget,
    parse_startup_line,
    resolve_flags,
    slots_of,
    startup_lines,
)
from kvsim.memory.budget import split_memory
from kvsim.model import LayerGroup, load_model

RECORDED = Path(__file__).parent / "data" / "vllm_schedules" / "11_sliding_window_hybrid.json.xz"
PLANNED = json.loads(lzma.decompress(RECORDED.read_bytes()))["grouping_check"]
H100 = load_gpu("h100_sxm")
GPT_OSS = load_model("openai/gpt-oss-20b")


def flags_of(model, **given):
    return resolve_flags(model, H100, **{"max_model_len": 8192} | given)


def mixed(full_layers, sliding_layers):
    """A model of layers with 4,096 bytes a token, those with a window first."""
    model = load_model("meta-llama/Llama-3.1-8B-Instruct")
    layer = model.layers[0]
    sliding = replace(layer.attention, kind="sliding", window_tokens=1024)
    counts = ((sliding_layers, sliding), (full_layers, layer.attention))
    layers = tuple(LayerGroup(count, each, layer.mlp) for count, each in counts if count)
    return replace(model, layers=layers)


@pytest.mark.parametrize("row", PLANNED["rows"], ids=lambda row: f"{row[0]}+{row[1]}")
def test_groups_and_blocks_are_those_of_the_real_planner(row):
    full_layers, sliding_layers, groups, blocks = row
    model = mixed(full_layers, sliding_layers)
    flags = flags_of(model, kv_cache_memory_bytes=PLANNED["memory_bytes"])
    layout = kv_layout(model, flags)
    kinds = ["sliding" if group.window_tokens else "full" for group in layout.groups]
    assert kinds == [kind for kind, _ in groups]
    assert memory_budget(model, H100, flags).num_gpu_blocks == blocks


def test_a_model_of_one_kind_of_layers_is_one_group():
    for full_layers, sliding_layers in ((32, 0), (0, 32)):
        model = mixed(full_layers, sliding_layers)
        layout = kv_layout(model, flags_of(model))
        assert layout.groups == (KVGroup(16, 0 if full_layers else 1024),)
        assert layout.block_bytes == 16 * model.kv_bytes_per_token()


def test_layers_with_smaller_tokens_have_more_of_them_in_a_block():
    """Gemma 4: 5 full layers of 2 heads of 512, and 25 with a window, of 8 heads of 256."""
    model = load_model("google/gemma-4-26B-A4B")
    layout = kv_layout(model, flags_of(model))
    assert sorted(group.block_size for group in layout.groups) == [16] * 5 + [32]
    assert [group.window_tokens for group in layout.groups if group.block_size == 16] == [1024] * 5
    assert layout.block_bytes == 5 * 16 * (2 * 8 * 256 * 2)
    assert slots_of(layout.groups) == (32, 1 + 5 * 2)


@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.5-27B",
             "meta-llama/Llama-4-Scout-17B-16E-Instruct"]
)  # fmt: skip
def test_other_models_are_charged_for_the_whole_context(name):
    model = load_model(name)
    flags = flags_of(model, tensor_parallel_size=8)
    layout = kv_layout(model, flags)
    assert layout.groups == (KVGroup(16),)
    assert layout.block_bytes == 16 * model.kv_bytes_per_token(8)


@pytest.mark.parametrize(
    "given", [{"disable_hybrid_kv_cache_manager": True}, {"vllm_version": "0.6.0"}]
)
def test_the_hybrid_manager_can_be_off(given):
    layout = kv_layout(GPT_OSS, flags_of(GPT_OSS, **given))
    assert layout.groups == (KVGroup(16),)


def test_windows_leave_room_for_more_requests_but_the_log_tells_the_same_tokens():
    """gpt-oss: half of the layers see 128 tokens; of 8,192 these keep at most 128 + one chunk."""
    budgets = [
        memory_budget(GPT_OSS, H100, flags_of(GPT_OSS, disable_hybrid_kv_cache_manager=off))
        for off in (False, True)
    ]
    windows, whole = budgets
    assert windows.kv_cache_tokens == pytest.approx(whole.kv_cache_tokens, abs=16)
    assert windows.num_gpu_blocks == pytest.approx(2 * whole.num_gpu_blocks, abs=1)
    chunk_blocks = -(-(127 + windows.flags.max_num_batched_tokens) // 16) + 1
    assert windows.blocks_per_request(100_000) == 100_000 // 16 + chunk_blocks
    assert windows.max_concurrency(131_072) > 1.5 * whole.max_concurrency(131_072)


def test_a_logged_size_gives_the_blocks_of_all_groups():
    budget = memory_budget(GPT_OSS, H100, flags_of(GPT_OSS))
    _, _, tokens, _ = startup_lines(budget)
    blocks = parse_startup_line(tokens, budget.kv_layout)
    assert blocks == budget.num_gpu_blocks // 2 * 2


@pytest.mark.parametrize("model", [GPT_OSS, mixed(32, 0), mixed(8, 24)], ids=lambda m: m.name)
@pytest.mark.parametrize("blocks", [3, 100, 700, 1500])
def test_the_longest_request_fits_and_one_block_more_does_not(model, blocks):
    flags = flags_of(model, num_gpu_blocks_override=blocks, max_num_batched_tokens=256)
    budget = split_memory(model, H100, flags)
    longest = budget.longest_request_tokens
    assert budget.blocks_per_request(longest) <= budget.usable_blocks or longest == 0
    assert budget.blocks_per_request(longest + 1) > budget.usable_blocks


def test_windows_alone_bound_what_a_request_takes():
    model = mixed(0, 32)
    flags = flags_of(model, num_gpu_blocks_override=200, max_num_batched_tokens=512)
    budget = memory_budget(model, H100, flags)
    assert budget.blocks_per_request(8192) == (1023 + 512 + 15) // 16 + 1
    assert budget.fits
    assert budget.longest_request_tokens == 8192
