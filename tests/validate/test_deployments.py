"""Recorded servers in the catalog's words."""

import pytest

from kvsim.errors import InputError
from kvsim.validate.case import Server
from kvsim.validate.deployments import gpu_of, profile_name, scenario_of, validated
from kvsim.workload.parameters import Workload

WORKLOAD = validated(
    Workload,
    {
        "arrivals": {"kind": "all_at_once"},
        "num_requests": 1,
        "lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1},
    },
)


def scenario(**facts):
    facts = {"model": "Qwen/Qwen3-32B", "gpu": "H100", **facts}
    return scenario_of(Server(**facts), WORKLOAD)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100-80GB-SXM", "h100_sxm"),
        ("H100", "h100_sxm"),
        ("h100_sxm", "h100_sxm"),
        ("H100 PCIe 80GB", "h100_pcie"),
        ("NVIDIA A100-80GB", "a100_sxm"),
        ("A100-40GB", "a100_sxm_40gb"),
        ("A100 SXM 40 GB", "a100_sxm_40gb"),
        ("H200-141GB", "h200_sxm"),
        ("b200_sxm", "b200_sxm"),
        ("L40S", "l40s"),
        ("RTX-4090-24GB", "rtx4090"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("RTX-PRO-6000-96GB", "rtx_pro_6000_server"),
        ("RTX A6000", "a6000"),
    ],
)
def test_gpus_go_by_many_names(written, name):
    assert gpu_of(written) == name


@pytest.mark.parametrize("written", ["MI300X", "80 GB GPU (H100 or A100)", "", "80GB", "H1000"])
def test_no_gpu_stands_for_another(written):
    with pytest.raises(InputError, match="not in the catalog"):
        gpu_of(written)


@pytest.mark.parametrize(
    ("model", "precision", "name", "quantization"),
    [
        ("Qwen/Qwen3-32B", None, "Qwen/Qwen3-32B", None),
        ("Qwen/Qwen3-32B", "FP16", "Qwen/Qwen3-32B", None),
        ("Qwen/Qwen3-32B", "fp8", "Qwen/Qwen3-32B", "fp8"),
        ("RedHatAI/Qwen3-14B-FP8-dynamic", None, "Qwen/Qwen3-14B", "fp8"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "BF16", "Qwen/Qwen3-30B-A3B", None),
        ("meta-llama/Llama-3.1-8B", "BF16", "meta-llama/Llama-3.1-8B-Instruct", None),
        ("meta-llama/Llama-3.1-70B", "fp8", "nvidia/Llama-3.1-70B-Instruct-FP8", None),
        ("openai/gpt-oss-120b", "fp4", "openai/gpt-oss-120b", None),
        ("openai/gpt-oss-120b", "fp8", "openai/gpt-oss-120b", None),
        ("MiniMaxAI/MiniMax-M2.5", "fp8", "MiniMaxAI/MiniMax-M2.5", None),
    ],
)
def test_tunings_and_checkpoints_become_the_base_model(model, precision, name, quantization):
    made = scenario(model=model, precision=precision)
    assert (made.model, made.engine.quantization) == (name, quantization)


@pytest.mark.parametrize("model", ["meta-llama/Meta-Llama-3-8B", "Qwen/Qwen3-33B", "gpt-oss"])
def test_no_model_stands_for_another_size_or_release(model):
    with pytest.raises(InputError, match="not in the catalog"):
        scenario(model=model)


def test_settings_keep_their_names_and_silence_keeps_the_defaults():
    made = scenario(max_num_seqs=64, num_gpu_blocks=100, enable_prefix_caching=False, dtype="bf16")
    assert made.engine.max_num_seqs == 64
    assert made.engine.num_gpu_blocks_override == 100
    assert made.engine.enable_prefix_caching is False
    assert made.engine.dtype == "bfloat16"
    assert made.engine.enable_chunked_prefill is True
    assert made.engine.gpu_memory_utilization == 0.9


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(InputError) as caught:
        scenario(
            model="who/knows", gpu="MI300X", expert_parallel_size=2, expert_tensor_parallel_size=2
        )
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("engine", "version", "name"),
    [
        ("vllm", None, "vllm-0.15"),
        ("vllm", "nightly", "vllm-0.15"),
        ("vllm", "0.6.3", "vllm-v0"),
        ("vllm", "0.11.2", "vllm-0.12"),
        ("vllm", "0.15.1", "vllm-0.15"),
        ("vllm", "0.18.0", "vllm-0.19"),
        ("vllm", "v0.23.0", "vllm-0.23"),
        ("vllm", "1.2.0", "vllm-0.23"),
        ("trtllm", "1.0.0rc3", "trtllm-1.x"),
        ("sglang", "0.5.8.post1", "sglang-0.5"),
    ],
)
def test_each_version_has_the_nearest_profile(engine, version, name):
    assert profile_name(engine, version) == name
