"""Builds the price of an engine's iterations from the kernels of a model on a GPU."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from kvsim.cost import Part
from kvsim.cost.attention import price_decode
from kvsim.cost.attention_kernels import AttentionKernelPolicy
from kvsim.cost.attention_kernels.modern import Modern
from kvsim.cost.collectives import collective_curve, gather_curve, hop_curve
from kvsim.cost.formats import SIXTEEN_BIT_BYTES, sixteen_bit, weight_format
from kvsim.cost.gemm import gemm_curves
from kvsim.cost.layers import (
    ALL_REDUCES_PER_LAYER,
    All2AllBackend,
    ExpertTraffic,
    heads_on_gpu,
    layer_curves,
)
from kvsim.cost.mla import price_mla_decode, price_mla_prefill
from kvsim.cost.moe import Routing, activated_experts
from kvsim.cost.overheads import OverheadPolicy
from kvsim.cost.pipeline import Kernels, PipelineCost
from kvsim.cost.prefill import price_prefill
from kvsim.cost.small_ops import SMALL_OPS, Sampling, embedding_ns, norm_ns, sampler_ns
from kvsim.cost.step import AttentionLayers, KernelCost, Work
from kvsim.cost.tables import Curve, Floats, Ints
from kvsim.defaults import BLOCK_SIZE
from kvsim.gpu import GpuSpec
from kvsim.model import LayerGroup, ModelSpec, Parallelism
from kvsim.units import NS_PER_S

NODE_GPUS = 8
TENSORS_BETWEEN_STAGES = 2  # hidden states and residuals
TOKEN_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class Deployment:
    """The engine's settings that its iteration times depend on, under vLLM's names."""

    tensor_parallel_size: int
    kv_cache_dtype: str  # `auto`: the checkpoint's
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    all2all_backend: All2AllBackend = "allgather_reducescatter"
    expert_routing: Routing = "auto"
    sampling: Sampling = "plain"
    block_size: int = BLOCK_SIZE
    attention_kernel: AttentionKernelPolicy = field(default_factory=Modern)

    @property
    def parallel(self) -> Parallelism:
        """How the GPUs share the model."""
        return Parallelism(
            self.tensor_parallel_size,
            self.pipeline_parallel_size,
            self.data_parallel_size,
            self.enable_expert_parallel,
        )


@lru_cache(maxsize=4)  # points of a study often differ in nothing that it depends on
def build_cost(
    model: ModelSpec, gpu: GpuSpec, deployment: Deployment, overhead: OverheadPolicy
) -> KernelCost | PipelineCost:
    """Tabulate what the iterations of a deployment cost: those of one data-parallel rank.

    Raises:
        InputError: The model can't be divided among so many GPUs, or has a part that is not priced.
    """
    stages = deployment.parallel.pipeline_parallel_size
    kernels = _kernels(model, gpu, deployment, overhead)
    if stages == 1:
        return kernels.cost()
    return PipelineCost(kernels, stages, -(-model.num_layers // stages) / model.num_layers)


def _kernels(
    model: ModelSpec, gpu: GpuSpec, deployment: Deployment, overhead: OverheadPolicy
) -> Kernels:
    parallel = deployment.parallel
    gpus, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    model.check_tensor_parallel(gpus)
    tokens = np.arange(deployment.max_num_batched_tokens + 1)
    seqs = np.arange(deployment.max_num_seqs + 1)
    traffic = ExpertTraffic(deployment.expert_routing, deployment.all2all_backend)
    curves = [
        curve
        for group in model.layers
        for curve in layer_curves(model, gpu, group, parallel, tokens, traffic)
    ]
    all_reduces = ALL_REDUCES_PER_LAYER * model.num_layers + 1 if gpus > 1 else 0
    return Kernels(
        tokens=[*curves, *_edge_curves(model, gpu, gpus, tokens.astype(np.float64))],
        hops=_hop_curves(model, gpu, parallel, tokens.astype(np.float64)),
        last=_logits_curves(model, gpu, gpus, seqs, deployment.sampling),
        host=_host_curve(overhead, seqs, -(-all_reduces // stages), gpus),
        upkeep=_upkeep_curve(overhead, deployment.block_size),
        attention=[_attention(gpu, group, deployment, model, tokens) for group in model.layers],
        work=_work(model, gpu, parallel, tokens),
    )


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
        decode=decode(gpu, heads, deployment.max_model_len).times(
            deployment.attention_kernel.decode_factor(deployment.block_size),
            deployment.attention_kernel.note(deployment.block_size),
        ),
    )


def _edge_curves(model: ModelSpec, gpu: GpuSpec, gpus: int, tokens: Floats) -> list[Curve]:
    """Return the look-up of embeddings, their all-reduce, and the last norm."""
    width = model.hidden_size
    ns = embedding_ns(gpu, tokens, width) + norm_ns(gpu, tokens, width)
    curves = [Curve(SMALL_OPS, np.where(tokens > 0, ns, 0.0))]
    if gpus > 1:
        size_bytes = tokens * (width * SIXTEEN_BIT_BYTES)
        curves.append(collective_curve("all_reduce", gpu, gpus, size_bytes))
    return curves


def _hop_curves(
    model: ModelSpec, gpu: GpuSpec, parallel: Parallelism, tokens: Floats
) -> list[Curve]:
    """Return the copies between pipeline stages, and of the sampled tokens back to the first one.

    A stage sends hidden states and residuals. Under tensor parallelism each GPU sends its share to
    its counterpart, and the next stage gathers them (vLLM's `send_tensor_dict`). Stages fill one
    node after the other.
    """
    gpus, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    if stages == 1:
        return []
    hidden_bytes = tokens * (TENSORS_BETWEEN_STAGES * model.hidden_size * SIXTEEN_BIT_BYTES)
    stages_in_node = max(1, NODE_GPUS // gpus)
    curves = []
    for stage in range(1, stages + 1):
        is_back = stage == stages
        size_bytes = tokens * TOKEN_ID_BYTES if is_back else hidden_bytes / gpus
        leaves_node = stages > stages_in_node if is_back else stage % stages_in_node == 0
        curves.append(hop_curve(gpu, size_bytes, leaves_node))
        if gpus > 1 and not is_back:
            curves.append(collective_curve("all_gather", gpu, gpus, hidden_bytes))
    return curves


def _logits_curves(
    model: ModelSpec, gpu: GpuSpec, gpus: int, seqs: Ints, sampling: Sampling
) -> list[Curve]:
    """Return logits, their gather and the sampler by the number of sequences."""
    shard = -(-model.vocab_size // gpus)
    curves = gemm_curves("logits", gpu, sixteen_bit(gpu), seqs, shard, model.hidden_size)
    sampled_ns = sampler_ns(gpu, seqs.astype(np.float64), model.vocab_size, sampling)
    note = "15 µs and the bytes of the logits" + ("; sorted" if sampling == "top_p" else "")
    sampler = Part("sampler", "hbm", "physical", note)
    curves.append(Curve(sampler, np.where(seqs > 0, sampled_ns, 0.0)))
    if gpus > 1:
        size_bytes = seqs.astype(np.float64) * (SIXTEEN_BIT_BYTES * model.vocab_size)
        curves.append(gather_curve(gpu, size_bytes))
    return curves


def _host_curve(overhead: OverheadPolicy, seqs: Ints, all_reduces: int, gpus: int) -> Curve:
    host_s = [overhead.host_s(int(count), all_reduces, gpus) for count in seqs]
    part = Part("host", "host", "given", overhead.source())
    return Curve(part, np.array(host_s) * NS_PER_S)


def _upkeep_curve(overhead: OverheadPolicy, block_size: int) -> Curve:
    part = Part("host", "host", "given", overhead.source())
    return Curve(part, np.array([0.0, overhead.context_token_s(block_size) * NS_PER_S]))


def _work(model: ModelSpec, gpu: GpuSpec, parallel: Parallelism, tokens: Ints) -> Work:
    """Return FLOPs and weight bytes of one GPU; an expert is read if a token is routed to it.

    Where data-parallel ranks share the experts, a GPU has that part of the FLOPs of all ranks, so
    as many as if it had all of its own.
    """
    gpus = parallel.tensor_parallel_size
    logits = model.hidden_size * model.vocab_size / gpus
    flop_per_token = 2.0 * sum(
        layers * weight.active_parameters * weight.share(gpus)
        for layers, weight in model.weights()
        if weight.part not in {"embedding", "lm_head", "vision"}
    )
    by_part = dict(model.bytes_by_part(parallel.share))
    expert_bytes = by_part.pop("experts", 0)
    always = sum(by_part.get(part, 0) for part in by_part if part not in {"embedding", "vision"})
    if model.tied_embeddings:
        always += round(logits * SIXTEEN_BIT_BYTES)
    weight_bytes = np.where(tokens > 0, float(always), 0.0)
    experts = next((group.mlp for group in model.layers if group.mlp.kind == "moe"), None)
    if experts:
        seen = tokens * parallel.data_parallel_size
        read = activated_experts(seen, experts.experts, experts.topk) / experts.experts
        weight_bytes = weight_bytes + expert_bytes * read
    widest = "mlp.experts.0.up_proj" if experts else "mlp.up_proj"
    peak = weight_format(model, gpu, widest).flop_per_s
    return Work(flop_per_token, 2.0 * logits, weight_bytes, peak, gpu.hbm_bytes_per_s)
