"""Checks the numbers of a `config.json` before any of them is used: each mistake with its key."""

from collections.abc import Iterator, Mapping
from typing import Any

from kvsim.errors import Problem

Section = Mapping[str, Any]

# Most that is plausible: several times the largest of the catalog, and small enough that products
# of them keep to 64 bits.
_MOST = {
    "layers": 1_024,
    "heads": 4_096,
    "head_size": 8_192,
    "width": 2**18,
    "feed_forward": 2**20,
    "experts": 2**14,
    "vocabulary": 2**22,
    "positions": 2**30,
}
# Sizes are at least 1 where they are given; null stands for a key that isn't there.
_SIZES: Mapping[str, tuple[str, ...]] = {
    "layers": (
        "num_hidden_layers", "vt_num_hidden_layers", "depth", "interleave_moe_layer_step",
        "decoder_sparse_step",
    ),
    "heads": (
        "num_attention_heads", "num_key_value_heads", "num_global_key_value_heads",
        "swa_num_attention_heads", "swa_num_key_value_heads", "linear_num_key_heads",
        "linear_num_value_heads", "vt_num_attention_heads", "num_heads",
    ),
    "head_size": (
        "head_dim", "v_head_dim", "global_head_dim", "swa_head_dim", "swa_v_head_dim",
        "qk_rope_head_dim", "qk_nope_head_dim", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim", "kv_lora_rank", "q_lora_rank", "rotary_dim",
    ),
    "width": ("hidden_size", "vt_hidden_size"),
    "feed_forward": (
        "intermediate_size", "intermediate_size_mlp", "ffn_dim", "moe_intermediate_size",
        "vt_intermediate_size",
    ),
    "experts": ("num_experts_per_tok", "top_k_experts", "experts_per_token"),
    "vocabulary": ("vocab_size",),
    "positions": ("max_position_embeddings", "attention_chunk_size"),
}  # fmt: skip
# Counts may be 0: there is no such thing.
_COUNTS: Mapping[str, tuple[str, ...]] = {
    "layers": ("first_k_dense_replace", "max_window_layers"),
    "head_size": ("index_n_heads", "index_head_dim"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts", "n_shared_experts"),
    "feed_forward": ("shared_expert_intermediate_size",),
    "positions": ("sliding_window",),
}
_REQUIRED = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
_DTYPES = ("bfloat16", "float16", "float32")


def check_config(config: Section) -> list[Problem]:
    """Return every number and type that can't be, with its path in the file.

    Checked are those of the text decoder and of a vision tower that `read_config` reads.
    """
    vision = config.get("vision_config") or {}
    if not isinstance(vision, Mapping):
        return [Problem("must be an object", path="vision_config")]
    place = "text_config." if config.get("text_config") else ""
    text: Section = config.get("text_config") or config
    return [
        *_missing(text, place),
        *_numbers(text, place),
        *_dtypes(text, place),
        *_rotary(text, place),
        *(() if text is config else _dtypes(config, "")),
        *_numbers(vision, "vision_config."),
    ]


def _missing(text: Section, place: str) -> Iterator[Problem]:
    for key in _REQUIRED:
        if text.get(key) is None:
            yield Problem(f"lacks the key '{place}{key}'")


def _numbers(section: Section, place: str) -> Iterator[Problem]:
    for least, table in ((1, _SIZES), (0, _COUNTS)):
        for kind, keys in table.items():
            for key in keys:
                value = section.get(key)
                if value is not None and not _is_whole(value, least, _MOST[kind]):
                    what = f"must be a whole number from {least} to {_MOST[kind]:,}"
                    yield Problem(f"{what}, not {_shown(value)}", path=place + key)


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _dtypes(section: Section, place: str) -> Iterator[Problem]:
    for key in ("torch_dtype", "dtype"):
        value = section.get(key)
        if value and str(value).removeprefix("torch.") not in _DTYPES:
            what = f"must be one of {', '.join(_DTYPES)}, not {_shown(value)}"
            yield Problem(what, path=place + key)


def _rotary(text: Section, place: str) -> Iterator[Problem]:
    nested = text.get("rope_parameters")
    sections = {
        place: text,
        f"{place}rope_parameters.": nested if isinstance(nested, Mapping) else {},
    }
    for prefix, section in sections.items():
        value = section.get("partial_rotary_factor")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value <= 1):
            what = f"must be above 0 and at most 1, not {_shown(value)}"
            yield Problem(what, path=f"{prefix}partial_rotary_factor")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
