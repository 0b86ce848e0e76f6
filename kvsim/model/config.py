"""Reads a Hugging Face `config.json`: the words of each family of models become a `ModelSpec`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvsim.errors import InputError
from kvsim.model.quantization import read_quantization
from kvsim.model.sizes import check_config
from kvsim.model.spec import Attention, LayerGroup, Mlp, ModelSpec, Weight

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """What `config.json` leaves to the code of a family of models."""

    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "head", "all_heads"] = "none"  # weights: one head's size, or all
    norms_per_layer: int = 2
    norm_bias: bool = False
    gated_mlp: bool = True
    mlp_bias: bool = False
    sinks: bool = False


_LLAMA = Family()
_QWEN3 = Family(qk_norm="head")
FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "llama4_text": _LLAMA,
    "phi3": _LLAMA,
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias=True),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_5_text": _QWEN3,
    "qwen3_5_moe_text": _QWEN3,
    "minimax_m2": Family(qk_norm="all_heads"),
    "deepseek_v2": _LLAMA,
    "deepseek_v3": _LLAMA,
    "kimi_k2": _LLAMA,
    "glm_moe_dsa": _LLAMA,
    "mimo_v2_flash": _LLAMA,
    "gemma4_text": Family(qk_norm="head", norms_per_layer=7),
    "gpt_oss": Family(qkv_bias=True, output_bias=True, mlp_bias=True, sinks=True),
    "opt": Family(
        qkv_bias=True, output_bias=True, norm_bias=True, gated_mlp=False, mlp_bias=True
    ),
}  # fmt: skip
# Keys that change the model in a way that is not modeled, unless they have one of these values.
_NOT_MODELLED: Mapping[str, tuple[object, ...]] = {
    "hidden_size_per_layer_input": (0, None),
    "num_kv_shared_layers": (0, None),
    "use_double_wide_mlp": (False, None),
}


def read_config(name: str, config: Config, file: str = "config.json") -> ModelSpec:
    """Read the text decoder that a `config.json` describes; `file` is where it stands.

    Raises:
        InputError: A family or a feature that is not modeled, a key that is missing, or every
            number and type that can't be.
    """
    text: Config = config.get("text_config") or config
    if not isinstance(text, Mapping):
        raise InputError(f"{file}: text_config: must be an object")
    kind = str(text.get("model_type"))
    problems = [
        f"{name}: {key} = {text[key]!r} is not modeled"
        for key, neutral in _NOT_MODELLED.items()
        if text.get(key) not in neutral
    ]
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        problems.append(f"{name}: model_type '{kind}' is not modeled; modeled are {known}")
    if problems:
        raise InputError(*problems)
    if impossible := check_config(config):
        # The place is told in the message: that of the scenario which names the model comes first.
        raise InputError(*(f"{file}: {problem}" for problem in impossible))
    try:
        spec = _spec(name, config, text, FAMILIES[kind])
    except KeyError as missing:
        raise InputError(f"{name}: config.json lacks the key {missing}") from None
    except (TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"{name}: config.json has a value that makes no sense: {error}") from None
    for attention in (group.attention for group in spec.layers):
        if attention.q_heads % attention.kv_heads:
            raise InputError(
                f"{file}: num_key_value_heads: {attention.q_heads} query heads can't be shared "
                f"evenly by {attention.kv_heads} KV heads"
            )
    if not spec.kv_bytes_per_token():
        raise InputError(f"{name}: no layer keeps a KV cache, so there is nothing to simulate")
    return spec


def _spec(name: str, config: Config, text: Config, family: Family) -> ModelSpec:
    hidden, num_layers = int(text["hidden_size"]), int(text["num_hidden_layers"])
    groups = Counter(
        (_attention(text, family, i), _mlp(text, family, i)) for i in range(num_layers)
    )
    quantization = config.get("quantization_config") or text.get("quantization_config")
    norm = hidden * (2 if family.norm_bias else 1)
    is_opt = text["model_type"] == "opt"
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", is_opt))
    positions = int(text["max_position_embeddings"])
    return ModelSpec(
        name=name,
        dtype=_dtype(text, config),
        hidden_size=hidden,
        vocab_size=int(text["vocab_size"]),
        max_position_embeddings=positions,
        layers=tuple(LayerGroup(count, *shape) for shape, count in groups.items()),
        tied_embeddings=bool(tied),
        norm_weights=norm * (family.norms_per_layer * num_layers + 1),
        quantization=read_quantization(quantization, num_layers) if quantization else None,
        position_embeddings=(positions + 2) * hidden if is_opt else 0,
        rotary_dim=0 if is_opt else _rotary_dim(text),
        vision=_vision(config.get("vision_config") or {}),
    )


def _dtype(text: Config, config: Config) -> Literal["bfloat16", "float16"]:
    """Return the dtype of what is not quantized; vLLM turns fp32 checkpoints into 16 bit too."""
    sources = (text, config)
    given = [s[key] for s in sources for key in ("torch_dtype", "dtype") if s.get(key)]
    return "float16" if given and given[0].removeprefix("torch.") == "float16" else "bfloat16"


def _attention(text: Config, family: Family, layer: int) -> Attention:
    if text.get("kv_lora_rank"):
        return _mla(text)
    kind, window = _kind(text, layer)
    if kind == "linear":
        return _linear(text)
    hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
    kv_heads = int(text.get("num_key_value_heads") or heads)
    size = int(text.get("head_dim") or hidden // heads)
    v_size = int(text.get("v_head_dim") or size)
    value_is_key = False
    if (
        "hybrid_layer_pattern" in text and kind == "sliding"
    ):  # MiMo gives these a shape of their own
        heads, kv_heads = int(text["swa_num_attention_heads"]), int(text["swa_num_key_value_heads"])
        size, v_size = int(text["swa_head_dim"]), int(text["swa_v_head_dim"])
    elif "global_head_dim" in text and kind == "full":  # Gemma 4
        size = v_size = int(text["global_head_dim"])
        kv_heads = int(text.get("num_global_key_value_heads") or kv_heads)
        value_is_key = bool(text.get("attention_k_eq_v"))
    norms = {"none": 0, "head": 2 * size, "all_heads": (heads + kv_heads) * size}
    return Attention(
        kind=kind,
        q_heads=heads,
        kv_heads=kv_heads,
        head_dim=size,
        v_head_dim=v_size,
        window_tokens=window,
        qkv_bias=bool(text.get("attention_bias", text.get("qkv_bias", family.qkv_bias))),
        output_bias=bool(text.get("attention_bias", family.output_bias)),
        output_gate=bool(text.get("attn_output_gate")),
        value_is_key=value_is_key,
        norm_weights=norms[family.qk_norm],
        sinks=family.sinks or bool(kind == "sliding" and text.get("add_swa_attention_sink_bias")),
    )


def _kind(text: Config, layer: int) -> tuple[Literal["full", "sliding", "chunked", "linear"], int]:
    """Return the kind of a layer's attention, and its window or chunk in tokens."""
    window = int(text.get("sliding_window") or 0)
    if text.get("layer_types"):
        return _named_kind(text["layer_types"][layer], text)
    if "hybrid_layer_pattern" in text:
        return ("sliding", window) if text["hybrid_layer_pattern"][layer] else ("full", 0)
    if (
        text["model_type"] == "llama4_text"
    ):  # each fourth layer has no positions and sees everything
        return _named_kind("full_attention" if layer % 4 == 3 else "chunked_attention", text)
    slides = text.get("use_sliding_window", text["model_type"] in {"mistral", "mixtral"})
    if window and slides and layer >= int(text.get("max_window_layers") or 0):
        return "sliding", window
    return "full", 0


def _named_kind(
    name: str, text: Config
) -> tuple[Literal["full", "sliding", "chunked", "linear"], int]:
    match name:
        case "full_attention":
            return "full", 0
        case "sliding_attention":
            return "sliding", int(text["sliding_window"])
        case "chunked_attention":
            return "chunked", int(text["attention_chunk_size"])
        case "linear_attention":
            return "linear", 0
    raise InputError(f"layer_types: '{name}' is not modeled")


def _mla(text: Config) -> Attention:
    rank, q_rank = int(text["kv_lora_rank"]), int(text.get("q_lora_rank") or 0)
    rope, nope = int(text["qk_rope_head_dim"]), int(text["qk_nope_head_dim"])
    index_dim = int(text.get("index_head_dim") or 0)
    return Attention(
        kind="mla",
        q_heads=int(text["num_attention_heads"]),
        kv_heads=1,
        head_dim=rope + nope,
        v_head_dim=int(text["v_head_dim"]),
        kv_lora_rank=rank,
        q_lora_rank=q_rank,
        rope_head_dim=rope,
        nope_head_dim=nope,
        norm_weights=rank + q_rank + 2 * index_dim,
        index_heads=int(text.get("index_n_heads") or 0),
        index_head_dim=index_dim,
    )


def _linear(text: Config) -> Attention:
    return Attention(
        kind="linear",
        q_heads=int(text["linear_num_value_heads"]),
        kv_heads=int(text["linear_num_key_heads"]),
        head_dim=int(text["linear_key_head_dim"]),
        v_head_dim=int(text["linear_value_head_dim"]),
        norm_weights=int(text["linear_value_head_dim"]),
        conv_kernel=int(text["linear_conv_kernel_dim"]),
    )


def _mlp(text: Config, family: Family, layer: int) -> Mlp:
    experts = _first(text, "n_routed_experts", "num_local_experts", "num_experts")
    if not experts or not _has_experts(text, layer):
        dense = _size(text, "intermediate_size_mlp", "intermediate_size", "ffn_dim")
        return Mlp("dense", dense, family.gated_mlp, family.mlp_bias)
    size = _size(text, "moe_intermediate_size", "intermediate_size")
    return Mlp(
        kind="moe",
        intermediate_size=size,
        bias=family.mlp_bias,
        experts=experts,
        topk=_size(text, "num_experts_per_tok", "top_k_experts", "experts_per_token"),
        shared_intermediate_size=_shared_size(text, size),
        shared_gate=text["model_type"] in {"qwen2_moe", "qwen3_5_moe_text"},
        router_bias=family.mlp_bias
        or bool(text.get("topk_method") == "noaux_tc" or text.get("use_routing_bias")),
    )


def _has_experts(text: Config, layer: int) -> bool:
    if layer < int(text.get("first_k_dense_replace") or 0):
        return False
    if layer in (text.get("mlp_only_layers") or ()):
        return False
    frequency = text.get("moe_layer_freq", 1)
    if isinstance(frequency, list):
        return bool(frequency[layer])
    step = int(text.get("interleave_moe_layer_step") or text.get("decoder_sparse_step") or 1)
    return (layer + 1) % step == 0 and layer % int(frequency) == 0


def _shared_size(text: Config, expert_size: int) -> int:
    """Return the width of what runs for every token beside the experts."""
    kind = text["model_type"]
    if kind == "llama4_text":  # one shared expert like the others
        return expert_size
    if kind == "gemma4_text":  # a dense block in parallel
        return int(text["intermediate_size"])
    if text.get("n_shared_experts"):
        return int(text["n_shared_experts"]) * expert_size
    return int(text.get("shared_expert_intermediate_size") or 0)


def _rotary_dim(text: Config) -> int:
    """Return the width of the table of rotary positions, cosines and sines together."""
    heads = int(text["num_attention_heads"])
    size = int(text.get("head_dim") or int(text["hidden_size"]) // heads)
    if text.get("qk_rope_head_dim"):
        return int(text["qk_rope_head_dim"])
    parameters = text.get("rope_parameters") or {}
    factor = text.get("partial_rotary_factor") or parameters.get("partial_rotary_factor") or 1.0
    return int(text.get("rotary_dim") or size * factor)


def _vision(vision: Config) -> tuple[Weight, ...]:
    """Return a vision tower: its encoder layers (patching and projector are small)."""
    if not vision:
        return ()
    hidden = _size(vision, "vt_hidden_size", "hidden_size")
    size = _size(vision, "vt_intermediate_size", "intermediate_size")
    layers = _size(vision, "vt_num_hidden_layers", "num_hidden_layers", "depth")
    heads = _size(vision, "vt_num_attention_heads", "num_attention_heads", "num_heads")
    attention = Weight(
        "vision", "attention", hidden, 4 * hidden, layers, shards=heads, linear=False
    )
    projections = 3 if vision.get("model_type") in {"pixtral", "gemma4_vision"} else 2
    mlp = Weight("vision", "mlp", hidden, projections * size, layers, shards=size, linear=False)
    return attention, mlp


def _size(config: Config, *keys: str) -> int:
    """Return the first of several spellings that the config has; one of them must be there."""
    size = _first(config, *keys)
    if not size:
        raise KeyError(" or ".join(keys))
    return size


def _first(config: Config, *keys: str) -> int:
    """Return the first of several spellings that the config has, 0 if none is."""
    return next((int(config[key]) for key in keys if config.get(key) is not None), 0)
