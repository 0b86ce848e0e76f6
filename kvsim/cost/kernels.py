"""Builds the price of an engine's iterations from the kernels of a model on a GPU."""

from dataclasses import dataclass

import numpy as np

from kvsim.cost import Part
from kvsim.cost.attention import price_decode
from kvsim.cost.collectives import all_reduce_curve, gather_curve
from kvsim.cost.formats import SIXTEEN_BIT_BYTES, sixteen_bit, weight_format
from kvsim.cost.gemm import gemm_curves
from kvsim.cost.layers import heads_on_gpu, layer_curves
from kvsim.cost.mla import price_mla_decode, price_mla_prefill
from kvsim.cost.moe import activated_experts
from kvsim.cost.overheads import OverheadPolicy
from kvsim.cost.prefill import price_prefill
from kvsim.cost.small_ops import SMALL_OPS, embedding_ns, norm_ns, sampler_ns
from kvsim.cost.step import AttentionLayers, KernelCost, Work
from kvsim.cost.tables import Curve, Floats, Ints
from kvsim.gpu import GpuSpec
from kvsim.model import LayerGroup, ModelSpec
from kvsim.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Deployment:
    """The engine's settings that its iteration times depend on, under vLLM's names."""

    tensor_parallel_size: int
    kv_cache_dtype: str  # `auto`: the checkpoint's
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int


def build_cost(
    model: ModelSpec, gpu: GpuSpec, deployment: Deployment, overhead: OverheadPolicy
) -> KernelCost:
    """Tabulate what the iterations of a deployment cost.

    Raises:
        InputError: The model can't be divided among so many GPUs, or has a part that is not priced.
    """
    gpus = deployment.tensor_parallel_size
    model.check_tensor_parallel(gpus)
    tokens = np.arange(deployment.max_num_batched_tokens + 1)
    seqs = np.arange(deployment.max_num_seqs + 1)
    token_curves = [
        curve for group in model.layers for curve in layer_curves(model, gpu, group, gpus, tokens)
    ]
    token_curves += _edge_curves(model, gpu, tokens.astype(np.float64))
    all_reduces = 2 * model.num_layers + 1 if gpus > 1 else 0
    if gpus > 1:
        size_bytes = tokens.astype(np.float64) * (model.hidden_size * SIXTEEN_BIT_BYTES)
        token_curves.append(all_reduce_curve(gpu, gpus, size_bytes, all_reduces))
    seq_curves = _logits_curves(model, gpu, gpus, seqs)
    seq_curves.append(_host_curve(overhead, seqs, all_reduces, gpus))
    attention = [_attention(gpu, group, deployment, model, tokens) for group in model.layers]
    return KernelCost(token_curves, seq_curves, attention, _work(model, gpu, gpus, tokens))


def _attention(
    gpu: GpuSpec, group: LayerGroup, deployment: Deployment, model: ModelSpec, tokens: Ints
) -> AttentionLayers:
    kv_cache_dtype = model.kv_cache_dtype(deployment.kv_cache_dtype)
    heads = heads_on_gpu(group.attention, deployment.tensor_parallel_size, kv_cache_dtype)
    prefill, decode = price_prefill, price_decode
    if heads.latent:
        prefill, decode = price_mla_prefill, price_mla_decode
    return AttentionLayers(
        count=group.count,
        heads=heads,
        prefill=prefill(gpu, heads, tokens),
        decode=decode(gpu, heads, deployment.max_model_len),
    )


def _edge_curves(model: ModelSpec, gpu: GpuSpec, tokens: Floats) -> list[Curve]:
    """Return the look-up of embeddings and the last norm."""
    width = model.hidden_size
    ns = embedding_ns(gpu, tokens, width) + norm_ns(gpu, tokens, width)
    return [Curve(SMALL_OPS, np.where(tokens > 0, ns, 0.0))]


def _logits_curves(model: ModelSpec, gpu: GpuSpec, gpus: int, seqs: Ints) -> list[Curve]:
    """Return logits, their gather and the sampler by the number of sequences."""
    shard = -(-model.vocab_size // gpus)
    curves = gemm_curves("logits", gpu, sixteen_bit(gpu), seqs, shard, model.hidden_size)
    sampled_ns = sampler_ns(gpu, seqs.astype(np.float64), model.vocab_size)
    sampler = Part("sampler", "hbm", "physical", "15 µs and the bytes of the logits")
    curves.append(Curve(sampler, np.where(seqs > 0, sampled_ns, 0.0)))
    if gpus > 1:
        size_bytes = seqs.astype(np.float64) * (SIXTEEN_BIT_BYTES * model.vocab_size)
        curves.append(gather_curve(gpu, size_bytes))
    return curves


def _host_curve(overhead: OverheadPolicy, seqs: Ints, all_reduces: int, gpus: int) -> Curve:
    host_s = [overhead.host_s(int(count), all_reduces, gpus) for count in seqs]
    part = Part("host", "host", "given", overhead.source())
    return Curve(part, np.array(host_s) * NS_PER_S)


def _work(model: ModelSpec, gpu: GpuSpec, gpus: int, tokens: Ints) -> Work:
    """Return FLOPs and weight bytes of one GPU; an expert is read if a token is routed to it."""
    logits = model.hidden_size * model.vocab_size / gpus
    flop_per_token = 2.0 * sum(
        layers * weight.active_parameters * weight.share(gpus)
        for layers, weight in model.weights()
        if weight.part not in {"embedding", "lm_head", "vision"}
    )
    by_part = dict(model.weight_bytes(gpus))
    expert_bytes = by_part.pop("experts", 0)
    always = sum(by_part.get(part, 0) for part in by_part if part not in {"embedding", "vision"})
    if model.tied_embeddings:
        always += round(logits * SIXTEEN_BIT_BYTES)
    weight_bytes = np.where(tokens > 0, float(always), 0.0)
    experts = next((group.mlp for group in model.layers if group.mlp.kind == "moe"), None)
    if experts:
        read = activated_experts(tokens, experts.experts, experts.topk) / experts.experts
        weight_bytes = weight_bytes + expert_bytes * read
    widest = "mlp.experts.0.up_proj" if experts else "mlp.up_proj"
    peak = weight_format(model, gpu, widest).flop_per_s
    return Work(flop_per_token, 2.0 * logits, weight_bytes, peak, gpu.hbm_bytes_per_s)
