"""Mixture of experts: routed experts of one layer by the number of tokens."""

import math
from typing import Literal, NamedTuple

import numpy as np

from kvsim.cost import Basis, Part
from kvsim.cost.formats import WeightFormat
from kvsim.cost.tables import (
    Curve,
    Floats,
    Ints,
    load_arrays,
    log_interpolate,
    nearest,
    split_by_bound,
)
from kvsim.gpu import GpuSpec
from kvsim.units import NS_PER_S, NS_PER_US

# How tokens choose experts. balanced: all experts get equally many, as an ideal load balancer would
# have it; uniform: each token chooses at random, as models come near that are trained for equal
# loads; power_law: the popularity of an expert falls as a power of its rank. The last and the first
# were measured, each power law by single draws of the loads. auto: few wide experts are trained to
# be equally popular, and many narrow ones specialize. Measured servers agree: Mixtral (8 experts)
# decodes as fast as uniform routing says, gpt-oss (128) and MiniMax-M2.5 (256) prefill as slowly as
# the power law says.
MeasuredRouting = Literal["power_law_1.2", "balanced"]
Routing = Literal["auto", "uniform", "power_law_1.2", "balanced"]
MOST_UNIFORM_EXPERTS = 32  # no model at hand has between 16 and 128

FIXED_NS = 10.0 * NS_PER_US  # routing and the launches of the grouped kernels
BYTES_EFFICIENCY = 0.83  # 1.48 of 1.79 TB/s, RTX PRO 6000, activated experts varied alone
SPREADS = 5  # standard deviations of an expert's tokens that are looked at
NEIGHBOURS = 4  # measured shapes that an unmeasured one is scaled from
LEAST_BUSY = 0.3  # of a measured time: not all of it is fixed, however short
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

    @property
    def load(self) -> float:
        """Share of the tokens that an expert gets if routing is uniform."""
        return self.topk / self.experts


def activated_experts(tokens: Ints | Floats, experts: int, topk: int) -> Floats:
    """Return how many experts a step touches if routing is uniform: E·(1 - (1 - k/E)^T)."""
    return np.asarray(experts * (1.0 - (1.0 - topk / experts) ** tokens), np.float64)


def moe_curves(
    gpu: GpuSpec,
    weights: WeightFormat,
    tokens: Ints,
    shape: MoeShape,
    matrices: int,
    routing: Routing = "auto",
) -> list[Curve]:
    """Price the routed experts of one layer, top-k included, for every number of tokens.

    Args:
        gpu: The GPU.
        weights: Format of the experts' weights.
        tokens: Tokens of all GPUs that share the experts; no tokens cost nothing.
        shape: Sizes of the layer.
        matrices: Matrices of an expert, 3 if it is gated.
        routing: How unequally tokens choose experts; the GPU with the most of them is priced.
    """
    if routing == "auto":
        routing = "uniform" if shape.experts <= MOST_UNIFORM_EXPERTS else "power_law_1.2"
    rows = np.maximum(tokens, 1).astype(np.float64)
    compute_ns, bytes_ns = _roofline_ns(gpu, weights, rows, shape, matrices)
    if f"moe/{weights.moe_table}/{_measured(routing)}/us" in load_arrays(gpu):
        ns, part = _from_table(gpu, weights, rows, shape, matrices, routing)
    else:
        ns = FIXED_NS + np.maximum(compute_ns / COMPUTE_EFFICIENCY, bytes_ns / BYTES_EFFICIENCY)
        part = _part("physical", weights, "weights of the activated experts, uniform routing")
    return split_by_bound("experts", np.where(tokens > 0, ns, 0.0), compute_ns > bytes_ns, part)


def _from_table(
    gpu: GpuSpec,
    weights: WeightFormat,
    rows: Floats,
    shape: MoeShape,
    matrices: int,
    routing: Routing,
) -> tuple[Floats, Part]:
    """Interpolate over tokens at the exact shape, else scale by the nearest shapes.

    Near are shapes of which a GPU has alike: width and number of its experts, their share of the
    tokens. They are compared where an expert has as many tokens, by their time over the roofline,
    a fixed cost aside; `tools/check_experts.py` withholds whole models to tell the error.
    """
    arrays, table = load_arrays(gpu), f"moe/{weights.moe_table}"
    shapes = [MoeShape(*row) for row in arrays[f"{table}/shapes"].tolist()]
    grid = arrays[f"{table}/tokens"]
    measured = arrays[f"{table}/{_measured(routing)}/us"].astype(np.float64)
    known = [index for index in range(len(shapes)) if np.isfinite(measured[index]).any()]
    points = np.array([_on_gpu(shapes[index]) for index in known])
    found = nearest(points, np.array(_on_gpu(shape)), NEIGHBOURS)
    if routing == "uniform":
        for index in (known[place] for place, _ in found):
            measured[index] = _at_random(measured[index], grid, shapes[index])
    if len(found) == 1 and shapes[known[found[0][0]]].load == shape.load:
        ns = log_interpolate(rows, grid, measured[known[found[0][0]]]) * NS_PER_US
        basis: Basis = "interpolated" if routing == "uniform" else "measured"
        return ns, _part(basis, weights, f"routing: {routing}")
    log_ratio = np.zeros(len(rows))
    for index, weight in found:
        near = shapes[known[index]]
        alike = np.maximum(rows * (shape.load / near.load), 1.0)
        near_ns = log_interpolate(alike, grid, measured[known[index]]) * NS_PER_US
        roof_ns = np.maximum(*_roofline_ns(gpu, weights, alike, near, matrices))
        log_ratio += weight * np.log(np.maximum(near_ns - FIXED_NS, LEAST_BUSY * near_ns) / roof_ns)
    own_ns = np.maximum(*_roofline_ns(gpu, weights, rows, shape, matrices))
    note = f"efficiency of the {len(found)} nearest measured shapes; routing: {routing}"
    return FIXED_NS + np.exp(log_ratio) * own_ns, _part("extrapolated", weights, note)


def _measured(routing: Routing) -> MeasuredRouting:
    return "power_law_1.2" if routing == "power_law_1.2" else "balanced"


def _at_random(balanced: Floats, grid: Ints, shape: MoeShape) -> Floats:
    """Return times under uniform routing from those under a balanced one, by tokens.

    An expert gets n of T tokens with the probability of n hits in T draws at k/E. Its share of the
    work is that of a balanced step in which each expert has n: so the mean of these steps is taken.
    With few tokens some experts have none, and their weights aren't read; with many, an expert that
    gets a little more than a tile of tokens pays for two, which balanced ones avoid.
    """
    if not np.isfinite(balanced).any():
        return balanced
    load = shape.load
    return np.array([_mean_over_loads(balanced, grid, load, int(tokens)) for tokens in grid])


def _mean_over_loads(balanced: Floats, grid: Ints, load: float, tokens: int) -> float:
    """Return the mean time of balanced steps with as many tokens as an expert may happen to get."""
    spread = math.sqrt(tokens * load * (1 - load))
    middle = round(tokens * load)
    reach = math.ceil(SPREADS * spread) + 1
    hits = np.arange(max(0, middle - reach), min(tokens, middle + reach) + 1, dtype=np.float64)
    log_fact = np.array([math.lgamma(hit + 1) + math.lgamma(tokens - hit + 1) for hit in hits])
    log_p = hits * math.log(load) + (tokens - hits) * math.log1p(-load) if load < 1 else 0 * hits
    weights = np.exp(log_p - log_fact - np.max(log_p - log_fact))
    all_busy, one = (
        float(log_interpolate(np.array([t]), grid, balanced)[0]) for t in (1 / load, 1.0)
    )
    idle = max(0.0, one - (all_busy - one) * load / (1 - load)) if load < 1 else 0.0
    times = np.where(hits > 0, log_interpolate(np.maximum(hits, 0.5) / load, grid, balanced), idle)
    return float(weights @ times / weights.sum())


def _part(basis: Basis, weights: WeightFormat, note: str) -> Part:
    notes = (weights.moe_note, note)
    return Part("experts", "hbm", basis, "; ".join(text for text in notes if text))


def _on_gpu(shape: MoeShape) -> tuple[float, ...]:
    """Return what a GPU has of the layer, and among how many the routing may be unequal."""
    width, count = shape.inter / shape.tp, shape.experts / shape.ep
    return float(shape.hidden), width, shape.load, count, float(shape.ep)


def _roofline_ns(
    gpu: GpuSpec, weights: WeightFormat, rows: Floats, shape: MoeShape, matrices: int
) -> tuple[Floats, Floats]:
    """Return the least time for FLOPs and bytes, all matrices of an expert together.

    With `ep` GPUs each has that part of the experts, and of the routed tokens.
    """
    size = float(matrices) * shape.hidden * shape.inter / shape.tp / shape.ep
    read_bytes = (
        activated_experts(rows, shape.experts, shape.topk) * size * weights.bytes_per_weight
    )
    flop_ns = rows * (2.0 * size * shape.topk) / weights.flop_per_s * NS_PER_S
    return flop_ns, read_bytes / gpu.hbm_bytes_per_s * NS_PER_S
