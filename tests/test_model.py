"""Models: sizes against the totals that their makers state, and laws of dividing them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.model import load_model, model_names, quantized_weights

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"

# Billions of parameters as the makers state them (model cards, papers, safetensors indexes),
# language model only.
TOTALS = {
    LLAMA_8B: 8.030,
    "meta-llama/Llama-3.1-70B-Instruct": 70.554,
    "meta-llama/Meta-Llama-3.1-405B": 405.85,
    "meta-llama/Llama-2-7b-hf": 6.738,
    "meta-llama/Llama-2-70b-hf": 68.977,
    "codellama/CodeLlama-34b-Instruct-hf": 33.744,
    "mistralai/Mistral-Nemo-Instruct-2407": 12.248,
    "mistralai/Mixtral-8x7B-v0.1": 46.703,
    "mistralai/Mixtral-8x22B-v0.1": 140.62,
    "01-ai/Yi-34B": 34.389,
    "Qwen/Qwen2.5-7B-Instruct": 7.616,
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-8B": 8.191,
    "Qwen/Qwen3-14B": 14.768,
    "Qwen/Qwen3-32B": 32.762,
    "Qwen/Qwen3-30B-A3B": 30.532,
    "Qwen/Qwen3-235B-A22B": 235.09,
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": 480.15,
    "deepseek-ai/DeepSeek-V2-Lite": 15.706,
    "deepseek-ai/DeepSeek-V3": 671.03,
    "openai/gpt-oss-120b": 116.83,
    "openai/gpt-oss-20b": 20.91,
    "facebook/opt-13b": 12.853,
    "facebook/opt-66b": 65.72,
    "facebook/opt-175b": 174.6,
}
# Only rounded figures are stated for these, some with a vision tower: half a percent to a few.
ROUNDED_TOTALS = {
    "moonshotai/Kimi-K2-Instruct": (1026, 0.01),
    "MiniMaxAI/MiniMax-M2.5": (229, 0.01),
    "XiaomiMiMo/MiMo-V2-Flash": (309, 0.01),
    "zai-org/GLM-5": (744, 0.01),
    "google/gemma-4-26B-A4B": (25.2, 0.01),
    "Qwen/Qwen3.5-122B-A10B": (122, 0.01),
    "Qwen/Qwen3.5-397B-A17B": (397, 0.01),
    "Qwen/Qwen3.5-35B-A3B": (35, 0.02),
    "Qwen/Qwen3.5-27B": (27, 0.02),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (109, 0.02),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (400, 0.01),
}
# Some makers count the embedding, some don't: both are accepted.
ACTIVE = {
    "Qwen/Qwen3-30B-A3B": 3.3,
    "Qwen/Qwen3-235B-A22B": 22,
    "mistralai/Mixtral-8x7B-v0.1": 12.9,
    "deepseek-ai/DeepSeek-V3": 37,
    "openai/gpt-oss-120b": 5.1,
    "openai/gpt-oss-20b": 3.6,
    "google/gemma-4-26B-A4B": 3.8,
    "zai-org/GLM-5": 40,
}


def language_parameters(name: str) -> int:
    return sum(n for part, n in load_model(name).parameters().items() if part != "vision")


@pytest.mark.parametrize("name", TOTALS)
def test_parameters_are_those_of_the_checkpoint(name: str) -> None:
    assert language_parameters(name) / 1e9 == pytest.approx(TOTALS[name], rel=1e-3)


@pytest.mark.parametrize("name", ROUNDED_TOTALS)
def test_parameters_are_near_the_stated_total(name: str) -> None:
    stated, tolerance = ROUNDED_TOTALS[name]
    assert language_parameters(name) / 1e9 == pytest.approx(stated, rel=tolerance)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_those_stated_with_or_without_embedding(name: str) -> None:
    model = load_model(name)
    without = model.active_parameters() / 1e9
    with_embedding = without + model.parameters()["embedding"] / 1e9
    nearest = min(without, with_embedding, key=lambda value: abs(value - ACTIVE[name]))
    assert nearest == pytest.approx(ACTIVE[name], rel=0.025)


def test_every_model_of_the_catalog_loads() -> None:
    names = model_names()
    assert len(names) == 48
    for name in names:
        model = load_model(name)
        assert model.num_layers > 0
        assert model.active_parameters() <= sum(model.parameters().values())
        assert model.is_moe == ("experts" in model.parameters())


def test_llama_8b_by_hand() -> None:
    layer_attention = 4096 * 4096 * 2 + 4096 * 1024 * 2
    parts = load_model(LLAMA_8B).parameters()
    assert parts == {
        "embedding": 128256 * 4096,
        "attention": 32 * layer_attention,
        "mlp": 32 * 3 * 4096 * 14336,
        "norms": (2 * 32 + 1) * 4096,
        "lm_head": 128256 * 4096,
    }


@pytest.mark.parametrize(
    ("name", "tp", "expected"),
    [
        (LLAMA_8B, 1, 32 * 2 * 8 * 128 * 2),
        (LLAMA_8B, 8, 32 * 2 * 1 * 128 * 2),
        ("meta-llama/Llama-3.1-70B-Instruct", 16, 80 * 2 * 1 * 128 * 2),  # 8 KV heads, replicated
        ("openai/gpt-oss-120b", 1, 73_728),  # as vLLM charged it
        ("deepseek-ai/DeepSeek-V3", 1, 61 * (512 + 64) * 2),
        ("deepseek-ai/DeepSeek-V3", 8, 61 * (512 + 64) * 2),  # the latent is on every GPU
        ("Qwen/Qwen3.5-35B-A3B", 1, 10 * 2 * 2 * 256 * 2),  # linear layers take nothing per token
    ],
)
def test_kv_bytes_per_token(name: str, tp: int, expected: int) -> None:
    assert load_model(name).kv_bytes_per_token(tp) == expected


def test_kv_dtype_is_the_flags_then_the_checkpoints_then_the_models() -> None:
    static = load_model("Qwen/Qwen3-32B-FP8-Static-PerTensor")  # fixes an fp8 KV cache
    dynamic = load_model("Qwen/Qwen3-32B-FP8")
    assert static.kv_cache_dtype() == "fp8"
    assert dynamic.kv_cache_dtype() == "bfloat16"
    assert static.kv_bytes_per_token() * 2 == dynamic.kv_bytes_per_token()
    assert static.kv_bytes_per_token(1, "bfloat16") == dynamic.kv_bytes_per_token()
    with pytest.raises(InputError, match="unknown kv_cache_dtype 'fp7'"):
        dynamic.kv_bytes_per_token(1, "fp7")


def test_linear_layers_keep_a_state_for_each_sequence() -> None:
    matrix = 32 * 128 * 128 * 4
    convolution = (2 * 16 * 128 + 32 * 128) * 3 * 2
    model = load_model("Qwen/Qwen3.5-35B-A3B")
    assert model.state_bytes_per_sequence() == 30 * (matrix + convolution)
    assert model.state_bytes_per_sequence(2) * 2 == model.state_bytes_per_sequence()
    assert load_model(LLAMA_8B).state_bytes_per_sequence() == 0


def test_quantized_checkpoints_keep_what_they_say_in_16_bit() -> None:
    plain, int4 = load_model("moonshotai/Kimi-K2-Instruct"), load_model("moonshotai/Kimi-K2.5")
    assert plain.parameters()["experts"] == int4.parameters()["experts"]
    experts = int4.parameters()["experts"]
    assert int4.weight_bytes()["experts"] == pytest.approx(experts * (0.5 + 2 / 32), rel=1e-6)
    assert int4.weight_bytes()["attention"] == 2 * int4.parameters()["attention"]
    assert int4.weight_bytes()["shared_experts"] == 2 * int4.parameters()["shared_experts"]
    assert plain.weight_bytes()["attention"] < 1.01 * plain.parameters()["attention"]


def test_fp8_checkpoint_has_half_the_bytes_in_its_linear_layers() -> None:
    plain = load_model("Qwen/Qwen3-32B").weight_bytes()
    fp8 = load_model("Qwen/Qwen3-32B-FP8").weight_bytes()
    assert fp8["mlp"] / plain["mlp"] == pytest.approx(0.5 * (1 + 4 / 128**2))
    assert fp8["lm_head"] == plain["lm_head"]
    assert fp8["embedding"] == plain["embedding"]
    on_the_fly = replace(load_model("Qwen/Qwen3-32B"), quantization=quantized_weights("fp8"))
    assert on_the_fly.weight_bytes()["mlp"] * 2 == plain["mlp"]


def test_gpt_oss_weights_are_those_logged() -> None:
    for name, logged_gib in (("openai/gpt-oss-20b", 13.47), ("openai/gpt-oss-120b", 64.38)):
        total = sum(load_model(name).weight_bytes().values())
        assert total / 2**30 == pytest.approx(logged_gib, rel=0.005)


@settings(deadline=None)
@given(name=st.sampled_from(model_names()), tp=st.sampled_from([2, 4, 8, 16]))
def test_gpus_together_hold_at_least_the_model(name: str, tp: int) -> None:
    model = load_model(name)
    try:
        shares = model.weight_bytes(tp)
    except InputError:
        return
    whole = model.weight_bytes()
    assert set(shares) == set(whole)
    for part, share in shares.items():
        assert share <= whole[part]
        assert share * tp >= whole[part] - tp  # rounding to bytes
    assert shares["norms"] == whole["norms"]
    assert model.kv_bytes_per_token() / tp <= model.kv_bytes_per_token(tp)


def test_indivisible_heads_are_refused() -> None:
    with pytest.raises(InputError, match="28 query heads and 4 KV heads"):
        load_model("Qwen/Qwen2.5-7B-Instruct").weight_bytes(8)


def test_unknown_model_gets_the_closest_names() -> None:
    with pytest.raises(InputError) as error:
        load_model("llama-3.1-8b-instrukt")
    assert LLAMA_8B in str(error.value)
    with pytest.raises(InputError, match="neither in the catalog"):
        load_model("no/such/folder")


def catalog_config(name: str) -> dict[str, object]:
    import kvsim

    folder = Path(kvsim.__file__).parent / "data" / "models"
    config: dict[str, object] = json.loads((folder / f"{name.replace('/', '--')}.json").read_text())
    return config


def test_a_path_gives_the_same_model_as_the_catalog(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(catalog_config(LLAMA_8B)))
    for path in ("mine", "mine/config.json"):
        assert replace(load_model(path, tmp_path), name=LLAMA_8B) == load_model(LLAMA_8B)


def test_modelopt_keeps_its_quantization_in_a_file_beside(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(catalog_config(LLAMA_8B)))
    section = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": section}))
    model = load_model(str(tmp_path))
    assert model.weight_bytes()["mlp"] == model.parameters()["mlp"]
    assert model.kv_cache_dtype() == "fp8"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba2"}, "model_type 'mamba2' is not modeled"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers = 4 is not modeled"),
        ({"layer_types": ["mamba"] * 32}, "'mamba' is not modeled"),
        ({"hidden_size": 16, "head_dim": None}, "no layer keeps a KV cache"),
        ({"intermediate_size": None}, "lacks the key 'intermediate_size_mlp or intermediate_size"),
        ({"text_config": 5}, r"config\.json: text_config: must be an object"),
        ({"vision_config": [1]}, r"config\.json: vision_config: must be an object"),
        ({"num_key_value_heads": 3}, "32 query heads can't be shared evenly by 3 KV heads"),
        ({"layer_types": ["full_attention"]}, "makes no sense"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "method 'aqlm' is not modeled"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "lacks the key"),
    ],
)
def test_what_is_not_modeled_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(catalog_config(LLAMA_8B) | change))
    with pytest.raises(InputError, match=message):
        load_model(str(tmp_path))


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_broken_files_are_told_with_their_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        load_model(str(tmp_path))


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "vocab_size", "intermediate_size", "head_dim", "max_position_embeddings")  # fmt: skip
IMPOSSIBLE = (0, -1, 1.5, 1e308, 10**30, True, "many", [], float("nan"))


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", IMPOSSIBLE, ids=repr)
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, key: str, value: object) -> None:
    config = catalog_config(LLAMA_8B) | {"head_dim": 128} | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=rf"config\.json: {key}: must be a whole number from 1"):
        load_model(str(tmp_path))


def test_every_impossible_number_and_type_is_told_at_once(tmp_path: Path) -> None:
    wrong = {
        "vocab_size": None,
        "hidden_size": -4,
        "torch_dtype": "int3",
        "partial_rotary_factor": 1e308,
        "rope_parameters": {"partial_rotary_factor": "all"},
        "vision_config": {"depth": 0},
    }
    (tmp_path / "config.json").write_text(json.dumps(catalog_config(LLAMA_8B) | wrong))
    with pytest.raises(InputError) as error:
        load_model(str(tmp_path))
    assert len(error.value.problems) == len(wrong)
    for key in ("vocab_size", "hidden_size", "torch_dtype", ": partial_rotary_factor",
                "rope_parameters.partial_rotary_factor", "vision_config.depth"):  # fmt: skip
        assert key in str(error.value)


def test_numbers_of_a_nested_decoder_are_told_with_their_section(tmp_path: Path) -> None:
    nested = {"model_type": "outer", "text_config": catalog_config(LLAMA_8B)}
    config = json.loads(json.dumps(nested))
    config["text_config"]["vocab_size"] = 0
    config["dtype"] = "float3"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        InputError, match=r"text_config\.vocab_size: must be (.|\n)* dtype: must be"
    ):
        load_model(str(tmp_path))


@pytest.mark.parametrize("dtype", ["float16", "torch.float16"])
def test_the_dtype_is_read_with_and_without_its_package(tmp_path: Path, dtype: str) -> None:
    config = catalog_config(LLAMA_8B) | {"torch_dtype": dtype}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_model(str(tmp_path)).dtype == "float16"


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    config = catalog_config(LLAMA_8B)
    del config["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="lacks the key 'num_hidden_layers'"):
        load_model(str(tmp_path))
