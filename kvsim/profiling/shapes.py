"""What an engine computes for a model on one GPU: the shapes to time, in plain numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from kvsim.cost.formats import SIXTEEN_BIT_BYTES
from kvsim.cost.layers import heads_on_gpu, products
from kvsim.model import ModelSpec
from kvsim.units import KIB, MIB

Phase = Literal["prefill", "decode"]
CopyOp = Literal["device_to_device", "device_gather", "host_to_device", "device_to_host"]

# Tokens of a product. Its time is a sawtooth at tile edges; kvsim interpolates between these.
_ROWS = (
    *(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072),
    *(4096, 6144, 8192, 12288, 16384, 32768),
)
_PROMPTS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_PREFIXES = (1024, 4096, 16384, 65536)
_CHUNKS = (128, 512, 2048)  # prompts that continue a prefix
_CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PAGED_BATCHES = (1, 16, 64)
_PAGED_CONTEXTS = (1024, 8192)
_PAGED_CHUNKS = ((512, 4096), (2048, 0), (2048, 8192))  # new tokens on a prefix
_BATCHED_PROMPTS = 8
_ALL_REDUCE_BYTES = tuple(2**power for power in range(8, 31))
_PIECE_BYTES = tuple(4**power * KIB for power in range(1, 9))  # 4 KiB to 64 MiB
_PIECES = (1, 16)  # two counts tell the cost of a copy from that of its bytes
_COPY_LIMIT_BYTES = 64 * MIB
_COPY_OPS: tuple[CopyOp, ...] = (
    "device_to_device", "device_gather", "host_to_device", "device_to_host",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gemm:
    """[m, k] x [k, n], the weights in `dtype`; fp8 includes quantizing the 16-bit activation."""

    m: int
    n: int
    k: int
    dtype: Literal["bfloat16", "fp8"]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights: what must not be found in the L2 cache."""
        return self.n * self.k * (SIXTEEN_BIT_BYTES if self.dtype == "bfloat16" else 1)

    @property
    def working_bytes(self) -> int:
        """Bytes that must fit beside further copies; fp8 weights are made from 16-bit ones."""
        return (self.n * self.k + self.m * (self.n + 2 * self.k)) * SIXTEEN_BIT_BYTES


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Attention of one layer for sequences of equal length, causal, on heads of one GPU.

    `kv_tokens` of each sequence are attended to, of which the last `new_tokens` are queries: all
    of them for a prompt, one in decode. `block_size` is that of the paged KV cache, 0: contiguous;
    `fused` asks for the kernel that can read through a block table, also on a contiguous cache;
    else blocks are gathered first.
    """

    phase: Phase
    q_heads: int
    kv_heads: int
    head_dim: int
    batch: int
    new_tokens: int
    kv_tokens: int
    block_size: int = 0
    fused: bool = False
    compared: bool = False  # part of the comparison of layouts, not of the tables for pricing

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that are read."""
        tokens = self.batch * self.kv_tokens
        return 2 * tokens * self.kv_heads * self.head_dim * SIXTEEN_BIT_BYTES

    @property
    def working_bytes(self) -> int:
        """Bytes of keys and values (gathered: twice), queries and answers."""
        queries = self.batch * self.new_tokens * self.q_heads * self.head_dim * SIXTEEN_BIT_BYTES
        return self.kv_bytes * (2 if self.block_size else 1) + 2 * queries


@dataclass(frozen=True, slots=True)
class AllReduce:
    """A sum over GPUs of a 16-bit tensor of `size_bytes`."""

    world_size: int
    size_bytes: int

    @property
    def working_bytes(self) -> int:
        """Bytes of the tensor."""
        return self.size_bytes


@dataclass(frozen=True, slots=True)
class Copy:
    """`pieces` copies of `piece_bytes`, one after the other (`device_gather`: by one kernel)."""

    op: CopyOp
    piece_bytes: int
    pieces: int

    @property
    def working_bytes(self) -> int:
        """Bytes of source and target."""
        return 2 * self.piece_bytes * self.pieces


Shape = Gemm | AttentionCall | AllReduce | Copy


@dataclass(frozen=True, slots=True)
class Limits:
    """How far the tables reach, under vLLM's names."""

    max_num_batched_tokens: int = 16384
    max_num_seqs: int = 256
    max_model_len: int = 131072


@dataclass(frozen=True, slots=True)
class Plan:
    """The shapes to time, and in words what of the model is not among them."""

    shapes: tuple[Shape, ...]
    left_out: tuple[str, ...]


def plan(model: ModelSpec, tensor_parallel_size: int, limits: Limits) -> Plan:
    """Return what one GPU of a deployment computes, each shape once.

    Raises:
        InputError: The model can't be divided among so many GPUs.
    """
    model.check_tensor_parallel(tensor_parallel_size)
    shapes: list[Shape] = []
    for n, k, dtype in _matrices(model, tensor_parallel_size):
        shapes += [Gemm(m, n, k, dtype) for m in _up_to(_ROWS, limits.max_num_batched_tokens)]
    for heads in _heads(model, tensor_parallel_size):
        shapes += _contiguous(*heads, limits)
        shapes += _compared(*heads, limits)
    if tensor_parallel_size > 1:
        most = limits.max_num_batched_tokens * model.hidden_size * SIXTEEN_BIT_BYTES
        sizes = _up_to(_ALL_REDUCE_BYTES, most)
        shapes += [AllReduce(tensor_parallel_size, size) for size in sizes]
    shapes += _copies()
    return Plan(tuple(dict.fromkeys(shapes)), tuple(_left_out(model)))


def _matrices(model: ModelSpec, gpus: int) -> Iterator[tuple[int, int, Literal["bfloat16", "fp8"]]]:
    """Yield (n, k, dtype) of the linear layers as vLLM fuses them, and of the logits."""
    for group in model.layers:
        hidden = model.hidden_size
        weights = [*group.attention.weights(hidden), *group.mlp.weights(hidden)]
        for matrix in products(weights, gpus):
            quantized = matrix.quantizable and _is_fp8(model, matrix.module)
            yield matrix.n, matrix.k, "fp8" if quantized else "bfloat16"
    yield -(-model.vocab_size // gpus), model.hidden_size, "bfloat16"


def _is_fp8(model: ModelSpec, module: str) -> bool:
    scheme = model.quantization
    return scheme is not None and scheme.weight_dtype.startswith("fp8") and scheme.covers(module)


def _heads(model: ModelSpec, gpus: int) -> list[tuple[int, int, int]]:
    """Return the distinct (q_heads, kv_heads, head_dim) on one GPU of layers with a KV cache."""
    found = [
        heads_on_gpu(group.attention, gpus, "bfloat16")
        for group in model.layers
        if group.attention.kind in {"full", "sliding", "chunked"}
        and not group.attention.index_heads
        and group.attention.head_dim == group.attention.v_head_dim
    ]
    return list(dict.fromkeys((h.q_heads, h.kv_heads, h.head_dim) for h in found))


def _contiguous(
    q_heads: int, kv_heads: int, head_dim: int, limits: Limits
) -> Iterator[AttentionCall]:
    heads = q_heads, kv_heads, head_dim
    longest = min(limits.max_num_batched_tokens, limits.max_model_len)
    for new in _up_to(_PROMPTS, longest):
        yield AttentionCall("prefill", *heads, 1, new, new)
        batch = min(_BATCHED_PROMPTS, limits.max_num_seqs)
        if batch > 1 and batch * new <= limits.max_num_batched_tokens:
            yield AttentionCall("prefill", *heads, batch, new, new)
    for new in _up_to(_CHUNKS, longest):
        for prefix in _up_to(_PREFIXES, limits.max_model_len - new):
            yield AttentionCall("prefill", *heads, 1, new, prefix + new)
    for batch in _up_to(_BATCHES, limits.max_num_seqs):
        for context in _up_to(_CONTEXTS, limits.max_model_len):
            yield AttentionCall("decode", *heads, batch, 1, context)


def _compared(
    q_heads: int, kv_heads: int, head_dim: int, limits: Limits
) -> Iterator[AttentionCall]:
    """Yield calls on a contiguous cache and on paged ones of all block sizes, both ways."""
    calls: list[tuple[Phase, int, int, int]] = [
        ("decode", batch, 1, context)
        for batch in _up_to(_PAGED_BATCHES, limits.max_num_seqs)
        for context in _up_to(_PAGED_CONTEXTS, limits.max_model_len)
    ]
    calls += [
        ("prefill", 1, new, prefix + new)
        for new, prefix in _PAGED_CHUNKS
        if new <= limits.max_num_batched_tokens and prefix + new <= limits.max_model_len
    ]
    if not calls:  # limits below all of them: one small call each way
        context = limits.max_model_len
        new = min(limits.max_num_batched_tokens, context)
        calls = [("decode", 1, 1, context), ("prefill", 1, new, context)]
    for phase, batch, new, kv_tokens in calls:
        for fused, size in product((False, True), (0, *BLOCK_SIZES)):
            yield AttentionCall(
                phase, q_heads, kv_heads, head_dim, batch, new, kv_tokens, size, fused, True
            )


def _copies() -> Iterator[Copy]:
    for op in _COPY_OPS:
        for piece_bytes in _PIECE_BYTES:
            for pieces in _PIECES:
                if piece_bytes * pieces <= _COPY_LIMIT_BYTES:
                    yield Copy(op, piece_bytes, pieces)


def _up_to(values: tuple[int, ...], most: int) -> tuple[int, ...]:
    return tuple(value for value in values if value <= most)


def _left_out(model: ModelSpec) -> Iterator[str]:
    """Say what the model computes that torch has no kernel for which stands for an engine's."""
    kinds = {group.attention.kind for group in model.layers}
    if "mla" in kinds:
        yield "attention of MLA layers"
    if "linear" in kinds:
        yield "linear attention"
    if kinds & {"sliding", "chunked"}:
        yield "windows of attention: these layers are timed with full attention"
    if model.is_moe:
        yield "routed experts"
    scheme = model.quantization
    if scheme and not scheme.weight_dtype.startswith("fp8"):
        yield f"products with {scheme.weight_dtype} weights: timed in bfloat16"
