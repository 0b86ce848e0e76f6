import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.config import EngineConfig
from kvsim.errors import InputError
from kvsim.model import load_model
from kvsim.scenario.load import load_scenario
from kvsim.scenario.profiles import DEFAULT_PROFILE, load_profile
from kvsim.scenario.resolve import resolve, resolve_all
from kvsim.scenario.schema import Scenario
from kvsim.scenario.variant import scenario_hash
from kvsim.workload.parameters import file_digests

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"

SYNCHRONOUS = {"async_scheduling": False}


def data(**rest):
    return {
        "model": LLAMA,
        "gpu": "h100_sxm",
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 2.0},
            "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 20},
            "num_requests": 10,
        },
        **rest,
    }


def resolved(**rest):
    return resolve(Scenario.model_validate(data(**rest)))


def complaints(path: Path) -> list[tuple[int | None, str | None, str]]:
    with pytest.raises(InputError) as caught:
        resolve_all(load_scenario(path))
    assert {problem.file for problem in caught.value.problems} == {str(path)}
    return [(p.line, p.path, p.message) for p in caught.value.problems]


@pytest.mark.parametrize(
    ("gpu", "max_num_seqs", "max_num_batched_tokens"),
    [("h100_sxm", 1024, 8192), ("a100_sxm", 256, 2048), ("b200_sxm", 1024, 16384)],
)
def test_defaults_are_those_of_vllm_0_33(gpu, max_num_seqs, max_num_batched_tokens):
    """The table in the package of vLLM 0.33.0; the longest context is the model's."""
    variant = resolved(gpu=gpu, engine={"tensor_parallel_size": 2})
    assert variant.engine == EngineConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=131072,
        num_gpu_blocks=variant.memory.num_gpu_blocks,
        enable_prefix_caching=True,
        async_scheduling=True,
    )
    assert variant.memory.flags.gpu_memory_utilization == 0.92
    assert variant.num_gpus == 2


def test_given_settings_are_taken():
    settings = {
        "max_model_len": 4096,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 4096,
        "block_size": 32,
        "num_gpu_blocks_override": 777,
        "enable_chunked_prefill": False,
        "scheduling_policy": "priority",
        "max_num_scheduled_tokens": 4096,
        "max_num_active_seqs": 4,
        "long_prefill_token_threshold": 512,
        "long_prefill_token_threshold_adaptive": True,
        "prefill_schedule_interval": 3,
        "scheduler_reserve_full_isl": False,
        "watermark": 0.25,
        "enable_prefix_caching": False,
        "async_scheduling": False,
    }
    variant = resolved(engine=settings)
    shown = {**settings, "num_gpu_blocks": 777}
    del shown["num_gpu_blocks_override"]
    assert variant.engine == EngineConfig(**shown)
    engine = variant.as_dict()["engine"]
    assert {key: engine[key] for key in settings} == settings


def test_a_pasted_startup_line_decides_the_blocks():
    line = "INFO 11-20 [kv_cache_utils.py:1087] GPU KV cache size: 436,608 tokens"
    variant = resolved(engine={"kv_startup_line": line, "max_model_len": 16384})
    assert variant.engine.num_gpu_blocks == 436_608 // 16
    assert any("given" in note for note in variant.notes)


def test_dtype_and_quantization_are_applied_to_the_model():
    plain = load_model(LLAMA)
    assert resolved().model == plain
    assert resolved(engine={"dtype": "half"}).model.dtype == "float16"
    quantized = resolved(engine={"quantization": "fp8"})
    assert sum(quantized.memory.weights_bytes.values()) < 0.65 * sum(
        resolved().memory.weights_bytes.values()
    )
    assert quantized.engine.num_gpu_blocks > resolved().engine.num_gpu_blocks


def test_an_own_gpu_and_an_own_price():
    gpu = {"name": "mine", "hbm_bytes": 8e10, "hbm_bytes_per_s": 2e12, "bf16_flop_per_s": 5e14}
    variant = resolved(gpu=gpu, engine={"max_model_len": 8192}, price_usd_per_gpu_hour=1.5)
    assert variant.gpu.name == "mine"
    assert variant.price.usd_per_gpu_hour == 1.5
    assert any("not known" in note for note in variant.notes)
    assert resolved(gpu=gpu, engine={"max_model_len": 8192}).price is None


def test_a_known_price_is_noted_with_its_date():
    variant = resolved()
    assert variant.price.usd_per_gpu_hour == 4.02
    assert any("as of 2024" in note for note in variant.notes)


def test_the_profile_says_how_the_engine_schedules_and_what_it_adds():
    usual, own = resolved(), {"front_end": {"request_s": 0.25}, "overhead": "none"}
    assert usual.profile == load_profile(DEFAULT_PROFILE)
    variant = resolved(cost=own)
    assert variant.profile.overhead.kind == "none"
    assert variant.profile.front_end.rest_ns == 250_000_000
    assert variant.as_dict()["cost"]["front_end"]["request_s"] == 0.25
    written, shipped = resolved(cost={"overhead": {"fixed_s": 0.5}}).profile, usual.profile
    assert written.overhead.fixed_s == 0.5
    assert written.overhead.per_all_reduce_s == shipped.overhead.per_all_reduce_s
    assert variant.profile.front_end.busy_s == shipped.front_end.busy_s
    affine = resolved(cost={"kind": "affine", "fixed_ns": 5})
    assert affine.profile is None
    assert affine.engine.async_scheduling


def test_what_differs_from_vllm_s_defaults_is_noted():
    notes = " ".join(resolved().notes)
    assert "Scheduling is asynchronous" in notes
    assert "Scheduling is synchronous" in " ".join(resolved(engine=SYNCHRONOUS).notes)
    assert "max_num_seqs 1024" in notes
    assert "max_num_seqs 1024" not in " ".join(resolved(engine={"max_num_seqs": 64}).notes)


@pytest.mark.parametrize(
    ("more", "line", "path", "message"),
    [
        (
            "engine:\n  max_num_seqs: 600\n  max_num_batched_tokens: 512\n",
            9, "engine.max_num_batched_tokens", "less than max_num_seqs",
        ),
        (
            "engine:\n  max_model_len: 16384\n  enable_chunked_prefill: false\n",
            7, "engine.max_num_batched_tokens", "must be at least max_model_len",
        ),
        (
            "engine:\n  tensor_parallel_size: 3\n",
            8, "engine.tensor_parallel_size", "can't be divided",
        ),
        ("engine:\n  max_model_len: 200000\n", 8, "engine.max_model_len", "131072 positions"),
        ("engine:\n  kv_startup_line: nonsense\n", 8, "engine.kv_startup_line", "KV cache size"),
        (
            "engine: {kv_startup_line: 'GPU KV cache size: 9,999,999,999,999 tokens'}\n",
            7, "engine", "624999999999 blocks; at most 100000000",
        ),
        ("engine: {num_gpu_blocks_override: 3}\n", 7, "engine", "does not fit"),
        (
            "variants:\n  small:\n    gpu: a10\n", 8, "variants.small.engine", "does not fit a10",
        ),
        (
            "variants:\n  odd:\n    engine:\n      tensor_parallel_size: 5\n",
            10, "variants.odd.engine.tensor_parallel_size", "can't be divided",
        ),
    ],
)  # fmt: skip
def test_what_vllm_refuses_is_told_with_its_place(write, more, line, path, message):
    ((found_line, found_path, found_message),) = complaints(write(more))
    assert (found_line, found_path) == (line, path)
    assert message in found_message


def test_a_model_that_does_not_fit_says_by_how_much_and_what_would(write):
    text = write().read_text().replace(LLAMA, "meta-llama/Llama-3.1-70B-Instruct")
    ((line, path, message),) = complaints(write(text=text))
    assert (line, path) == (None, "engine")
    assert "does not fit" in message
    assert re.search(r"weights .*GiB|GiB .*missing", message)
    assert re.search(r"What would fit: .*tensor_parallel_size \d", message)


def test_several_contradictions_are_told_in_one_go(write):
    more = (
        "engine: {tensor_parallel_size: 3, max_model_len: 999999}\n"
        "variants:\n  v: {engine: {max_num_batched_tokens: 16}}\n"
    )
    found = {path for _, path, _ in complaints(write(more))}
    assert found == {
        "engine.tensor_parallel_size",
        "engine.max_model_len",
        "variants.v.engine.max_num_batched_tokens",
    }


def test_what_a_variant_inherits_is_told_once(write):
    more = "engine: {tensor_parallel_size: 3}\nvariants: {a: {replicas: 2}, b: {}}\n"
    assert [path for _, path, _ in complaints(write(more))] == ["engine.tensor_parallel_size"]


def with_linear_attention(folder: Path) -> str:
    """Write a model of which half of the layers can't be priced; return its path."""
    catalog = Path(load_model.__code__.co_filename).parents[1] / "data" / "models"
    config = json.loads((catalog / "meta-llama--Llama-3.1-8B-Instruct.json").read_text())
    config["layer_types"] = ["linear_attention", "full_attention"] * 16
    heads = {"linear_num_key_heads": 8, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4}
    widths = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    path = folder / "linear.json"
    path.write_text(json.dumps(config | heads | widths))
    return str(path)


def test_a_model_that_can_not_be_priced_is_told_before_anything_runs(write, tmp_path):
    model = with_linear_attention(tmp_path)
    ((line, path, message),) = complaints(write(f"variants:\n  linear:\n    model: {model}\n"))
    assert (line, path) == (9, "variants.linear.model")
    assert "linear attention" in message


def test_an_affine_law_prices_every_model(tmp_path):
    cost = {"kind": "affine", "fixed_ns": 7}
    variant = resolved(model=with_linear_attention(tmp_path), cost=cost)
    assert variant.cost.step_ns(1, 1, 1, 1, 0.0) == 7


def test_a_gpu_without_links_can_not_share_a_model(write):
    gpu = "{name: x, hbm_bytes: 8.0e10, hbm_bytes_per_s: 2.0e12, bf16_flop_per_s: 5.0e14}"
    text = write().read_text().replace("h100_sxm", gpu)
    ((line, path, message),) = complaints(write("engine: {tensor_parallel_size: 2}\n", text=text))
    assert (line, path) == (2, "gpu")
    assert "needs link_bytes_per_s" in message


def test_a_known_architecture_gives_an_own_gpu_the_constants_measured_on_it():
    gpu = {"name": "mine", "hbm_bytes": 8e10, "hbm_bytes_per_s": 2e12, "bf16_flop_per_s": 5e14}
    notes = {
        arch: {note for _, _, note in resolved(gpu={**gpu, **arch_of}).cost.basis}
        for arch, arch_of in (("unknown", {}), ("hopper", {"sm_arch": 90}))
    }
    assert any("median constants" in note for note in notes["unknown"])
    assert any("constants of h" in note for note in notes["hopper"])
    assert not any("constants of h" in note for note in notes["unknown"])


def test_a_checkpoint_in_four_bits_is_not_quantized_again():
    with pytest.raises(InputError, match="leave quantization out"):
        resolved(model="openai/gpt-oss-20b", engine={"quantization": "fp8"})


def test_a_model_s_path_starts_at_the_scenario_file(write, tmp_path):
    config = Path(load_model.__code__.co_filename).parents[1] / "data" / "models"
    text = (config / "meta-llama--Llama-3.1-8B-Instruct.json").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(text)
    scenario = write(text=write().read_text().replace(LLAMA, "./mine"))
    base = resolve_all(load_scenario(scenario))["base"]
    assert base.model.name == "./mine"
    assert base.model.layers == load_model(LLAMA).layers


def hash_of(path: Path) -> str:
    file = load_scenario(path)
    values = {name: variant.as_dict() for name, variant in resolve_all(file).items()}
    return scenario_hash(values, file_digests(file.base.workload))


def test_the_hash_ignores_what_changes_no_result(write, tmp_path):
    plain = hash_of(write())
    assert plain == hash_of(write(name="other.yaml"))
    lines = write().read_text().splitlines()
    turned = "\n".join([*lines[2:], "# comment", *lines[:2]])
    assert hash_of(write(text=turned)) == plain
    written_out = "replicas: 1\nengine: {block_size: 16, dtype: bfloat16}\nkv_cache: paged\n"
    assert hash_of(write(written_out)) == plain
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "test.yaml").write_text(write().read_text())
    assert hash_of(elsewhere / "test.yaml") == plain


@pytest.mark.parametrize(
    "more",
    [
        "seed: 1",
        "replicas: 2",
        "kv_cache: contiguous",
        "warmup_s: 1",
        "slo: {ttft_p99_s: 1}",
        "engine: {block_size: 32}",
        "engine: {watermark: 0.1}",
        "cost: {overhead: none}",
        "price_usd_per_gpu_hour: 1",
        "variants: {a: {}}",
        "oversized_requests: reject",
    ],
)
def test_the_hash_sees_what_changes_a_result(write, more):
    assert hash_of(write(more + "\n")) != hash_of(write())


def test_the_hash_sees_the_content_of_files(write, tmp_path):
    lengths = "lengths: {kind: empirical, file: l.csv}"
    fixed = "lengths: {kind: fixed, prompt_tokens: 100, output_tokens: 20}"
    path = write(text=write().read_text().replace(fixed, lengths))
    hashes = set()
    for row in ("3,4", "3,5"):
        (tmp_path / "l.csv").write_text(f"prompt_tokens,output_tokens\n{row}\n")
        hashes.add(hash_of(path))
    assert len(hashes) == 2


@given(seed=st.integers(0, 2**64 - 1), replicas=st.integers(1, 9))
def test_resolved_values_survive_json(seed, replicas):
    values = resolved(seed=seed, replicas=replicas, cost={"kind": "affine"}).as_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["seed"] == seed
    assert values["replicas"] == replicas


def test_tensor_parallelism_ends_at_the_node(write):
    (_, path, message), *_ = complaints(write("engine:\n  tensor_parallel_size: 16\n"))
    assert (path, message[:16]) == ("engine.tensor_parallel_size", "more than 8 GPUs")


def test_auto_is_float16_where_the_gpu_has_no_bfloat16():
    assert resolved(gpu="v100_sxm", engine={"max_model_len": 4096}).model.dtype == "float16"


def test_gpus_and_engines_of_a_layout_are_counted():
    variant = resolved(
        replicas=3,
        engine={
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 4,
            "data_parallel_size": 5,
            "max_model_len": 4096,
        },
    )
    assert (variant.num_gpus, variant.num_engines) == (3 * 2 * 4 * 5, 15)
    alone = resolved(engine={"max_model_len": 4096})
    assert variant.memory.kv_bytes_per_token * 8 == alone.memory.kv_bytes_per_token
    assert variant.kv_slot_bytes * 8 == alone.kv_slot_bytes


@pytest.mark.parametrize(
    ("engine", "path", "message"),
    [
        ("tensor_parallel_size: 16", "engine.tensor_parallel_size", "leave the node"),
        (
            "tensor_parallel_size: 2, data_parallel_size: 8",
            "engine.data_parallel_size",
            "leave the node",
        ),
        (
            "tensor_parallel_size: 2, pipeline_parallel_size: 4, data_parallel_size: 2",
            "engine.data_parallel_size",
            "leave the node",
        ),
        (
            "data_parallel_size: 4, enable_expert_parallel: true, "
            "all2all_backend: deepep_low_latency",
            "engine.all2all_backend",
            "DeepEP was not measured among 4",
        ),
        ("pipeline_parallel_size: 49", "engine.pipeline_parallel_size", "more than the 48 layers"),
    ],
)
def test_layouts_that_can_not_be_priced_or_started_are_refused(write, engine, path, message):
    text = write().read_text().replace(LLAMA, "Qwen/Qwen3-30B-A3B")
    ((_, where, what),) = complaints(write(f"engine: {{{engine}}}\n", text=text))
    assert where == path
    assert message in what


def test_a_dense_model_has_no_experts_to_deal_out(write):
    ((line, path, message),) = complaints(write("engine: {enable_expert_parallel: true}\n"))
    assert (line, path) == (7, "engine.enable_expert_parallel")
    assert "has no experts" in message


def test_too_many_engines_are_refused(write):
    ((_, path, message),) = complaints(write("replicas: 1024\nengine: {data_parallel_size: 2}\n"))
    assert path == "engine.data_parallel_size"
    assert "2048 engines" in message


def test_ranks_and_stages_are_told_of():
    engine = {"pipeline_parallel_size": 2, "data_parallel_size": 2, "max_model_len": 4096}
    notes = " ".join(resolved(model="Qwen/Qwen3-30B-A3B", engine=engine).notes)
    assert "2 pipeline stages" in notes
    assert "as many tokens each" in notes


@pytest.mark.parametrize(
    ("gpu", "engine", "told"),
    [
        ("h100_sxm", {"tensor_parallel_size": 4}, None),
        ("h100_sxm", {"pipeline_parallel_size": 4}, "no measured server with pipeline stages"),
        ("l40s", {"tensor_parallel_size": 4}, "far slower among 4 and 8"),
        ("l4", {}, "on l4 no table covers gemm, attention prefill, attention decode, logits"),
        ("a6000", {"tensor_parallel_size": 2}, "attention decode, communication, logits"),
    ],
)
def test_what_no_measurement_stands_behind_is_told_loudly(gpu, engine, told):
    settings = {"max_model_len": 2048, "max_num_batched_tokens": 2048, **engine}
    loud = [n for n in resolved(gpu=gpu, engine=settings).notes if n.startswith("BEYOND")]
    assert [told in note for note in loud] == ([] if told is None else [True])


def test_the_routing_of_experts_is_a_setting():
    model = "Qwen/Qwen3-30B-A3B"
    engine = {"max_model_len": 2048, "enable_expert_parallel": True, "tensor_parallel_size": 8}
    unequal, equal = (
        resolved(model=model, engine=engine, cost={"expert_routing": routing}).cost
        for routing in ("power_law_1.2", "balanced")
    )
    assert unequal.step_ns(8000, 1, 0, 0, 0.0) > 1.05 * equal.step_ns(8000, 1, 0, 0, 0.0)
