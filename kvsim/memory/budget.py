"""What is left for the KV cache on a GPU: the lines that vLLM logs at start-up, before it starts.

vLLM loads the weights, runs one step of `max_num_batched_tokens` tokens and samples for
`max_num_seqs` sequences, and gives the KV cache what the peak leaves of
`gpu_memory_utilization` x the GPU's memory. The same sum is done here from tensor shapes. The
constants below have a physical meaning; none belongs to one model or one GPU. Not modeled: the
profile run of a vision encoder.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kvsim.gpu import GpuSpec
from kvsim.memory.flags import MemoryFlags
from kvsim.memory.kv_groups import KVLayout, kv_layout
from kvsim.memory.stages import Stage, model_of, stages
from kvsim.model import LayerGroup, ModelSpec, Parallelism
from kvsim.units import GIB, KIB

ELEMENT_BYTES = 2  # of activations
# Part of the nominal memory that CUDA reports, where it isn't known: 0.982 to 0.991 on the GPUs of
# the catalog that state it (ECC and the driver keep the rest).
USABLE_FRACTION = 0.99
# Tensors of one hidden state per token alive at the forward's peak (input, residual, norm), and
# while sampling (output, residual): one more prompt token costs 2 x 2 x hidden bytes, exactly,
# between two recorded servers that differ in max_num_batched_tokens alone.
HIDDEN_TENSORS_FORWARD = 3
HIDDEN_TENSORS_SAMPLING = 2
# Kernels and modules that CUDA loads during the profile run; logged as 0.13 to 0.14 GiB.
NON_TORCH_BYTES = round(0.13 * GIB)
# V0 also counted the CUDA context, 0.2 to 0.5 GiB by GPU.
CONTEXT_BYTES = round(0.25 * GIB)
# NCCL's channels (a few MiB each, two dozen and more per communicator) and the buffers of vLLM's
# own all-reduce: servers with 2 and 4 GPUs leave 0.3 to 0.7 GiB that nothing else explains.
COMMUNICATION_BYTES = round(0.5 * GIB)
# A captured kernel keeps its launch parameters on the device; a layer is about a dozen kernels,
# more with experts. Logs of 0.2 to 1 GiB for a model bound the product within a factor of two.
CUDA_GRAPH_BYTES_PER_KERNEL = 8 * KIB
KERNELS_PER_DENSE_LAYER = 12
KERNELS_PER_MOE_LAYER = 18
MLA_WORKSPACE_TOKENS = 65_536
MOE_CHUNK_TOKENS = (
    16_384  # vLLM's VLLM_FUSED_MOE_CHUNK_SIZE: tokens that the experts take at a time
)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Where the memory of one GPU goes; of pipeline stages, of the one with the fewest blocks."""

    flags: MemoryFlags
    total_bytes: int  # nominal
    usable_bytes: int  # what CUDA reports
    usable_is_known: bool
    budget_bytes: int  # gpu_memory_utilization of the usable
    weights_bytes: Mapping[str, int]  # by part of the model, the rotary table included
    activation_bytes: int
    cuda_graph_bytes: int
    non_torch_bytes: int
    kv_layout: KVLayout
    kv_bytes_per_token: int  # in all layers
    state_bytes_per_sequence: int  # linear attention; taken from the pool
    kv_cache_bytes: int
    num_gpu_blocks: int
    blocks_source: Literal["computed", "num_gpu_blocks_override", "kv_cache_memory_bytes"]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, over the layers of a KV group."""
        return self.kv_layout.block_bytes

    @property
    def kv_cache_tokens(self) -> int:
        """Tokens that the blocks hold, as vLLM logs them."""
        return self.kv_layout.tokens(self.num_gpu_blocks)

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can take: V1 keeps one back as the null block."""
        return max(0, self.num_gpu_blocks - self.flags.generation.null_blocks)

    def split_bytes(self) -> dict[str, float]:
        """Return where the memory of one GPU goes, in words; the lines add up to all of it."""
        used = {
            "weights": sum(self.weights_bytes.values()),
            "activation peak": self.activation_bytes,
            "CUDA graphs": self.cuda_graph_bytes,
            "non-torch (CUDA, NCCL)": self.non_torch_bytes,
            "KV cache": self.num_gpu_blocks * self.block_bytes,
        }
        return {**used, "left to others": self.total_bytes - sum(used.values())}

    def blocks_per_request(self, length_tokens: int) -> int:
        """Return the most blocks that one request of this length takes."""
        state = -(-self.state_bytes_per_sequence // self.block_bytes)
        return state + self.kv_layout.most_blocks(length_tokens, self.flags.max_num_batched_tokens)

    def max_concurrency(self, length_tokens: int) -> float:
        """Return how many requests of this length fit at once, as vLLM logs it."""
        return self.num_gpu_blocks / self.blocks_per_request(length_tokens)

    @property
    def longest_request_tokens(self) -> int:
        """Length of the longest request that fits the pool alone; 0 if none does.

        Where windows alone bound what it takes, it may be any length: `max_model_len` is told.
        """
        size = self.flags.block_size
        largest = max(group.block_size for group in self.kv_layout.groups)
        lengths = range(0, max(self.usable_blocks * largest, self.flags.max_model_len) + 1, size)
        fitting = bisect_right(lengths, self.usable_blocks, key=self.blocks_per_request)
        return lengths[fitting - 1] if fitting else 0

    @property
    def fits(self) -> bool:
        """Whether one request of `max_model_len` fits the pool, beside the null block."""
        return self.usable_blocks >= self.blocks_per_request(self.flags.max_model_len)


def activation_bytes(model: ModelSpec, flags: MemoryFlags, samples: bool = True) -> int:
    """Return the activation peak of the profile run: of the forward or of sampling.

    At the forward's peak a step's hidden states are alive beside what the widest layer makes of
    them; the sampler holds several copies of the logits of `max_num_seqs` sequences.
    """
    generation = flags.generation
    tokens = flags.max_num_batched_tokens
    if generation.profiles_max_model_len:
        tokens = max(tokens, flags.max_model_len)
    hidden = tokens * model.hidden_size * ELEMENT_BYTES
    widest = max(_layer_elements(group, model, tokens, flags.parallel) for group in model.layers)
    in_layer = max(widest * ELEMENT_BYTES, _mla_workspace_bytes(model, flags))
    forward = HIDDEN_TENSORS_FORWARD * hidden + in_layer
    if not samples:
        return forward
    sequences = min(flags.max_num_seqs, tokens)
    logits = sequences * model.vocab_size * generation.sampler_bytes_per_logit
    return max(forward, HIDDEN_TENSORS_SAMPLING * hidden + logits)


def cuda_graph_bytes(model: ModelSpec, flags: MemoryFlags) -> int:
    """Return the memory of the captured CUDA graphs: a piecewise and a full one for each size."""
    if flags.enforce_eager:
        return 0
    kernels = sum(
        g.count * (KERNELS_PER_MOE_LAYER if g.mlp.kind == "moe" else KERNELS_PER_DENSE_LAYER)
        for g in model.layers
    )
    largest = min(2 * flags.max_num_seqs, 512, flags.max_num_batched_tokens)
    piecewise = capture_sizes(largest)
    full = capture_sizes(min(largest, flags.max_num_seqs))
    return (len(piecewise) + len(full)) * kernels * CUDA_GRAPH_BYTES_PER_KERNEL


def capture_sizes(largest: int) -> list[int]:
    """Return the batch sizes for which vLLM V1 captures a CUDA graph."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return [size for size in sizes if size <= largest]


def _layer_elements(group: LayerGroup, model: ModelSpec, tokens: int, parallel: Parallelism) -> int:
    """Return the elements that a layer makes of a step on one GPU, hidden states aside.

    The experts see the tokens of all data-parallel ranks, a chunk of them at a time.
    """
    attention, mlp, tensor_parallel_size = group.attention, group.mlp, parallel.tensor_parallel_size
    heads = -(-attention.q_heads // tensor_parallel_size)
    kv_heads = attention.kv_heads_per_gpu(tensor_parallel_size)
    queries = heads * (attention.head_dim + attention.v_head_dim)  # and the output
    in_attention = tokens * (queries + kv_heads * (attention.head_dim + attention.v_head_dim))
    moe = mlp.kind == "moe"
    pieces = parallel.expert_tensor_size if moe else tensor_parallel_size
    size = -(-mlp.intermediate_size // pieces)
    up = (2 if mlp.gated else 1) * size  # gate and up, then their product beside them
    if moe:  # the buffers of vLLM's fused experts; input and output share the first
        seen = max(tokens, min(tokens * parallel.data_parallel_size, MOE_CHUNK_TOKENS))
        return max(in_attention, seen * mlp.topk * (max(up, model.hidden_size) + size))
    return max(in_attention, tokens * (up + size))


def _mla_workspace_bytes(model: ModelSpec, flags: MemoryFlags) -> int:
    """Return what MLA sets aside to expand the latents of earlier chunks of a prompt.

    The number of tokens is that of vLLM's MLA metadata builder.
    """
    longest = max(8 * flags.max_model_len, 4 * flags.max_num_seqs * flags.block_size)
    tokens = min(longest, MLA_WORKSPACE_TOKENS)
    width = 0
    for group in model.layers:
        attention = group.attention
        if attention.kind == "mla":
            heads = -(-attention.q_heads // flags.tensor_parallel_size)
            expanded = heads * (attention.nope_head_dim + attention.v_head_dim)
            width = max(width, expanded + attention.kv_lora_rank + attention.rope_head_dim)
    return tokens * width * ELEMENT_BYTES


def split_memory(model: ModelSpec, gpu: GpuSpec, flags: MemoryFlags) -> MemoryBudget:
    """Split the memory of a GPU into weights, activations, graphs, the rest, and the KV cache.

    Of pipeline stages the one with the fewest blocks counts, as vLLM gives all of them as many.
    The KV cache may come out as too small for any request, or negative.

    Raises:
        InputError: The model can't be divided among so many GPUs, or an unknown `kv_cache_dtype`.
    """
    model.check_tensor_parallel(flags.tensor_parallel_size)
    different = dict.fromkeys(stages(model.num_layers, flags.pipeline_parallel_size))
    budgets = [_split_stage(stage, model_of(stage, model), gpu, flags) for stage in different]
    return min(budgets, key=lambda budget: budget.kv_cache_bytes / budget.block_bytes)


def _split_stage(stage: Stage, model: ModelSpec, gpu: GpuSpec, flags: MemoryFlags) -> MemoryBudget:
    generation, parallel = flags.generation, flags.parallel
    usable = gpu.usable_hbm_bytes or int(gpu.hbm_bytes * USABLE_FRACTION)
    weights = _weights_bytes(stage, model, flags)
    non_torch = NON_TORCH_BYTES + (CONTEXT_BYTES if generation.counts_context else 0)
    non_torch += COMMUNICATION_BYTES if _communicates(model, parallel) else 0
    activation = activation_bytes(model, flags, samples=stage.is_last)
    graphs = cuda_graph_bytes(model, flags)
    budget = int(usable * flags.gpu_memory_utilization)
    left = budget - sum(weights.values()) - activation - non_torch
    left -= graphs if generation.counts_cuda_graphs else 0
    per_token = model.kv_bytes_per_token(flags.tensor_parallel_size, flags.kv_cache_dtype)
    layout = kv_layout(model, flags)
    block = layout.block_bytes
    source: Literal["computed", "num_gpu_blocks_override", "kv_cache_memory_bytes"] = "computed"
    if flags.num_gpu_blocks_override is not None:
        left, source = flags.num_gpu_blocks_override * block, "num_gpu_blocks_override"
    elif flags.kv_cache_memory_bytes is not None:
        left, source = flags.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    return MemoryBudget(
        flags=flags,
        total_bytes=gpu.hbm_bytes,
        usable_bytes=usable,
        usable_is_known=gpu.usable_hbm_bytes is not None,
        budget_bytes=budget,
        weights_bytes=weights,
        activation_bytes=activation,
        cuda_graph_bytes=graphs,
        non_torch_bytes=non_torch,
        kv_layout=layout,
        kv_bytes_per_token=per_token,
        state_bytes_per_sequence=model.state_bytes_per_sequence(flags.tensor_parallel_size),
        kv_cache_bytes=left,
        num_gpu_blocks=max(0, left // block),
        blocks_source=source,
    )


def _weights_bytes(stage: Stage, model: ModelSpec, flags: MemoryFlags) -> dict[str, int]:
    """Return the weights of a stage on one GPU; tied embeddings are at both ends."""
    weights = dict(model.bytes_by_part(flags.parallel.share))
    if not (stage.is_first or (stage.is_last and model.tied_embeddings)):
        del weights["embedding"]
    if not stage.is_last:
        weights.pop("lm_head", None)
    weights["rotary_table"] = model.max_position_embeddings * model.rotary_dim * ELEMENT_BYTES
    return weights


def _communicates(model: ModelSpec, parallel: Parallelism) -> bool:
    return parallel.rank_gpus > 1 or (model.is_moe and parallel.expert_gpus > 1)
