"""Memory: what real servers logged, laws of the split, start-up lines, and what would fit."""

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvsim.cli.memory import memory
from kvsim.defaults import default_step_limits
from kvsim.errors import InputError
from kvsim.gpu import load_gpu
from kvsim.memory import (
    MemoryBudget,
    MemoryFlags,
    at_auto_dtype,
    kv_layout,
    memory_budget,
    parse_startup_line,
    refuse_several_kv_sizes,
    resolve_flags,
    startup_lines,
    what_would_fit,
)
from kvsim.memory.budget import activation_bytes, capture_sizes
from kvsim.model import ModelSpec, load_model

DATA = Path(__file__).parent / "data" / "memory"
GIB = 2**30
NAMES = {  # rows whose model the catalog lacks
    "meta-llama/Meta-Llama-3-8B": "meta-llama/Meta-Llama-3.1-8B",  # but for its positions
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": str(DATA / "mistral-small-3.2-24b.json"),
}
LLAMA = load_model("meta-llama/Llama-3.1-8B-Instruct")
H100 = load_gpu("h100_sxm")


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


SIZES, SERVERS = rows("kv_cache_sizes.csv"), rows("servers.csv")


def predicted(row: dict[str, str]) -> MemoryBudget:
    model, gpu = load_model(NAMES.get(row["model"], row["model"])), load_gpu(row["gpu"])
    if row["model"] == "meta-llama/Meta-Llama-3-8B":
        model = replace(model, max_position_embeddings=8192)
    if row.get("usable_gib"):
        gpu = replace(gpu, usable_hbm_bytes=int(float(row["usable_gib"]) * GIB))
    whole = ("tensor_parallel_size", "max_model_len", "max_num_batched_tokens", "max_num_seqs")
    flags = {name: int(row[name]) for name in (*whole, "block_size")}
    return memory_budget(
        model,
        gpu,
        resolve_flags(
            model,
            gpu,
            **flags,
            gpu_memory_utilization=float(row["gpu_memory_utilization"]),
            vllm_version=row["vllm_version"],
        ),
    )


def relative_error(row: dict[str, str]) -> float:
    budget = predicted(row)
    if row["num_gpu_blocks"]:
        return budget.num_gpu_blocks / int(row["num_gpu_blocks"]) - 1
    return budget.kv_cache_bytes / GIB / float(row["kv_cache_gib"]) - 1


def test_kv_pool_is_that_of_real_servers() -> None:
    errors = [abs(relative_error(row)) for row in SIZES]
    assert len(errors) == 12
    assert np.median(errors) <= 0.01
    known = [e for e, row in zip(errors, SIZES, strict=True) if row["id"] not in {"kv36", "kv41"}]
    assert np.percentile(known, 90) <= 0.06
    assert max(errors) <= 0.15


@pytest.mark.parametrize("row", SERVERS, ids=[row["id"] for row in SERVERS])
def test_kv_pool_is_that_of_benchmarked_servers(row: dict[str, str]) -> None:
    assert abs(relative_error(row)) <= 0.01


def test_the_record_of_the_qwen3_server_contradicts_its_utilization() -> None:
    row = next(row for row in SERVERS if row["id"] == "qwen3-14b-v0.23")
    budget = predicted(row)
    at_least = sum(budget.weights_bytes.values()) + int(row["num_gpu_blocks"]) * budget.block_bytes
    assert 0.9 * budget.usable_bytes < at_least < 0.92 * budget.usable_bytes


@pytest.mark.parametrize(
    "row", [r for r in SIZES if r["weights_gib"]], ids=lambda row: str(row["id"])
)
def test_weights_are_those_logged(row: dict[str, str]) -> None:
    weights = sum(predicted(row).weights_bytes.values()) / GIB
    assert weights == pytest.approx(float(row["weights_gib"]), rel=0.005)


@pytest.mark.parametrize(
    "row",
    [r for r in SIZES if r["activation_gib"] and r["id"] != "kv36"],
    ids=lambda row: str(row["id"]),
)
def test_activation_peak_is_that_logged(row: dict[str, str]) -> None:
    peak = predicted(row).activation_bytes / GIB
    assert peak == pytest.approx(float(row["activation_gib"]), rel=0.03)


def flags_for(model: ModelSpec = LLAMA, **given: object) -> MemoryFlags:
    return resolve_flags(model, H100, **({"max_model_len": 8192} | given))


def test_another_prompt_token_costs_two_hidden_states() -> None:
    qwen = load_model("Qwen/Qwen2.5-7B-Instruct")
    old = {"vllm_version": "0.15.1", "max_num_seqs": 128}
    peaks = [
        activation_bytes(qwen, flags_for(qwen, **old, max_num_batched_tokens=n))
        for n in (1024, 2048)
    ]
    measured_blocks = 65368 - 65352  # of two servers that differ in nothing else
    assert peaks[1] - peaks[0] == measured_blocks * 16 * qwen.kv_bytes_per_token()


@settings(deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    utilization=st.floats(0.4, 1.0),
    tokens=st.integers(256, 32768),
    seqs=st.integers(1, 2048),
    block_size=st.sampled_from([1, 8, 16, 32, 128]),
    version=st.sampled_from(["0.6.3", "0.11.0", "0.33.0"]),
)
def test_the_parts_add_up_to_the_budget(
    tp: int, utilization: float, tokens: int, seqs: int, block_size: int, version: str
) -> None:
    flags = flags_for(
        tensor_parallel_size=tp,
        gpu_memory_utilization=utilization,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        block_size=block_size,
        vllm_version=version,
    )
    budget = memory_budget(LLAMA, H100, flags)
    inside = budget.cuda_graph_bytes if flags.generation.counts_cuda_graphs else 0
    used = sum(budget.weights_bytes.values()) + budget.activation_bytes + inside
    assert used + budget.non_torch_bytes + budget.kv_cache_bytes == budget.budget_bytes
    assert budget.budget_bytes <= budget.usable_bytes <= budget.total_bytes
    assert budget.kv_cache_bytes - budget.num_gpu_blocks * budget.block_bytes >= 0
    assert budget.kv_cache_bytes < (budget.num_gpu_blocks + 1) * budget.block_bytes


@pytest.mark.parametrize(
    "worse",
    [
        {"gpu_memory_utilization": 0.8},
        {"max_num_batched_tokens": 65536},
        {"max_num_seqs": 4096},
        {"kv_cache_dtype": "bfloat16"},
    ],
)
def test_what_takes_memory_leaves_fewer_blocks(worse: dict[str, object]) -> None:
    base = flags_for(kv_cache_dtype="fp8")
    fewer = memory_budget(LLAMA, H100, replace(base, **worse))  # type: ignore[arg-type]
    assert fewer.num_gpu_blocks < memory_budget(LLAMA, H100, base).num_gpu_blocks


def test_mla_sets_aside_room_to_expand_latents() -> None:
    model = load_model("deepseek-ai/DeepSeek-V3")
    flags = flags_for(model, tensor_parallel_size=8, max_num_seqs=1, max_num_batched_tokens=64)
    expanded = 65536 * (16 * (128 + 128) + 512 + 64) * 2
    assert activation_bytes(model, flags) == expanded + 3 * 64 * 7168 * 2


def test_eager_mode_has_no_graphs() -> None:
    eager = memory_budget(LLAMA, H100, flags_for(enforce_eager=True))
    captured = memory_budget(LLAMA, H100, flags_for())
    assert eager.cuda_graph_bytes == 0
    assert eager.kv_cache_bytes - captured.kv_cache_bytes == captured.cuda_graph_bytes > 0


def test_capture_sizes_are_vllms() -> None:
    assert capture_sizes(16) == [1, 2, 4, 8, 16]
    sizes = capture_sizes(512)
    assert len(sizes) == 51
    assert sizes[-1] == 512
    assert capture_sizes(3) == [1, 2]


def test_overrides_take_the_place_of_the_computed_pool() -> None:
    blocks = memory_budget(LLAMA, H100, flags_for(num_gpu_blocks_override=1234))
    assert (blocks.num_gpu_blocks, blocks.blocks_source) == (1234, "num_gpu_blocks_override")
    size = memory_budget(LLAMA, H100, flags_for(kv_cache_memory_bytes=10 * GIB))
    assert size.num_gpu_blocks == 10 * GIB // (16 * 131072)
    assert size.blocks_source == "kv_cache_memory_bytes"


def test_one_request_must_fit_beside_the_null_block() -> None:
    just_enough = flags_for(max_model_len=160, num_gpu_blocks_override=11)
    assert memory_budget(LLAMA, H100, just_enough).usable_blocks == 10
    too_few = replace(just_enough, num_gpu_blocks_override=10)
    with pytest.raises(InputError, match="max_model_len 144"):
        memory_budget(LLAMA, H100, too_few)
    v0 = replace(too_few, vllm_version="0.6.3")  # no null block yet
    assert memory_budget(LLAMA, H100, v0).usable_blocks == 10


def test_sequence_state_takes_blocks_too() -> None:
    model = load_model("Qwen/Qwen3.5-35B-A3B")
    budget = memory_budget(model, load_gpu("h200_sxm"), flags_for(model))
    state_blocks = -(-model.state_bytes_per_sequence() // budget.block_bytes)
    assert budget.blocks_per_request(8192) == 512 + state_blocks
    assert budget.max_concurrency(8192) == budget.num_gpu_blocks / (512 + state_blocks)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "h100_sxm"),
        ("meta-llama/Llama-3.1-8B-Instruct", "l4"),
        ("deepseek-ai/DeepSeek-V3", "h200_sxm"),
        ("Qwen/Qwen3-32B", "a40"),
        ("openai/gpt-oss-120b", "h100_sxm"),
        ("meta-llama/Meta-Llama-3.1-405B", "h100_sxm"),
    ],
)
def test_what_would_fit_does_fit_and_not_a_block_more(name: str, gpu: str) -> None:
    model, card = load_model(name), load_gpu(gpu)
    flags = resolve_flags(model, card)
    with pytest.raises(InputError) as error:
        memory_budget(model, card, flags)
    options = what_would_fit(model, card, flags)
    assert options
    for option in options:
        assert option in str(error.value)
        changed, change = apply(model, flags, option)
        assert memory_budget(changed, card, change).fits
        if "max_model_len" in option:
            longer = replace(change, max_model_len=change.max_model_len + 1)
            with pytest.raises(InputError):
                memory_budget(changed, card, longer)


def test_what_no_node_holds_is_put_on_several() -> None:
    model = load_model("meta-llama/Meta-Llama-3.1-405B")
    options = what_would_fit(model, H100, resolve_flags(model, H100, max_model_len=8192))
    assert options[-1] == "tensor_parallel_size 8, pipeline_parallel_size 2"
    assert not any("size 16" in option for option in options)


def apply(model: ModelSpec, flags: MemoryFlags, option: str) -> tuple[ModelSpec, MemoryFlags]:
    from kvsim.model import quantized_weights

    for name in (
        "max_model_len",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "max_num_batched_tokens",
        "max_num_seqs",
        "num_gpu_blocks_override",
        "kv_cache_memory_bytes",
    ):
        if match := re.search(rf"{name} (\d+)", option):
            flags = replace(flags, **{name: int(match[1])})
    if "kv_cache_dtype fp8" in option:
        flags = replace(flags, kv_cache_dtype="fp8")
    return (
        replace(model, quantization=quantized_weights("fp8")) if "fp8 weights" in option else model
    ), flags


@pytest.mark.parametrize("pool", ["num_gpu_blocks_override", "kv_cache_memory_bytes"])
def test_a_pool_that_is_given_is_not_helped_by_what_it_does_not_depend_on(pool: str) -> None:
    size = 200 if pool == "num_gpu_blocks_override" else 200 * 16 * 131072
    flags = flags_for(max_model_len=4096, **{pool: size})
    with pytest.raises(InputError, match=f"{pool} gives it 400.00 MiB") as error:
        memory_budget(LLAMA, H100, flags)
    options = what_would_fit(LLAMA, H100, flags)
    assert "; ".join(options) in str(error.value)
    assert not any("fp8 weights" in option or "max_num" in option for option in options)
    assert options[0] == "max_model_len 3184"
    if pool == "num_gpu_blocks_override":
        assert options == ["max_model_len 3184", "num_gpu_blocks_override 257"]
    for option in options:  # bytes hold more tokens that are smaller: fp8, or split among GPUs
        changed, change = apply(LLAMA, flags, option)
        assert memory_budget(changed, H100, change).fits
        if option.startswith(pool):
            with pytest.raises(InputError):
                memory_budget(changed, H100, replace(change, **{pool: getattr(change, pool) - 1}))


def test_a_step_too_large_is_named_and_a_smaller_one_offered() -> None:
    card = load_gpu("l4")
    flags = resolve_flags(LLAMA, card, max_model_len=4096, max_num_batched_tokens=200_000)
    with pytest.raises(InputError, match=r"activations of a step 20\.60 GiB, CUDA graphs") as error:
        memory_budget(LLAMA, card, flags)
    assert "What would fit: max_num_batched_tokens 32768;" in str(error.value)
    assert memory_budget(LLAMA, card, replace(flags, max_num_batched_tokens=32768)).fits
    with pytest.raises(InputError):
        memory_budget(LLAMA, card, replace(flags, max_num_batched_tokens=65536))


def test_a_batch_too_large_to_sample_for_gets_a_smaller_one() -> None:
    card = load_gpu("l4")
    steps = {"max_num_seqs": 8192, "max_num_batched_tokens": 8192}
    flags = resolve_flags(LLAMA, card, max_model_len=4096, **steps)
    options = what_would_fit(LLAMA, card, flags)
    assert options[0] == "max_num_seqs 2048"
    fewer = replace(flags, max_num_seqs=2048)
    assert memory_budget(LLAMA, card, fewer).fits
    assert what_would_fit(LLAMA, card, fewer) == []
    with pytest.raises(InputError, match="activations of a step"):
        memory_budget(LLAMA, card, replace(flags, max_num_seqs=4096))


@pytest.mark.parametrize("name", ["v100_sxm", "t4"])
def test_bfloat16_and_fp8_need_an_ampere_gpu(name: str) -> None:
    card, qwen = load_gpu(name), load_model("Qwen/Qwen3-8B")
    flags = resolve_flags(qwen, card, max_model_len=40_960)
    with pytest.raises(InputError, match=f"{name} has no bfloat16.*: set dtype float16"):
        memory_budget(qwen, card, flags)
    half = at_auto_dtype(qwen, card)
    assert half == replace(qwen, dtype="float16")
    assert not any("fp8" in option for option in what_would_fit(half, card, flags))
    ampere = replace(card, sm_arch=80)
    assert at_auto_dtype(qwen, ampere) is qwen
    assert "fp8" in "; ".join(what_would_fit(qwen, replace(ampere, hbm_bytes=16 * GIB), flags))
    unknown = replace(ampere, sm_arch=None, hbm_bytes=80 * GIB, usable_hbm_bytes=None)
    assert memory_budget(qwen, unknown, flags).fits


def test_the_error_says_by_how_much() -> None:
    model = load_model("meta-llama/Llama-3.1-70B-Instruct")
    flags = resolve_flags(model, H100, max_model_len=4096)
    with pytest.raises(InputError) as error:
        memory_budget(model, H100, flags)
    short = re.search(r": ([\d.]+) GiB short", str(error.value))
    assert short
    bigger = replace(H100, usable_hbm_bytes=int((79.18 + float(short[1]) / 0.92 + 0.1) * GIB))
    assert memory_budget(model, bigger, flags).fits
    slightly = replace(H100, usable_hbm_bytes=int((79.18 + float(short[1]) / 0.92 - 0.1) * GIB))
    with pytest.raises(InputError):
        memory_budget(model, slightly, flags)


def test_a_kv_cache_has_one_size() -> None:
    refuse_several_kv_sizes(None, None, None)
    refuse_several_kv_sizes(3, None, None)
    for sizes in ((3, "GPU KV cache size: 48 tokens", None), (3, None, 9), (None, "x", 9)):
        with pytest.raises(InputError, match="keep one"):
            refuse_several_kv_sizes(*sizes)


def test_impossible_flags_are_all_told_at_once() -> None:
    flags = flags_for(
        max_model_len=200_000, gpu_memory_utilization=1.5, block_size=0, tensor_parallel_size=0
    )
    with pytest.raises(InputError) as error:
        memory_budget(LLAMA, H100, flags)
    text = str(error.value)
    assert len(error.value.problems) == 4
    for name in ("max_model_len", "gpu_memory_utilization", "block_size", "tensor_parallel_size"):
        assert name in text
    with pytest.raises(InputError, match="'latest' is not a version"):
        memory_budget(LLAMA, H100, flags_for(vllm_version="latest"))


@pytest.mark.parametrize(
    ("gpu", "tokens", "seqs"),
    [
        ("h100_sxm", 8192, 1024),
        ("b200_sxm", 16384, 1024),
        ("a100_sxm", 2048, 256),
        ("l4", 2048, 256),
    ],
)
def test_defaults_depend_on_the_gpu(gpu: str, tokens: int, seqs: int) -> None:
    defaults = default_step_limits(load_gpu(gpu))
    assert (defaults.max_num_batched_tokens, defaults.max_num_seqs) == (tokens, seqs)
    flags = resolve_flags(LLAMA, load_gpu(gpu), max_num_seqs=7, block_size=None)
    assert (flags.max_num_batched_tokens, flags.max_num_seqs, flags.block_size) == (tokens, 7, 16)
    assert flags.max_model_len == LLAMA.max_position_embeddings


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("GPU KV cache size: 436,608 tokens", 27288),
        ("INFO 11-29 gpu_executor.py:76] # GPU blocks: 27288, # CPU blocks: 2048", 27288),
        ("# cuda blocks: 1,000, # CPU blocks: 2048", 1000),
        ("Available KV cache memory: 53.29 GiB", int(53.29 * GIB) // (16 * 131072)),
        ("num_gpu_blocks is: 512", 512),
        ("Available KV cache memory: 1.00 GiB\nGPU KV cache size: 1,600 tokens", 100),
    ],
)
def test_startup_lines_are_read(text: str, blocks: int) -> None:
    assert parse_startup_line(text, kv_layout(LLAMA, flags_for())) == blocks


@pytest.mark.parametrize(
    "text", ["", "hello", "GPU KV cache size: ,,, tokens", "# GPU blocks: 0, # CPU blocks: 2048",
             "Available KV cache memory: 5.3.1 GiB", "GPU KV cache size: 15 tokens"]
)  # fmt: skip
def test_other_lines_are_refused_with_examples(text: str) -> None:
    with pytest.raises(InputError, match="expected a line like 'GPU KV cache size"):
        parse_startup_line(text, kv_layout(LLAMA, flags_for()))


def test_lines_written_are_read_back() -> None:
    budget = memory_budget(LLAMA, H100, flags_for())
    lines = startup_lines(budget)
    assert parse_startup_line(lines[2], budget.kv_layout) == budget.num_gpu_blocks
    rounded = parse_startup_line(lines[1], budget.kv_layout)
    assert rounded == pytest.approx(budget.num_gpu_blocks, abs=0.005 * GIB / budget.block_bytes + 1)
    assert lines[3].startswith("Maximum concurrency for 8,192 tokens per request: ")


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(memory)
    base = ["--model", LLAMA.name, "--gpu", "h100_sxm", "--max-model-len", "16384"]
    result = CliRunner().invoke(app, [*base, *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_command_shows_the_split_within_80_columns() -> None:
    text = run()
    assert max(len(line) for line in text.splitlines()) <= 80
    budget = memory_budget(LLAMA, H100, flags_for(max_model_len=16384))
    for line in startup_lines(budget):
        assert line in text.splitlines()
    assert f"{budget.num_gpu_blocks:,}" in text


def test_the_command_speaks_json() -> None:
    plain = json.loads(run("--json"))
    assert plain["num_gpu_blocks"] * 16 == plain["kv_cache_tokens"]
    assert plain["flags"]["max_num_batched_tokens"] == 8192
    line = "GPU KV cache size: 436,608 tokens"
    assert json.loads(run("--json", "--kv-startup-line", line))["num_gpu_blocks"] == 27288
    two = json.loads(run("--json", "--tensor-parallel-size", "2", "--kv-cache-dtype", "fp8"))
    assert two["kv_bytes_per_token"] * 4 == plain["kv_bytes_per_token"]


def test_the_command_is_imported_without_heavy_libraries() -> None:
    code = (
        "import sys, kvsim.cli.memory; "
        "sys.exit(any(m in sys.modules for m in ('numpy', 'pydantic', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
