"""The kernels of a model's layers on one GPU: matrix shapes under tensor parallelism, prices."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kvsim.cost import Part
from kvsim.cost.attention import Heads
from kvsim.cost.collectives import DeepEpMode, collective_curve, deepep_curve
from kvsim.cost.formats import SIXTEEN_BIT_BYTES, WeightFormat, sixteen_bit, weight_format
from kvsim.cost.gemm import gemm_curves
from kvsim.cost.moe import MoeShape, Routing, moe_curves
from kvsim.cost.small_ops import SMALL_OPS, activation_ns, norm_ns, rope_ns
from kvsim.cost.tables import Curve, Floats, Ints
from kvsim.errors import InputError
from kvsim.gpu import GpuSpec
from kvsim.model import (
    Attention,
    LayerGroup,
    Mlp,
    ModelSpec,
    Parallelism,
    Weight,
    element_bytes,
)

# Matrices that vLLM multiplies in one product, and those whose input is what TP divides.
FUSED = (
    {"q_proj", "k_proj", "v_proj"},
    {"gate_proj", "up_proj"},
    {"q_a_proj", "kv_a_proj_with_mqa"},
)
ROW_PARALLEL = {"o_proj", "down_proj"}
All2AllBackend = Literal["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency"]
ALL_REDUCES_PER_LAYER = 2  # behind attention and behind the MLP or the experts


DEEPEP_MODES: Mapping[str, DeepEpMode] = {
    "deepep_high_throughput": "normal",
    "deepep_low_latency": "low_latency",
}


@dataclass(frozen=True, slots=True)
class ExpertTraffic:
    """Which experts tokens choose, and how they get there from another rank."""

    routing: Routing = "auto"
    all2all_backend: All2AllBackend = "allgather_reducescatter"


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product of one layer on one GPU."""

    module: str
    n: int
    k: int
    quantizable: bool


def products(weights: Sequence[Weight], tensor_parallel_size: int) -> list[Product]:
    """Return the products of a layer (routed experts aside), fused as vLLM fuses them."""
    fused: dict[tuple[str, int], Product] = {}
    for weight in weights:
        if weight.part == "experts" or weight.inputs == 1 or weight.outputs == 1:
            continue
        share = weight.share(tensor_parallel_size)
        prefix, _, name = weight.module.rpartition(".")
        rows = name in ROW_PARALLEL
        n = weight.outputs if rows else round(weight.outputs * share)
        k = round(weight.inputs * share) if rows else weight.inputs
        group = next((i for i, names in enumerate(FUSED) if name in names), -1)
        key = (f"{prefix}.{group}" if group >= 0 else weight.module, k)
        one = fused.get(key)
        fused[key] = (
            replace(one, n=one.n + n) if one else Product(weight.module, n, k, weight.linear)
        )
    return list(fused.values())


def layer_curves(
    model: ModelSpec,
    gpu: GpuSpec,
    group: LayerGroup,
    parallel: Parallelism,
    tokens: Ints,
    traffic: ExpertTraffic = ExpertTraffic(),
) -> Iterator[Curve]:
    """Yield what the layers of a group cost by tokens of one data-parallel rank.

    They are products, experts, small kernels, and what is sent between the GPUs.
    """
    hidden, attention, mlp = model.hidden_size, group.attention, group.mlp
    tensor_parallel_size = parallel.tensor_parallel_size
    weights = [*attention.weights(hidden), *mlp.weights(hidden)]
    for product in products(weights, tensor_parallel_size):
        weight = sixteen_bit(gpu)
        if product.quantizable:
            weight = weight_format(model, gpu, product.module)
        for curve in gemm_curves("gemm", gpu, weight, tokens, product.n, product.k):
            yield Curve(curve.part, curve.ns * group.count)
    if mlp.kind == "moe":
        expert = weight_format(model, gpu, "mlp.experts.0.up_proj")
        for curve in _expert_curves(gpu, expert, hidden, mlp, parallel, tokens, traffic):
            yield Curve(curve.part, curve.ns * group.count)
    small_ns = _small_ops_ns(model, gpu, group, tensor_parallel_size, tokens.astype(np.float64))
    yield Curve(SMALL_OPS, np.where(tokens > 0, small_ns * group.count, 0.0))
    if tensor_parallel_size > 1:
        size_bytes = tokens.astype(np.float64) * (hidden * SIXTEEN_BIT_BYTES)
        times = ALL_REDUCES_PER_LAYER * group.count
        yield collective_curve("all_reduce", gpu, tensor_parallel_size, size_bytes, times)


def heads_on_gpu(attention: Attention, tensor_parallel_size: int, kv_cache_dtype: str) -> Heads:
    """Return the attention of a layer as one GPU computes it.

    Raises:
        InputError: A kind of attention that is not priced.
    """
    if attention.kind == "linear":
        raise InputError("linear attention (gated delta rule) is not priced yet")
    if attention.index_heads:
        raise InputError("sparse attention with an indexer (DSA) is not priced yet")
    size = element_bytes(kv_cache_dtype)
    q_heads = -(-attention.q_heads // tensor_parallel_size)
    flop = 2.0 * q_heads * (attention.head_dim + attention.v_head_dim)
    latent = attention.kind == "mla"
    # In decode the query meets the latent itself: rank + rope for its score, rank for the value.
    wide = 2.0 * q_heads * (2 * attention.kv_lora_rank + attention.rope_head_dim)
    expand = (
        2.0 * q_heads * attention.kv_lora_rank * (attention.nope_head_dim + attention.v_head_dim)
    )
    return Heads(
        q_heads=q_heads,
        kv_heads=attention.kv_heads_per_gpu(tensor_parallel_size),
        head_dim=attention.head_dim,
        flop_per_pair=flop,
        decode_flop_per_pair=wide if latent else flop,
        kv_bytes_per_token=attention.kv_bytes_per_token(tensor_parallel_size, size),
        kv_dtype="fp8" if size == 1 else "bfloat16",
        window_tokens=attention.window_tokens,
        chunked=attention.kind == "chunked",
        expand_flop_per_key=expand if latent else 0.0,
    )


def _expert_curves(
    gpu: GpuSpec,
    weight: WeightFormat,
    hidden: int,
    mlp: Mlp,
    parallel: Parallelism,
    tokens: Ints,
    traffic: ExpertTraffic,
) -> Iterator[Curve]:
    """Yield one layer's experts, which see the tokens of all data-parallel ranks.

    The ranks go from layer to layer together, and are taken to have as many tokens each.
    """
    ranks = parallel.data_parallel_size
    cut, dealt = parallel.expert_tensor_size, parallel.expert_parallel_size
    shape = MoeShape(hidden, mlp.intermediate_size, mlp.topk, mlp.experts, tp=cut, ep=dealt)
    matrices = 3 if mlp.gated else 2
    for curve in moe_curves(gpu, weight, tokens * ranks, shape, matrices, traffic.routing):
        yield curve if ranks == 1 else Curve(_of_equal_ranks(curve.part), curve.ns)
    if ranks > 1:
        yield from _exchange_curves(gpu, shape, parallel, tokens.astype(np.float64), traffic)


def _exchange_curves(
    gpu: GpuSpec, shape: MoeShape, parallel: Parallelism, tokens: Floats, traffic: ExpertTraffic
) -> Iterator[Curve]:
    """Yield how tokens get to the experts of all ranks and back.

    vLLM's default backend gives the tokens of all ranks to each, and sums up what the experts made
    of them. DeepEP sends a token to its experts alone; each GPU of a rank has its share of them.
    """
    mode = DEEPEP_MODES.get(traffic.all2all_backend)
    if mode and parallel.enable_expert_parallel:
        own = np.ceil(tokens / parallel.tensor_parallel_size)
        sizes = shape.hidden, shape.topk, shape.experts
        yield deepep_curve(gpu, parallel.expert_gpus, mode, own, sizes)
        return
    ranks = parallel.data_parallel_size
    size_bytes = tokens * (ranks * shape.hidden * SIXTEEN_BIT_BYTES)
    yield collective_curve("all_gather", gpu, ranks, size_bytes)
    yield collective_curve("reduce_scatter", gpu, ranks, size_bytes)


def _of_equal_ranks(part: Part) -> Part:
    note = "data-parallel ranks with as many tokens each"
    return replace(part, note=f"{part.note}; {note}" if part.note else note)


def _small_ops_ns(
    model: ModelSpec, gpu: GpuSpec, group: LayerGroup, tensor_parallel_size: int, tokens: Floats
) -> Floats:
    """Return the time of one layer's element-wise kernels: two norms, rotary embedding, activation.

    Norms of queries and keys are one more kernel; the activation of routed experts is part of
    their table, and what MLA does beside its products part of its attention's price.
    """
    attention, mlp = group.attention, group.mlp
    q_heads = -(-attention.q_heads // tensor_parallel_size)
    kv_heads = attention.kv_heads_per_gpu(tensor_parallel_size)
    rotated = (q_heads + kv_heads) * attention.head_dim
    ns = 2 * norm_ns(gpu, tokens, model.hidden_size)
    latent = attention.kind == "mla"
    if model.rotary_dim and not latent:
        ns = ns + rope_ns(gpu, tokens, rotated)
    if attention.norm_weights and not latent:
        ns = ns + rope_ns(gpu, tokens, rotated)  # moves the same bytes
    dense = mlp.intermediate_size if mlp.kind == "dense" else mlp.shared_intermediate_size
    if dense:
        ns = ns + activation_ns(gpu, tokens, -(-dense // tensor_parallel_size), mlp.gated)
    return ns
