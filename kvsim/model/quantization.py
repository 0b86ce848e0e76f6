"""What a quantized checkpoint stores: bits per weight, scales, and what is kept in 16 bit."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvsim.errors import InputError

WeightDtype = Literal["fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4"]
# (bits per weight, bytes of scales per weight). Scales of a whole channel or tensor are left out:
# under 0.1 % of a matrix with thousands of inputs.
_FORMATS: Mapping[WeightDtype, tuple[float, float]] = {
    "fp8": (8, 0.0),
    "fp8_block": (8, 4 / (128 * 128)),  # fp32 for each 128 x 128 block (DeepSeek, Qwen)
    "int8": (8, 0.0),
    "int4": (4, 2 / 128),  # 16 bit for each group; its size is read from the checkpoint
    "nvfp4": (4, 1 / 16),  # fp8 for each 16 (NVIDIA's NVFP4 format)
    "mxfp4": (4, 1 / 32),  # one exponent byte for each 32 (OCP microscaling format)
}
# vLLM's kernels for MXFP4 experts pad the intermediate size to multiples of this. Checked by the
# weights logged for gpt-oss-20b and -120b on H100 (13.47 and 64.38 GiB; unpadded 12.7 and 60.7).
MXFP4_PADDING = 256


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the linear layers of a checkpoint are stored; everything else is in 16 bit."""

    weight_dtype: WeightDtype
    weight_bits: float
    scale_bytes_per_weight: float
    kept: tuple[str, ...] = ()  # regular expressions on module names that stay in 16 bit
    kv_cache_dtype: str | None = None  # set by the checkpoint, if it does
    static_activations: bool = False  # scales of 8-bit activations are in the checkpoint

    def covers(self, module: str) -> bool:
        """Tell whether a linear layer is quantized, by the end of its name."""
        name = f"model.layers.*.{module}"
        return not any(re.match(pattern, name) for pattern in self.kept)

    def bytes_of(self, inputs: int, outputs: int, count: int, expert: bool) -> float:
        """Return the bytes of `count` matrices, scales and padding included."""
        if expert and self.weight_dtype == "mxfp4":
            outputs = -(-outputs // MXFP4_PADDING) * MXFP4_PADDING
        return inputs * outputs * count * (self.weight_bits / 8 + self.scale_bytes_per_weight)


def quantized_weights(weight_dtype: WeightDtype) -> Quantization:
    """Return a format in which all linear layers are stored.

    `fp8` is what `--quantization fp8` makes of a 16-bit checkpoint while loading. Checkpoints in
    four bits keep the logits' matrix in 16 bit, as published ones do.
    """
    kept = () if weight_dtype in {"fp8", "fp8_block", "int8"} else (r".*lm_head(\.|$)",)
    return Quantization(weight_dtype, *_FORMATS[weight_dtype], kept)


def read_quantization(section: Mapping[str, Any], num_layers: int) -> Quantization:
    """Read `quantization_config` of a `config.json`.

    A list of ignored modules is read for the layer in the middle, which stands for all layers.

    Raises:
        InputError: The method is not modeled.
    """
    dtype = _weight_dtype(section)
    bits, scales = _FORMATS[dtype]
    group = _group_size(section)
    if dtype == "int4" and group > 0:
        scales = 2 / group
    ignored = [*(section.get("ignore") or ()), *(section.get("modules_to_not_convert") or ())]
    kept = tuple(_pattern(str(entry), num_layers // 2) for entry in ignored)
    static = _static_activations(section)
    return Quantization(dtype, bits, scales, kept, _kv_cache_dtype(section), static)


def _weight_dtype(section: Mapping[str, Any]) -> WeightDtype:
    method = str(section.get("quant_method") or section.get("producer", {}).get("name", ""))
    if method == "mxfp4":
        return "mxfp4"
    if method in {"gptq", "awq"}:
        return "int8" if section.get("bits", section.get("w_bit", 4)) == 8 else "int4"
    if method == "fp8":
        return "fp8_block" if section.get("weight_block_size") else "fp8"
    if method in {"modelopt", "modelopt_fp4"}:
        algorithm = str(section.get("quant_algo", "")).upper()
        if algorithm in {"FP8", "NVFP4"}:
            return "fp8" if algorithm == "FP8" else "nvfp4"
    if method == "compressed-tensors":
        weights = next(iter(section["config_groups"].values()))["weights"]
        kinds: dict[tuple[str, int], WeightDtype] = {
            ("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4",
        }  # fmt: skip
        kind = kinds.get((weights["type"], weights["num_bits"]))
        if kind:
            return "fp8_block" if kind == "fp8" and weights.get("block_structure") else kind
    raise InputError(
        f"quantization_config: method '{method}' is not modeled; modeled are fp8, mxfp4, gptq, "
        "awq, modelopt (FP8, NVFP4) and compressed-tensors (fp8, int8, int4, nvfp4)"
    )


def _group_size(section: Mapping[str, Any]) -> int:
    groups = section.get("config_groups") or {}
    weights = next(iter(groups.values()))["weights"] if groups else {}
    size = weights.get("group_size") or section.get("group_size") or section.get("q_group_size")
    return int(size or 0)


def _static_activations(section: Mapping[str, Any]) -> bool:
    for group in (section.get("config_groups") or {}).values():
        return (group.get("input_activations") or {}).get("dynamic") is False
    is_modelopt_fp8 = str(section.get("quant_algo", "")).upper() == "FP8"
    return is_modelopt_fp8 or section.get("activation_scheme") == "static"


def _kv_cache_dtype(section: Mapping[str, Any]) -> str | None:
    scheme = section.get("kv_cache_scheme") or section.get("kv_cache_quant_algo")
    if not scheme:
        return None
    if isinstance(scheme, Mapping):
        is_fp8 = scheme.get("num_bits") == 8 and scheme.get("type") == "float"
        return "fp8" if is_fp8 else None
    return "fp8" if str(scheme).upper() == "FP8" else None


def _pattern(entry: str, layer: int) -> str:
    """Turn an ignored module into a regular expression: `re:` ones are one, `*` matches any."""
    if entry.startswith("re:"):
        return entry[3:]
    any_layer = entry.replace(f"layers.{layer}.", "layers.*.")
    return ".*" + re.escape(any_layer).replace(r"\*", r"[^.]*") + r"(\.|$)"
