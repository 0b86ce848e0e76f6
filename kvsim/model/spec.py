"""A decoder model as the simulator sees it: layers, weights, and the bytes of both on a GPU."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvsim.errors import InputError
from kvsim.model.quantization import Quantization

AttentionKind = Literal["full", "sliding", "chunked", "mla", "linear"]
PARTS = (
    "embedding", "attention", "mlp", "experts", "shared_experts", "router", "norms", "lm_head",
    "vision",
)  # fmt: skip
BYTES_16_BIT = 2
BYTES_32_BIT = 4
VOCAB_PADDING = 64  # vLLM's DEFAULT_VOCAB_PADDING_SIZE: each GPU's slice of the vocabulary


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight matrix, or several equal ones: `count` times `inputs` x `outputs`.

    `shards` is into how many equal pieces tensor parallelism may cut it (0: every GPU holds all of
    it); with more GPUs than pieces the pieces are replicated, as vLLM does with KV heads.
    """

    part: str
    module: str  # the end of its name in the checkpoint: what `ignore` patterns are about
    inputs: int
    outputs: int
    count: int = 1
    active: int | None = None  # how many of `count` a token passes through; None: all
    shards: int = 0
    linear: bool = True  # a matrix of a linear layer, which quantization may touch

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.inputs * self.outputs * self.count

    @property
    def active_parameters(self) -> int:
        """Number of parameters that one token passes through."""
        return self.inputs * self.outputs * (self.count if self.active is None else self.active)

    def share(self, tensor_parallel_size: int) -> float:
        """Return the fraction of the weight that one GPU holds."""
        if not self.shards:
            return 1.0
        return -(-self.shards // tensor_parallel_size) / self.shards


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of one layer.

    In `linear` layers (gated delta rule) `kv_heads` and `head_dim` are the key heads and their
    size, `q_heads` and `v_head_dim` the value heads and theirs; they keep a state of fixed size
    for each sequence and nothing for each token.
    """

    kind: AttentionKind
    q_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window_tokens: int = 0  # sliding: keys seen; chunked: tokens in a chunk
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    rope_head_dim: int = 0
    nope_head_dim: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    output_gate: bool = False  # the query projection also yields a gate of the same width
    value_is_key: bool = False  # no value projection; both are cached all the same
    norm_weights: int = 0  # of the norms on queries, keys and latents
    sinks: bool = False
    index_heads: int = 0  # sparse attention (DSA): heads of the indexer
    index_head_dim: int = 0
    conv_kernel: int = 0  # linear: length of the short convolution

    def kv_heads_per_gpu(self, tensor_parallel_size: int) -> int:
        """Return the KV heads on one GPU: at least one, so they are replicated on many GPUs."""
        return max(1, -(-self.kv_heads // tensor_parallel_size))

    def kv_bytes_per_token(self, tensor_parallel_size: int, element_bytes: int) -> int:
        """Return the KV cache bytes that one token takes in one layer on one GPU."""
        if self.kind == "linear":
            return 0
        if self.kind == "mla":  # the latent is shared by all heads: each GPU keeps all of it
            latent = (self.kv_lora_rank + self.rope_head_dim) * element_bytes
            # The indexer keeps fp8 keys with one fp32 scale for each 128 of them.
            return latent + self.index_head_dim + self.index_head_dim // 128 * BYTES_32_BIT
        heads = self.kv_heads_per_gpu(tensor_parallel_size)
        return heads * (self.head_dim + self.v_head_dim) * element_bytes

    def state_bytes(self, tensor_parallel_size: int) -> int:
        """Return the bytes that one sequence takes in one layer on one GPU, whatever its length.

        Linear attention: an fp32 matrix for each value head, and the inputs of the convolution
        (vLLM's `gated_delta_net_state_shape`).
        """
        if self.kind != "linear":
            return 0
        channels = 2 * self.kv_heads * self.head_dim + self.q_heads * self.v_head_dim
        matrix = self.q_heads * self.v_head_dim * self.head_dim * BYTES_32_BIT
        conv = channels * (self.conv_kernel - 1) * BYTES_16_BIT
        return -(-(matrix + conv) // tensor_parallel_size)

    def weights(self, hidden: int) -> Iterator[Weight]:
        """Yield the weights of one layer's attention."""
        if self.kind == "linear":
            yield from self._linear_weights(hidden)
        elif self.kind == "mla":
            yield from self._mla_weights(hidden)
        else:
            yield from self._head_weights(hidden)
        if self.norm_weights:
            yield Weight("attention", "norm", 1, self.norm_weights, linear=False)

    def _head_weights(self, hidden: int) -> Iterator[Weight]:
        query = self.q_heads * self.head_dim * (2 if self.output_gate else 1)
        key, value = self.kv_heads * self.head_dim, self.kv_heads * self.v_head_dim
        heads_out = self.q_heads * self.v_head_dim
        name = "self_attn."
        yield Weight("attention", f"{name}q_proj", hidden, query, shards=self.q_heads)
        yield Weight("attention", f"{name}k_proj", hidden, key, shards=self.kv_heads)
        if not self.value_is_key:
            yield Weight("attention", f"{name}v_proj", hidden, value, shards=self.kv_heads)
        yield Weight("attention", f"{name}o_proj", heads_out, hidden, shards=self.q_heads)
        if self.qkv_bias:
            bias = query + key + value
            yield Weight("attention", "bias", 1, bias, shards=self.kv_heads, linear=False)
        if self.output_bias:
            yield Weight("attention", "bias", 1, hidden, linear=False)
        if self.sinks:
            yield Weight("attention", "sinks", 1, self.q_heads, shards=self.q_heads, linear=False)

    def _mla_weights(self, hidden: int) -> Iterator[Weight]:
        name, heads = "self_attn.", self.q_heads
        query = heads * (self.nope_head_dim + self.rope_head_dim)
        latent = self.kv_lora_rank + self.rope_head_dim
        keys_values = heads * (self.nope_head_dim + self.v_head_dim)
        if self.q_lora_rank:
            yield Weight("attention", f"{name}q_a_proj", hidden, self.q_lora_rank)
            yield Weight("attention", f"{name}q_b_proj", self.q_lora_rank, query, shards=heads)
        else:
            yield Weight("attention", f"{name}q_proj", hidden, query, shards=heads)
        yield Weight("attention", f"{name}kv_a_proj_with_mqa", hidden, latent)
        yield Weight("attention", f"{name}kv_b_proj", self.kv_lora_rank, keys_values, shards=heads)
        yield Weight("attention", f"{name}o_proj", heads * self.v_head_dim, hidden, shards=heads)
        if self.index_heads:
            name += "indexer."
            width = self.index_heads * self.index_head_dim
            yield Weight("attention", f"{name}wq_b", self.q_lora_rank, width)
            yield Weight("attention", f"{name}wk", hidden, self.index_head_dim)
            yield Weight("attention", f"{name}weights_proj", hidden, self.index_heads, linear=False)

    def _linear_weights(self, hidden: int) -> Iterator[Weight]:
        key, value = self.kv_heads * self.head_dim, self.q_heads * self.v_head_dim
        name, heads = "linear_attn.", self.kv_heads
        yield Weight("attention", f"{name}in_proj_qkvz", hidden, 2 * (key + value), shards=heads)
        yield Weight("attention", f"{name}in_proj_ba", hidden, 2 * self.q_heads, shards=heads)
        yield Weight("attention", f"{name}out_proj", value, hidden, shards=heads)
        channels = 2 * key + value
        yield Weight("attention", "conv1d", self.conv_kernel, channels, shards=heads, linear=False)
        yield Weight("attention", "decay", 2, self.q_heads, shards=heads, linear=False)


@dataclass(frozen=True, slots=True)
class Mlp:
    """The feed-forward block of one layer; `shared_*` runs for every token beside the experts."""

    kind: Literal["dense", "moe"]
    intermediate_size: int  # of the block, or of one expert
    gated: bool = True
    bias: bool = False
    experts: int = 0
    topk: int = 0
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    router_bias: bool = False

    def weights(self, hidden: int) -> Iterator[Weight]:
        """Yield the weights of one layer's feed-forward block."""
        if self.kind == "dense":
            yield from self._block("mlp", "mlp.", hidden, self.intermediate_size)
            return
        size, active = self.intermediate_size, (self.experts, self.topk)
        yield from self._block("experts", "mlp.experts.0.", hidden, size, *active)
        if self.shared_intermediate_size:
            shared = self.shared_intermediate_size
            yield from self._block("shared_experts", "mlp.shared_experts.", hidden, shared)
        if self.shared_gate:
            yield Weight("shared_experts", "mlp.shared_expert_gate", hidden, 1, linear=False)
        yield Weight("router", "mlp.gate", hidden, self.experts, linear=False)
        if self.router_bias:
            yield Weight("router", "bias", 1, self.experts, linear=False)

    def _block(
        self, part: str, name: str, hidden: int, size: int, count: int = 1, active: int = 1
    ) -> Iterator[Weight]:
        for projection in ("gate_proj", "up_proj") if self.gated else ("up_proj",):
            yield Weight(part, name + projection, hidden, size, count, active, shards=size)
        yield Weight(part, f"{name}down_proj", size, hidden, count, active, shards=size)
        if self.bias:
            width = size * (2 if self.gated else 1)
            yield Weight(part, "bias", 1, width, count, active, shards=size, linear=False)
            yield Weight(part, "bias", 1, hidden, count, active, linear=False)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that are equal to one another; their order among other layers is not kept."""

    count: int
    attention: Attention
    mlp: Mlp


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model read from a Hugging Face `config.json`."""

    name: str
    dtype: Literal["bfloat16", "float16"]
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    layers: tuple[LayerGroup, ...]
    tied_embeddings: bool
    norm_weights: int  # of all norms between blocks, the final one included
    quantization: Quantization | None = None
    position_embeddings: int = 0  # learned positions (OPT), in parameters
    rotary_dim: int = 0
    vision: tuple[Weight, ...] = field(default=())

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return sum(group.count for group in self.layers)

    @property
    def is_moe(self) -> bool:
        """Whether any layer has experts."""
        return any(group.mlp.kind == "moe" for group in self.layers)

    def weights(self) -> Iterator[tuple[int, Weight]]:
        """Yield (number of layers, weight) for all weights of the model."""
        hidden, vocab = self.hidden_size, self.vocab_size
        padded = max(1, -(-vocab // VOCAB_PADDING))
        yield 1, Weight("embedding", "embed_tokens", hidden, vocab, 1, 0, padded, linear=False)
        if self.position_embeddings:
            yield 1, Weight("embedding", "positions", 1, self.position_embeddings, linear=False)
        for group in self.layers:
            for weight in (*group.attention.weights(hidden), *group.mlp.weights(hidden)):
                yield group.count, weight
        yield 1, Weight("norms", "norm", 1, self.norm_weights, linear=False)
        if not self.tied_embeddings:
            yield 1, Weight("lm_head", "lm_head", hidden, vocab, shards=padded, linear=False)
        for weight in self.vision:
            yield 1, weight

    def parameters(self) -> Mapping[str, int]:
        """Return the number of parameters of each part, in the order of `PARTS`."""
        return self._by_part((w.part, layers * w.parameters) for layers, w in self.weights())

    def active_parameters(self) -> int:
        """Return the parameters that compute one token: top-k experts, no embedding look-up.

        A tied embedding counts, since it computes the logits; a vision tower does not.
        """
        head = self.hidden_size * self.vocab_size if self.tied_embeddings else 0
        return head + sum(
            layers * weight.active_parameters
            for layers, weight in self.weights()
            if weight.part != "vision"
        )

    def weight_bytes(self, tensor_parallel_size: int = 1) -> Mapping[str, int]:
        """Return the bytes of the weights on one GPU by part, scales of quantization included.

        Raises:
            InputError: The attention heads can't be divided among so many GPUs.
        """
        self.check_tensor_parallel(tensor_parallel_size)
        return self.bytes_by_part(lambda weight: weight.share(tensor_parallel_size))

    def bytes_by_part(self, share: Callable[[Weight], float]) -> Mapping[str, int]:
        """Return the bytes of the weights by part, of each weight the share that is asked for."""
        return self._by_part(
            (w.part, round(layers * self._bytes(w) * share(w))) for layers, w in self.weights()
        )

    def kv_cache_dtype(self, flag: str = "auto") -> str:
        """Return the dtype of the KV cache: the flag's, else the checkpoint's, else the model's."""
        if flag != "auto":
            return flag
        fixed = self.quantization.kv_cache_dtype if self.quantization else None
        return fixed or self.dtype

    def kv_bytes_per_token(
        self, tensor_parallel_size: int = 1, kv_cache_dtype: str = "auto"
    ) -> int:
        """Return the KV cache bytes of one token on one GPU, over all layers.

        Sliding-window layers are charged like full ones. So does vLLM in the token count that it
        logs (gpt-oss: 73,728 bytes, `36 layers x 2,048`), since all layers share one block pool.

        Raises:
            InputError: Unknown dtype, or heads that can't be divided among so many GPUs.
        """
        self.check_tensor_parallel(tensor_parallel_size)
        element = element_bytes(self.kv_cache_dtype(kv_cache_dtype))
        return sum(
            group.count * group.attention.kv_bytes_per_token(tensor_parallel_size, element)
            for group in self.layers
        )

    def state_bytes_per_sequence(self, tensor_parallel_size: int = 1) -> int:
        """Return the bytes on one GPU that a sequence takes whatever its length (linear layers)."""
        return sum(
            group.count * group.attention.state_bytes(tensor_parallel_size) for group in self.layers
        )

    def check_tensor_parallel(self, tensor_parallel_size: int) -> None:
        """Refuse a number of GPUs that vLLM refuses: it must divide the heads, or they it."""
        for group in self.layers:
            q_heads, kv_heads = group.attention.q_heads, group.attention.kv_heads
            remainder = max(kv_heads, tensor_parallel_size) % min(kv_heads, tensor_parallel_size)
            if q_heads % tensor_parallel_size or (group.attention.kind != "mla" and remainder):
                raise InputError(
                    f"{self.name}: {q_heads} query heads and {kv_heads} KV heads can't be divided "
                    f"among tensor_parallel_size {tensor_parallel_size}"
                )

    def _bytes(self, weight: Weight) -> float:
        if self.quantization and weight.linear and self.quantization.covers(weight.module):
            return self.quantization.bytes_of(
                weight.inputs, weight.outputs, weight.count, weight.part == "experts"
            )
        return weight.parameters * BYTES_16_BIT

    @staticmethod
    def _by_part(amounts: Iterator[tuple[str, int]]) -> Mapping[str, int]:
        sums: defaultdict[str, int] = defaultdict(int)
        for part, amount in amounts:
            sums[part] += amount
        return {part: sums[part] for part in PARTS if part in sums}


def element_bytes(dtype: str) -> int:
    """Return the bytes of one KV cache element.

    Raises:
        InputError: The dtype is none that vLLM has for its KV cache.
    """
    sizes = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
    if dtype not in sizes:
        known = ", ".join(["auto", *sizes])
        raise InputError(f"unknown kv_cache_dtype '{dtype}': known are {known}")
    return sizes[dtype]
