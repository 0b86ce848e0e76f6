"""What is run for each shape, in torch; the `kernel` of a row says which of these it was.

- `torch_linear`: `torch.nn.functional.linear` in bfloat16 (cuBLAS).
- `torch_scaled_mm`: fp8 with a scale a token and a scale an output channel. The activation's scales
  and its conversion are part of the call, as in the published tables; on a GPU torch.compile makes
  one kernel of them.
- `torch_sdpa_flash`: FlashAttention of `scaled_dot_product_attention` on a contiguous KV cache. The
  layouts are compared with it.
- `torch_gather_sdpa_flash`: blocks are gathered into a contiguous copy (`index_select`), which
  `torch_sdpa_flash` then reads. Any block size; an upper bound, that no engine would pay.
- `torch_varlen_flash`, `torch_varlen_flash_paged`: `torch.nn.attention.varlen` on a contiguous
  cache, and through a block table as vLLM's kernels read. Not every build of torch can do the
  latter, on every GPU, for every block size.
- `torch_copy`, `torch_index_select`: copies of whole pieces, gathering of scattered ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from kvsim.profiling.device import Device, Kind
from kvsim.profiling.shapes import AttentionCall, Copy, Gemm
from kvsim.profiling.timing import Call, cold_copies
from kvsim.rng import stream

SEED = 0


@dataclass(frozen=True, slots=True)
class Work:
    """The calls that run a shape, each on a copy of its own of what must be cold."""

    kernel: str
    calls: list[Call]


def work_of(device: Device, shape: Gemm | AttentionCall | Copy) -> Work:
    """Allocate what a shape needs, and return the calls that run it.

    Raises:
        RuntimeError: torch has no kernel for the shape on this device, or not enough memory.
    """
    device.torch.manual_seed(SEED)
    if isinstance(shape, Gemm):
        return _gemm(device, shape)
    if isinstance(shape, Copy):
        return _copy(device, shape)
    return _paged(device, shape) if shape.block_size else _contiguous(device, shape)


def _gemm(device: Device, shape: Gemm) -> Work:
    torch = device.torch
    copies = cold_copies(shape.weight_bytes, device.cache_bytes)
    x = _normal(device, shape.m, shape.k)
    weights = [_normal(device, shape.n, shape.k) for _ in range(copies)]
    if shape.dtype == "bfloat16":
        linear = torch.nn.functional.linear
        return Work("torch_linear", [partial(linear, x, w) for w in weights])
    if not device.has_fp8:
        raise RuntimeError("this GPU does not multiply fp8")
    quantize = _quantizer(device.kind)
    stored = [quantize(weight) for weight in weights]
    return Work("torch_scaled_mm", [partial(_fp8_product, torch, quantize, x, *w) for w in stored])


def _fp8_product(
    torch: Any, quantize: Callable[[Any], tuple[Any, Any]], x: Any, weight: Any, weight_scale: Any
) -> Any:
    """Quantize x [m, k] by token and multiply it with weight [n, k], whose scales are [n, 1]."""
    values, scale = quantize(x)
    by_row = torch.nn.functional.ScalingType.RowWise
    return torch.nn.functional.scaled_mm(
        values, weight.t(), scale, by_row, weight_scale.t(), by_row, output_dtype=torch.bfloat16
    )


@cache
def _quantizer(kind: Kind) -> Callable[[Any], tuple[Any, Any]]:
    """Return what turns rows into fp8 and their scales; on a GPU one kernel, or an error.

    Compiled once for all shapes: torch would fall back to many kernels after some recompilations.
    """
    import torch

    fp8 = torch.float8_e4m3fn
    largest = torch.finfo(fp8).max

    def quantize(x: Any) -> tuple[Any, Any]:
        scale = x.abs().amax(dim=-1, keepdim=True).float().clamp(min=1e-12) / largest
        return (x / scale).clamp(-largest, largest).to(fp8), scale

    return torch.compile(quantize, dynamic=True, fullgraph=True) if kind == "cuda" else quantize


def _contiguous(device: Device, shape: AttentionCall) -> Work:
    size = shape.batch, shape.kv_tokens, shape.kv_heads, shape.head_dim
    copies = cold_copies(shape.kv_bytes, device.cache_bytes)
    caches = [(_normal(device, *size), _normal(device, *size)) for _ in range(copies)]
    if shape.fused:
        varlen = _varlen(device, shape)
        return Work("torch_varlen_flash", [partial(varlen, *cache) for cache in caches])
    flash = partial(_flash, device.torch, _query(device, shape))
    return Work("torch_sdpa_flash", [partial(flash, *cache) for cache in caches])


def _flash(torch: Any, query: Any, keys: Any, values: Any) -> Any:
    """Attend causally; the last new tokens are the queries.

    FlashAttention or nothing: a slower kernel of torch's would be no measure of an engine's.

    Args:
        torch: The module.
        query: [batch, q_heads, new, head_dim].
        keys: [batch, tokens, kv_heads, head_dim].
        values: The same.

    Returns:
        [batch, q_heads, new, head_dim].
    """
    from torch.nn.attention import SDPBackend, bias, sdpa_kernel

    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    new, tokens = query.shape[2], keys.shape[2]
    mask = bias.causal_lower_right(new, tokens) if 1 < new < tokens else None
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=1 < new == tokens, enable_gqa=True
        )


def _paged(device: Device, shape: AttentionCall) -> Work:
    """Scatter the blocks of the sequences over a pool, as an engine's cache is after a while."""
    torch = device.torch
    blocks = -(-shape.kv_tokens // shape.block_size)
    copies = cold_copies(shape.kv_bytes, device.cache_bytes)
    size = copies * shape.batch * blocks, shape.block_size, shape.kv_heads, shape.head_dim
    pool = _normal(device, *size), _normal(device, *size)
    order = stream(SEED, "profiling.block_table").permutation(size[0])
    tables = torch.from_numpy(order).to(device.kind).view(copies, shape.batch, blocks)
    if shape.fused:
        through = partial(_varlen(device, shape), *pool)
        tables = tables.to(torch.int32)
        return Work("torch_varlen_flash_paged", [partial(through, table) for table in tables])
    gathered = partial(_gathered, torch, _query(device, shape), *pool, shape.kv_tokens)
    return Work("torch_gather_sdpa_flash", [partial(gathered, table) for table in tables])


def _gathered(
    torch: Any, query: Any, key_pool: Any, value_pool: Any, kv_tokens: int, table: Any
) -> Any:
    """Copy the blocks of a table [batch, blocks] together, then attend to the copy."""

    def gather(pool: Any) -> Any:
        together = pool.index_select(0, table.flatten())
        return together.view(len(table), -1, *pool.shape[2:])[:, :kv_tokens]

    return _flash(torch, query, gather(key_pool), gather(value_pool))


def _varlen(device: Device, shape: AttentionCall) -> Callable[..., Any]:
    """Return what attends by torch's kernel for sequences of any length.

    It takes keys and values [batch, tokens, heads, size]; or pools [blocks, block_size, heads,
    size] and a block table [batch, blocks], and reads the blocks where they lie.
    """
    from torch.nn.attention.varlen import varlen_attn

    torch = device.torch
    query = _query(device, shape).transpose(1, 2).flatten(0, 1).contiguous()
    counts = torch.arange(shape.batch + 1, dtype=torch.int32, device=device.kind)
    starts, kv_starts = counts * shape.new_tokens, counts * shape.kv_tokens
    used = torch.full_like(counts[1:], shape.kv_tokens)
    lengths = shape.new_tokens, shape.kv_tokens
    attend = partial(varlen_attn, window_size=(-1, 0), enable_gqa=True)

    def contiguous(keys: Any, values: Any) -> Any:
        together = keys.flatten(0, 1), values.flatten(0, 1)
        return attend(query, *together, starts, kv_starts, *lengths)

    def paged(keys: Any, values: Any, table: Any) -> Any:
        return attend(
            query, keys, values, starts, None, *lengths, seqused_k=used, block_table=table
        )

    return paged if shape.block_size else contiguous


def _query(device: Device, shape: AttentionCall) -> Any:
    size = shape.batch, shape.new_tokens, shape.q_heads, shape.head_dim
    return _normal(device, *size).transpose(1, 2)


def _copy(device: Device, shape: Copy) -> Work:
    if shape.op == "device_gather":
        return _gather(device, shape)
    places = {
        "device_to_device": (device.kind, device.kind),
        "host_to_device": ("cpu", device.kind),
        "device_to_host": (device.kind, "cpu"),
    }
    copies = cold_copies(shape.piece_bytes * shape.pieces, device.cache_bytes)
    size = copies, shape.pieces, shape.piece_bytes
    source, target = (_memory(device, place, size) for place in places[shape.op])
    pairs = zip(target, source, strict=True)
    return Work("torch_copy", [partial(_copy_pieces, to, from_) for to, from_ in pairs])


def _copy_pieces(target: Any, source: Any) -> None:
    for to, from_ in zip(target, source, strict=True):
        to.copy_(from_, non_blocking=True)


def _gather(device: Device, shape: Copy) -> Work:
    torch = device.torch
    copies = cold_copies(shape.piece_bytes * shape.pieces, device.cache_bytes)
    pool = _memory(device, device.kind, (copies * shape.pieces, shape.piece_bytes))
    order = stream(SEED, "profiling.pieces").permutation(len(pool))
    chosen = torch.from_numpy(order).to(device.kind).view(copies, shape.pieces)
    gather = partial(torch.index_select, pool, 0)
    return Work("torch_index_select", [partial(gather, pieces) for pieces in chosen])


def _memory(device: Device, place: str, size: tuple[int, ...]) -> Any:
    """Return zeros there; on the host of a GPU in pinned memory, as engines swap."""
    torch = device.torch
    pinned = place == "cpu" and device.kind == "cuda"
    return torch.zeros(size, dtype=torch.uint8, device=place, pin_memory=pinned)


def _normal(device: Device, *size: int) -> Any:
    return device.torch.randn(size, dtype=device.torch.bfloat16, device=device.kind)
