"""Attention of one layer: decode by sequences and context, prefill by chunk and prefix."""

import math
from dataclasses import dataclass, replace

import numpy as np

from kvsim.cost import Basis
from kvsim.cost.tables import (
    Fit,
    Floats,
    Ints,
    fit,
    load_arrays,
    log_interpolate,
    two_nearest,
)
from kvsim.gpu import GpuSpec
from kvsim.units import NS_PER_S, NS_PER_US

ROWS = 128  # queries of a chunk that one thread block takes; a smaller chunk costs as much
OTHERS_SM_COUNT = 132  # where a GPU's count is unknown
# FlashAttention 2 is slower on a prefix than its rows without one say. Seen on the only GPU whose
# prefixes were measured (RTX PRO 6000, t_key 21 ns against 17, e 0.49 against 0.65).
FA2_ARCHITECTURES = (80, 86, 89, 120)
FA2_PREFIX_SLOWDOWN = 1.25
# In a step with chunks, FlashAttention 2 decodes without packing the query heads of a KV head: its
# decode part takes 1.6 times as long with 4 of them, 2.8 times with 8 (103,000 mixed calls on
# RTX PRO 6000 and RTX 4090). A straight line through both; no such figures exist for other kernels.
FA2_MIXED_OFFSET, FA2_MIXED_PER_QUERY_HEAD = 0.4, 0.3


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention of one layer on one GPU, after tensor parallelism.

    Attributes:
        q_heads: Query heads.
        kv_heads: Key-value heads; in decode, an MLA layer reads one latent for all query heads.
        head_dim: Size of a query and key; for tables and names.
        flop_per_pair: FLOPs of one query token on one key token in prefill, over all heads.
        decode_flop_per_pair: The same in decode (MLA multiplies in the wider latent space).
        kv_bytes_per_token: Bytes read for one token of context.
        kv_dtype: `bfloat16` or `fp8`.
        window_tokens: Sliding window, or size of the chunks that attention is cut in; 0: full.
        chunked: Whether it is cut in chunks: a query sees its own chunk up to itself.
        latent: Whether this is MLA, which no packed table covers.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    flop_per_pair: float
    decode_flop_per_pair: float
    kv_bytes_per_token: float
    kv_dtype: str
    window_tokens: int = 0
    chunked: bool = False
    latent: bool = False

    @property
    def keys_beyond_window(self) -> float:
        """Keys that a query sees on average where the context exceeds the window; inf: all."""
        if not self.window_tokens:
            return math.inf
        return self.window_tokens / 2 if self.chunked else float(self.window_tokens)


@dataclass(frozen=True, slots=True)
class DecodePrice:
    """Decode attention of one layer: `fixed_ns` + sequences · `seq_ns`[mean context].

    In a step that also has prefill chunks it takes `mixed_factor` times as long.
    """

    fixed_ns: float
    seq_ns: Floats
    mixed_factor: float
    basis: Basis
    note: str


@dataclass(frozen=True, slots=True)
class PrefillPrice:
    """Prefill attention of one layer; arrays are indexed by the new tokens c of a chunk.

    A chunk on a prefix p costs `base_ns`[c] + max(`pair_ns`[c]·(p + c/2), `key_ns`[c]·(p + c/2)
    + `tail_ns`·c/2), the kernel call itself `fixed_ns` once for all chunks of an iteration.
    """

    fixed_ns: float
    base_ns: Floats
    pair_ns: Floats
    key_ns: Floats
    tail_ns: float
    basis: Basis
    note: str


def price_decode(gpu: GpuSpec, heads: Heads, max_context_tokens: int) -> DecodePrice:
    """Price decode attention by the cold form, for mean contexts 0 to `max_context_tokens`.

    t = t_fix + ((B·t_seq·√q)^p + (K/(e_m·BW))^p)^(1/p) for B sequences with K bytes of KV. The
    form is homogeneous: B times a function of the mean context K/B, hence one table for all B.
    It is fitted on rows whose KV exceeds the L2 cache, since an engine never finds its KV there.
    """
    constants = fit("attention_decode", gpu, heads.kv_dtype)
    context = np.arange(max_context_tokens + 1, dtype=np.float64)
    if heads.window_tokens:
        context[heads.window_tokens + 1 :] = heads.keys_beyond_window
    bytes_ns = context * heads.kv_bytes_per_token / gpu.hbm_bytes_per_s * NS_PER_S
    moved_ns = bytes_ns / constants["mem_eff"]
    flop_ns = context * heads.decode_flop_per_pair / gpu.bf16_flop_per_s * NS_PER_S
    moved_ns = np.maximum(moved_ns, flop_ns / _prefill_fit(gpu, heads)["compute_eff"])
    start_ns = constants["t_seq_us_per_sqrt_qheads"] * NS_PER_US * np.sqrt(heads.q_heads)
    p = constants["p"]
    seq_ns = start_ns + moved_ns if p == 1 else (start_ns**p + moved_ns**p) ** (1 / p)
    basis, note = _basis(constants, heads)
    factor = _mixed_factor(gpu, heads)
    measured = gpu.sm_arch in FA2_ARCHITECTURES and not heads.latent
    note += f"; {factor:.2g} times as long in steps with chunks" + (
        "" if measured else ": unmeasured for this kernel"
    )
    return DecodePrice(constants["t_fix_us"] * NS_PER_US, seq_ns, factor, basis, note)


def _mixed_factor(gpu: GpuSpec, heads: Heads) -> float:
    if gpu.sm_arch not in FA2_ARCHITECTURES or heads.latent:
        return 1.0
    group = heads.q_heads / heads.kv_heads
    return max(1.0, FA2_MIXED_OFFSET + FA2_MIXED_PER_QUERY_HEAD * group)


def price_prefill(gpu: GpuSpec, heads: Heads, tokens: Ints) -> PrefillPrice:
    """Price prefill chunks of every size in `tokens` = 0, 1, 2, ...

    A chunk's queries come in tiles of 128 a head, spread over the SMs in waves. It is bound by
    FLOPs, 4·q·d·c128·(p + c/2)/(e·peak), or by the serial loop of a tile over its keys: the last
    tile sees p + c of them, the mean one p + c/2. Without a prefix the measured table is exact;
    its difference to the form is kept as `base_ns` for chunks that have one.

    The form published with the tables, t_fix + max(FLOPs as above, t_key·(p + c)·waves) for each
    chunk, differs in three ways. Median errors, by `tools/check_attention.py`:

    - The loop sees p + c/2 keys in all waves but the last, and the table is met at p = 0. With the
      same constants: 11.5 % against 17 % over 1,158 chunks on a prefix, 15.5 % against 16.4 %
      over 103,248 calls with one chunk and decodes.
    - FlashAttention 2 takes `FA2_PREFIX_SLOWDOWN` times the constants fitted without prefix: 5 %
      over the chunks; 16.6 % over the calls with decodes, where it gains nothing (bias +3 %, not
      -5 %). Constants published for RTX PRO 6000 alone reach 5 % and 16.6 %.
    - t_fix counts once a call, since all chunks of a step are one call: 34 % over 20,751 calls of
      several prompts of up to 512 tokens, against 430 % if it counts for each; 13 % against 22 %
      over 19,462 calls of longer ones. Both are too slow there: short prompts share waves.
    """
    constants = _prefill_fit(gpu, heads)
    pair_ns, key_ns, tail_ns = _prefill_slopes(gpu, heads, tokens, constants)
    fixed_ns = constants["t_fix_us"] * NS_PER_US
    basis, note = _basis(constants, heads)
    table_ns = _prefill_table_ns(gpu, heads, tokens, constants)
    base_ns = np.zeros(len(tokens))
    if table_ns is not None:
        form_ns = _prefill_form_ns(gpu, heads, tokens, constants)
        base_ns = np.maximum(table_ns, fixed_ns) - form_ns
        note = "table without prefix; with one, " + note
    return PrefillPrice(fixed_ns, base_ns, pair_ns, key_ns, tail_ns, basis, note)


def _prefill_slopes(
    gpu: GpuSpec, heads: Heads, tokens: Ints, constants: Fit
) -> tuple[Floats, Floats, float]:
    """Return what a key more costs a chunk: by FLOPs, by the waves of tiles, for the last tile."""
    flop_per_ns = gpu.bf16_flop_per_s * constants["compute_eff"] / NS_PER_S
    tail_ns = constants["serial_ns_per_key"]
    if gpu.sm_arch in FA2_ARCHITECTURES:
        flop_per_ns, tail_ns = flop_per_ns / FA2_PREFIX_SLOWDOWN, tail_ns * FA2_PREFIX_SLOWDOWN
    tiles_a_head = np.ceil(tokens / ROWS)
    pair_ns = tiles_a_head * ROWS * heads.flop_per_pair / flop_per_ns
    # An SM works on as many tiles at once as it takes to reach that rate (two on Blackwell).
    sm_count = gpu.sm_count or OTHERS_SM_COUNT
    tile_flop_per_ns = ROWS * heads.flop_per_pair / heads.q_heads / tail_ns
    tiles_at_once = sm_count * np.ceil(flop_per_ns / (sm_count * tile_flop_per_ns))
    waves = np.ceil(heads.q_heads * tiles_a_head / tiles_at_once)
    return pair_ns, waves * tail_ns, tail_ns


def _prefill_form_ns(gpu: GpuSpec, heads: Heads, tokens: Ints, constants: Fit) -> Floats:
    """Return the form's time for a chunk without prefix, with the fixed cost of a call."""
    pair_ns, key_ns, tail_ns = _prefill_slopes(gpu, heads, tokens, constants)
    half = tokens / 2
    busy_ns = np.maximum(pair_ns * half, key_ns * half + tail_ns * half)
    return np.asarray(constants["t_fix_us"] * NS_PER_US + busy_ns, np.float64)


def _prefill_fit(gpu: GpuSpec, heads: Heads) -> Fit:
    return fit("attention_prefill", gpu, heads.kv_dtype)


def _basis(constants: Fit, heads: Heads) -> tuple[Basis, str]:
    if heads.latent:
        return "physical", f"MLA; {constants.origin}"
    if heads.chunked:
        size = f"{heads.window_tokens} tokens"
        return constants.basis, f"{constants.origin}; beyond {size}, half of them are seen"
    return constants.basis, constants.origin


def _prefill_table_ns(gpu: GpuSpec, heads: Heads, tokens: Ints, constants: Fit) -> Floats | None:
    """Return the measured time of one sequence without prefix; None where no table fits.

    Head counts that were not measured take the ratio of table to form of the two nearest ones.
    Sliding windows and MLA have no such table.
    """
    name = f"prefill/{heads.kv_dtype}/{heads.head_dim}"
    arrays = load_arrays(gpu)
    if heads.latent or heads.window_tokens or f"{name}/us" not in arrays:
        return None
    measured, grid = arrays[f"{name}/us"].astype(np.float64), arrays[f"{name}/tokens"]
    counts = arrays[f"{name}/heads"].astype(np.float64)
    rows = np.maximum(tokens, 1)
    ratio = np.zeros(len(tokens))
    for index, weight in two_nearest(counts, np.array([heads.q_heads, heads.kv_heads], float)):
        near_ns = log_interpolate(rows, grid, measured[index]) * NS_PER_US
        longest = float(grid[np.isfinite(measured[index])][-1])
        near_ns = near_ns * np.maximum(rows / longest, 1.0)  # the causal area is a square
        q_heads = int(counts[index, 0])
        near = replace(
            heads, q_heads=q_heads, flop_per_pair=heads.flop_per_pair * q_heads / heads.q_heads
        )
        ratio += weight * near_ns / _prefill_form_ns(gpu, near, rows, constants)
    return ratio * _prefill_form_ns(gpu, heads, tokens, constants)
