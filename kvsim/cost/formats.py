"""How a GPU multiplies weights that are stored in some format: which table, how many bytes."""

from dataclasses import dataclass
from typing import Literal

from kvsim.gpu import GpuSpec
from kvsim.model import ModelSpec, Quantization

HOPPER = 90
SIXTEEN_BIT_BYTES = 2  # of an activation, a logit, or a weight that is not quantized


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are stored and multiplied on a given GPU.

    Attributes:
        kernel: Table and constants to use.
        bytes_per_weight: Storage, scales included.
        flop_per_s: Peak rate of the multiplication.
        moe_table: Table of routed experts in this format.
        weight_only: Stored small but multiplied in 16 bit: no table fits, only the physical form.
        static_scale: The activation's fp8 scale is known beforehand and costs no pass.
        note: What the user should know about the price, empty if nothing.
        moe_note: The same, of routed experts.
    """

    kernel: Literal["bfloat16", "fp8", "nvfp4"]
    bytes_per_weight: float
    flop_per_s: float
    moe_table: str
    weight_only: bool = False
    static_scale: bool = False
    note: str = ""
    moe_note: str = ""


def weight_format(model: ModelSpec, gpu: GpuSpec, module: str) -> WeightFormat:
    """Return how a GPU multiplies one linear layer of a model, by the end of the layer's name."""
    quantization = model.quantization
    if quantization is None or not quantization.covers(module):
        return sixteen_bit(gpu)
    size = quantization.weight_bits / 8 + quantization.scale_bytes_per_weight
    dtype = quantization.weight_dtype
    if dtype in {"fp8", "fp8_block"} and gpu.fp8_flop_per_s:
        return _fp8(quantization, gpu, size, gpu.fp8_flop_per_s)
    if dtype == "nvfp4" and gpu.fp4_flop_per_s:
        return WeightFormat("nvfp4", size, gpu.fp4_flop_per_s, "nvfp4")
    table = {"int4": "int4_wo", "mxfp4": "w4a16_mxfp4"}.get(dtype, "")
    note = f"{dtype} weights, multiplied in 16 bit"
    return WeightFormat("bfloat16", size, gpu.bf16_flop_per_s, table, weight_only=True, note=note)


def sixteen_bit(gpu: GpuSpec) -> WeightFormat:
    """Return the format of weights that are not quantized (float16 runs at bfloat16's rate)."""
    return WeightFormat("bfloat16", SIXTEEN_BIT_BYTES, gpu.bf16_flop_per_s, "bfloat16")


def _fp8(quantization: Quantization, gpu: GpuSpec, size: float, flop_per_s: float) -> WeightFormat:
    """Return the fp8 format.

    Products with block scales take the table of per-token scales: theirs was timed eagerly, with
    a floor that no engine sees. Experts with plain scales take the table of block scales on
    Hopper, where theirs is anomalous (5 to 11 times its roofline).
    """
    blocks = quantization.weight_dtype == "fp8_block"
    note = "fp8 with block scales, priced as with scales per token" if blocks else ""
    moe_table = "fp8_block" if blocks or gpu.sm_arch == HOPPER else "fp8"
    plain = moe_table == "fp8_block" and not blocks
    return WeightFormat(
        "fp8",
        size,
        flop_per_s,
        moe_table,
        static_scale=quantization.static_activations,
        note=note,
        moe_note="fp8 with plain scales, priced as with block scales" if plain else "",
    )
