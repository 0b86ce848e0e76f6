"""Prefill attention of one layer: chunks of prompts, each on its prefix, in one call."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kvsim.cost import Basis
from kvsim.cost.attention import FA2_ARCHITECTURES, Heads, basis_of
from kvsim.cost.tables import Fit, Floats, Ints, fit, load_arrays, log_interpolate, two_nearest
from kvsim.gpu import GpuSpec
from kvsim.units import NS_PER_S, NS_PER_US

ROWS = 128  # queries of a chunk that one thread block takes; a smaller chunk costs as much
OTHERS_SM_COUNT = 132  # where a GPU's count is unknown
# FlashAttention 2 is slower on a prefix than its rows without one say. Seen on the only GPU whose
# prefixes were measured (RTX PRO 6000, t_key 21 ns against 17, e 0.49 against 0.65).
FA2_PREFIX_SLOWDOWN = 1.25


@dataclass(frozen=True, slots=True)
class PrefillPrice:
    """Prefill attention of one layer; arrays are indexed by the new tokens c of a chunk.

    A call costs `fixed_ns`. A chunk on a prefix p that is alone in it adds `base_ns`[c]
    + max(`pair_ns`[c]·(p + c/2), `key_ns`[c]·(p + c/2) + `tail_ns`·c/2). Several share the GPU:
    they add `share_ns`[c] + `pair_ns`[c]·(p + c/2) each, and together at least what the longest of
    them does alone.
    """

    fixed_ns: float
    base_ns: Floats
    pair_ns: Floats
    key_ns: Floats
    tail_ns: float
    share_ns: Floats
    basis: Basis
    note: str


def price_prefill(gpu: GpuSpec, heads: Heads, tokens: Ints) -> PrefillPrice:
    """Price prefill chunks of every size in `tokens` = 0, 1, 2, ...

    A chunk's queries come in tiles of 128 a head, spread over the SMs in waves. Alone it is bound
    by FLOPs, 4·q·d·c128·(p + c/2)/(e·peak), or by the serial loop of a tile over its keys: the last
    tile sees p + c of them, the mean one p + c/2. Without a prefix the measured table is exact;
    its difference to the form is kept as `base_ns` for chunks that have one. Many chunks fill the
    GPU, whatever the length of each: then its share is the table's time in the largest measured
    batch, divided by the batch, or FLOPs·(1 + S½/S)/(e·peak) + bytes/(e_m·BW).

    The form published with the tables, t_fix + max(FLOPs as above, t_key·(p + c)·waves) for each
    chunk, differs in three ways. Median errors, by `tools/check_attention.py`:

    - The loop sees p + c/2 keys in all waves but the last, and the table is met at p = 0. With the
      same constants: 11.5 % against 17 % over 1,158 chunks on a prefix, 15.5 % against 16.4 %
      over 103,248 calls with one chunk and decodes.
    - FlashAttention 2 takes `FA2_PREFIX_SLOWDOWN` times the constants fitted without prefix: 5 %
      over the chunks; 16.6 % over the calls with decodes, where it gains nothing (bias +3 %, not
      -5 %). Constants published for RTX PRO 6000 alone reach 5 % and 16.6 %.
    - Chunks share a call and the GPU: 5.4 % over 18,081 calls of several prompts of up to 512
      tokens and 4.8 % over 15,012 of longer ones (the packed batches aside), against 32 % and 13 %
      if they ran one after the other, 370 % and 22 % if each had a call of its own.
    """
    constants = fit("attention_prefill", gpu, heads.kv_dtype)
    rows, fixed_ns = np.maximum(tokens, 1), constants["t_fix_us"] * NS_PER_US

    def alone_form_ns(one: Heads) -> Floats:
        return fixed_ns + _busy_ns(one, rows, *_slopes(gpu, one, rows, constants))

    def share_form_ns(one: Heads) -> Floats:
        return _share_ns(gpu, one, rows, constants)

    pair_ns, key_ns, tail_ns = _slopes(gpu, heads, tokens, constants)
    base_ns, (basis, note) = np.zeros(len(tokens)), basis_of(constants, heads)
    alone_ns = _measured_ns(gpu, heads, rows, "us", alone_form_ns)
    share_ns = _measured_ns(gpu, heads, rows, "share_us", share_form_ns)
    if share_ns is None:
        share_ns = share_form_ns(heads)
    if alone_ns is not None:
        call_ns = min(fixed_ns, float(alone_ns.min()))
        base_ns = alone_ns - call_ns - _busy_ns(heads, tokens, pair_ns, key_ns, tail_ns)
        fixed_ns, note = call_ns, "table without prefix; with one, " + note
    share_ns = share_ns - pair_ns * _mean_keys(heads, tokens)
    return PrefillPrice(fixed_ns, base_ns, pair_ns, key_ns, tail_ns, share_ns, basis, note)


def _slopes(
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


def _mean_keys(heads: Heads, tokens: Ints) -> Floats:
    """Return the keys that a query of a chunk without prefix sees, as the step counts them."""
    half = tokens / 2
    if not heads.window_tokens:
        return half
    return np.where(half < heads.window_tokens, half, heads.keys_beyond_window)


def _busy_ns(heads: Heads, tokens: Ints, pair_ns: Floats, key_ns: Floats, tail_ns: float) -> Floats:
    """Return the form's time for a chunk alone and without prefix, beyond that of the call."""
    keys = _mean_keys(heads, tokens)
    by_loop = key_ns * keys + tail_ns * np.minimum(tokens / 2, keys)
    return np.asarray(np.maximum(pair_ns * keys, by_loop), np.float64)


def _share_ns(gpu: GpuSpec, heads: Heads, tokens: Ints, constants: Fit) -> Floats:
    """Return the form's time for one of many chunks without prefix: FLOPs and bytes.

    Queries and outputs, of 16 bits, take as many bytes as a pair takes FLOPs.
    """
    flops = (tokens + constants["s_half_tokens"]) * heads.flop_per_pair * _mean_keys(heads, tokens)
    size_bytes = tokens * (heads.flop_per_pair + heads.kv_bytes_per_token)
    compute_ns = flops / (constants["compute_eff"] * gpu.bf16_flop_per_s) * NS_PER_S
    moved_ns = size_bytes / (constants["mem_eff"] * gpu.hbm_bytes_per_s) * NS_PER_S
    return np.asarray(compute_ns + moved_ns, np.float64)


def _measured_ns(
    gpu: GpuSpec, heads: Heads, tokens: Ints, table: str, form_ns: Callable[[Heads], Floats]
) -> Floats | None:
    """Return the times of a table for a prompt of these heads; None where no table fits.

    Head counts that were not measured take the ratio of table to form of the two nearest ones.
    Attention in chunks has no such table, and of the windows only some.
    """
    window = f"/{heads.window_tokens}" if heads.window_tokens else ""
    name, arrays = f"prefill/{heads.kv_dtype}/{heads.head_dim}{window}", load_arrays(gpu)
    if heads.chunked or f"{name}/{table}" not in arrays:
        return None
    counts = arrays[f"{name}/heads"].astype(np.float64)
    ratio = np.zeros(len(tokens))
    for index, weight in two_nearest(counts, np.array([heads.q_heads, heads.kv_heads], float)):
        measured_us = arrays[f"{name}/{table}"][index].astype(np.float64)
        near_ns = log_interpolate(tokens, arrays[f"{name}/tokens"], measured_us) * NS_PER_US
        if not heads.window_tokens:  # the causal area is a square
            longest = float(arrays[f"{name}/tokens"][np.isfinite(measured_us)][-1])
            near_ns = near_ns * np.maximum(tokens / longest, 1.0)
        ratio += weight * near_ns / form_ns(_with_heads(heads, *counts[index]))
    return ratio * form_ns(heads)


def _with_heads(heads: Heads, q_heads: float, kv_heads: float) -> Heads:
    """Return the same attention with other numbers of heads."""
    return replace(
        heads,
        q_heads=int(q_heads),
        kv_heads=int(kv_heads),
        flop_per_pair=heads.flop_per_pair * q_heads / heads.q_heads,
        kv_bytes_per_token=heads.kv_bytes_per_token * kv_heads / heads.kv_heads,
    )
