"""Mixture of experts: routed experts of one layer by the number of tokens."""

from typing import NamedTuple

import numpy as np

from kvsim.cost import Part
from kvsim.cost.formats import WeightFormat
from kvsim.cost.tables import (
    Curve,
    Floats,
    Ints,
    load_arrays,
    log_interpolate,
    split_by_bound,
    two_nearest,
)
from kvsim.gpu import GpuSpec
from kvsim.units import NS_PER_S, NS_PER_US

FIXED_NS = 10.0 * NS_PER_US  # routing and the launches of the grouped kernels
BYTES_EFFICIENCY = 0.83  # 1.48 of 1.79 TB/s, RTX PRO 6000, activated experts varied alone
COMPUTE_EFFICIENCY = 0.46  # bf16 above 512 tokens runs at 2.1 to 2.5 times its roofline (Hopper)


class MoeShape(NamedTuple):
    """Sizes that a measured table is looked up by, in the order of its key columns.

    Attributes:
        hidden: Hidden size.
        inter: Intermediate size of an expert before it is cut.
        topk: Experts that a token is routed to.
        experts: Routed experts of the layer.
        tp: Pieces that each expert is cut into.
        ep: GPUs among which whole experts are dealt out.
    """

    hidden: int
    inter: int
    topk: int
    experts: int
    tp: int
    ep: int = 1


def activated_experts(tokens: Ints, experts: int, topk: int) -> Floats:
    """Return how many experts a step touches if routing is uniform: E·(1 - (1 - k/E)^T)."""
    return np.asarray(experts * (1.0 - (1.0 - topk / experts) ** tokens), np.float64)


def moe_curves(
    gpu: GpuSpec, weights: WeightFormat, tokens: Ints, shape: MoeShape, matrices: int
) -> list[Curve]:
    """Price the routed experts of one layer, top-k included, for every number of tokens.

    Args:
        gpu: The GPU.
        weights: Format of the experts' weights.
        tokens: Tokens of all GPUs that share the experts; no tokens cost nothing.
        shape: Sizes of the layer.
        matrices: Matrices of an expert, 3 if it is gated.
    """
    rows = np.maximum(tokens, 1)
    compute_ns, bytes_ns = _roofline_ns(gpu, weights, rows, shape, matrices)
    if f"moe/{weights.moe_table}/us" in load_arrays(gpu):
        ns, part = _from_table(gpu, weights, rows, shape, matrices)
    else:
        ns = FIXED_NS + np.maximum(compute_ns / COMPUTE_EFFICIENCY, bytes_ns / BYTES_EFFICIENCY)
        part = Part("experts", "hbm", "physical", "weights of the activated experts")
    return split_by_bound("experts", np.where(tokens > 0, ns, 0.0), compute_ns > bytes_ns, part)


def _from_table(
    gpu: GpuSpec, weights: WeightFormat, rows: Ints, shape: MoeShape, matrices: int
) -> tuple[Floats, Part]:
    """Interpolate over tokens at the exact shape, else scale by the two nearest shapes."""
    arrays, table = load_arrays(gpu), weights.moe_table
    shapes = arrays[f"moe/{table}/shapes"].astype(np.int64)
    nearest = two_nearest(shapes.astype(np.float64), np.array(shape, np.float64))
    own_ns = np.maximum(*_roofline_ns(gpu, weights, rows, shape, matrices))
    ratio = np.zeros(len(rows))
    for index, weight in nearest:
        grid, measured = arrays[f"moe/{table}/tokens"], arrays[f"moe/{table}/us"][index]
        near_ns = log_interpolate(rows, grid, measured.astype(np.float64)) * NS_PER_US
        near = MoeShape(*(int(size) for size in shapes[index]))
        ratio += weight * near_ns / np.maximum(*_roofline_ns(gpu, weights, rows, near, matrices))
    if len(nearest) == 1:
        return ratio * own_ns, Part("experts", "hbm", "measured", "routing by a power law (1.2)")
    note = "efficiency of the two nearest measured shapes"
    return ratio * own_ns, Part("experts", "hbm", "extrapolated", note)


def _roofline_ns(
    gpu: GpuSpec, weights: WeightFormat, rows: Ints, shape: MoeShape, matrices: int
) -> tuple[Floats, Floats]:
    """Return the least time for FLOPs and bytes, all matrices of an expert together.

    With `ep` GPUs each has that part of the experts, and of the routed tokens.
    """
    size = float(matrices) * shape.hidden * shape.inter / shape.tp / shape.ep
    read_bytes = (
        activated_experts(rows, shape.experts, shape.topk) * size * weights.bytes_per_weight
    )
    flop_ns = rows.astype(np.float64) * (2.0 * size * shape.topk) / weights.flop_per_s * NS_PER_S
    return flop_ns, read_bytes / gpu.hbm_bytes_per_s * NS_PER_S
