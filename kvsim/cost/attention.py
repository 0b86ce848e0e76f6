"""Attention of one layer, and its decode: by sequences and their mean context."""

import math
from dataclasses import dataclass, replace

import numpy as np

from kvsim.cost import Basis
from kvsim.cost.tables import Fit, Floats, Ints, fit, fitted_dtypes, load_arrays
from kvsim.gpu import GpuSpec
from kvsim.units import NS_PER_S, NS_PER_US

FA2_ARCHITECTURES = (80, 86, 89, 120)  # whose kernel is FlashAttention 2
# In a step with chunks, FlashAttention 2 decodes without packing the query heads of a KV head: its
# decode part takes 1.6 times as long with 4 of them, 2.8 times with 8 (103,000 mixed calls on
# RTX PRO 6000 and RTX 4090). A straight line through both, which ends there; no such figures exist
# for other GPUs of these architectures, which have the same kernel, nor for other kernels.
FA2_MIXED_OFFSET, FA2_MIXED_PER_QUERY_HEAD, FA2_MIXED_LARGEST = 0.4, 0.3, 2.8
FA2_MIXED_GPUS = ("rtx_pro_6000_server", "rtx4090")

LONGEST_RATIO = 1.5  # of a measured decode call to the form


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
        expand_flop_per_key: MLA: FLOPs that make keys and values of one latent.
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
    expand_flop_per_key: float = 0.0

    @property
    def latent(self) -> bool:
        """Whether this is MLA."""
        return self.expand_flop_per_key > 0

    @property
    def keys_beyond_window(self) -> float:
        """Keys that a query sees on average where the context exceeds the window; inf: all."""
        if not self.window_tokens:
            return math.inf
        return self.window_tokens / 2 if self.chunked else float(self.window_tokens)


@dataclass(frozen=True, slots=True)
class Ratios:
    """How much longer calls took than the form says, [sequences, context] on a log grid."""

    seqs: Floats
    context_tokens: Floats
    ratio: Floats
    exact: bool  # rows of these very heads

    def at(self, seqs: Floats, context_tokens: Floats) -> Floats:
        """Return the ratios [seqs, context_tokens] between the points, and at the edges beyond."""
        x, y = np.log(np.maximum(seqs, 1)), np.log(np.maximum(context_tokens, 1))
        by_context = [np.interp(y, np.log(self.context_tokens), row) for row in self.ratio]
        columns = np.stack(by_context).T
        return np.stack([np.interp(x, np.log(self.seqs), column) for column in columns]).T

    def of_batches(self, count: int) -> "Ratios":
        """Return the ratios by the sequences of so many equal calls together."""
        return replace(self, seqs=self.seqs * count)


@dataclass(frozen=True, slots=True)
class DecodePrice:
    """Decode attention of one layer: (`fixed_ns` + sequences · `seq_ns`[mean context]) · ratio.

    In a step that also has prefill chunks it takes `mixed_factor` times as long, less `shared_ns`,
    which their attention has paid for both.
    """

    fixed_ns: float
    seq_ns: Floats
    mixed_factor: float
    basis: Basis
    note: str
    shared_ns: float = 0.0
    ratios: Ratios | None = None

    def ns(self, seqs: Floats, context_tokens: Ints) -> Floats:
        """Return the time of steps that only decode, [seqs, context_tokens]."""
        form_ns: Floats = self.fixed_ns + np.outer(seqs, self.seq_ns[context_tokens])
        if self.ratios is None:
            return form_ns
        ns = form_ns * self.ratios.at(seqs, context_tokens.astype(np.float64))
        return np.asarray(np.maximum.accumulate(ns, axis=1))  # no longer context takes less

    def times(self, factor: float, note: str) -> "DecodePrice":
        """Return the price of a kernel that takes so many times as long, and what to know of it."""
        both = "; ".join(text for text in (self.note, note) if text)
        fixed_ns, seq_ns = self.fixed_ns * factor, self.seq_ns * factor
        return replace(self, fixed_ns=fixed_ns, seq_ns=seq_ns, note=both)


def price_decode(gpu: GpuSpec, heads: Heads, max_context_tokens: int) -> DecodePrice:
    """Price decode attention by a cold form, for mean contexts 0 to `max_context_tokens`.

    t = t_fix + ((B·t_seq·√q)^p + (K/(e_m·BW))^p)^(1/p) for B sequences with K bytes of KV: the
    constants published with the tables, fitted on rows whose KV exceeds the L2 cache, since an
    engine never finds its KV there. Where the plain heads of a GPU were measured, calls take as
    much longer as those rows did, see `_ratios`. Other head sizes than 128 and sliding
    windows that were measured have constants of their own, see `shape_seq_ns`. Both forms are
    homogeneous: B times a function of the mean context K/B.
    """
    context = np.arange(max_context_tokens + 1, dtype=np.float64)
    if heads.window_tokens:
        context[heads.window_tokens + 1 :] = heads.keys_beyond_window
    shape = _fitted_shape(heads)
    if shape:
        constants = fit("attention_decode_shapes", gpu, shape)
        seq_ns = shape_seq_ns(constants, gpu, heads, context)
    else:
        constants = fit("attention_decode", gpu, heads.kv_dtype)
        moved_ns = context * heads.kv_bytes_per_token / gpu.hbm_bytes_per_s * NS_PER_S
        start_us = constants["t_seq_us_per_sqrt_qheads"] * math.sqrt(heads.q_heads)
        seq_ns = _norm(start_us * NS_PER_US, moved_ns / constants["mem_eff"], constants["p"])
    basis, note = basis_of(constants, heads)
    fixed_ns = constants["t_fix_us"] * NS_PER_US
    ratios = None if shape or heads.window_tokens else _ratios(gpu, heads, fixed_ns, seq_ns)
    if ratios:
        basis = "measured" if ratios.exact else "interpolated"
        note = f"rows of {gpu.name} where longer than the form fitted on them"
    factor = _mixed_factor(gpu, heads)
    note += f"; {factor:.2g} times as long in steps with chunks"
    if gpu.name not in FA2_MIXED_GPUS:
        note += ": unmeasured here"
    return DecodePrice(fixed_ns, seq_ns, factor, basis, note, ratios=ratios)


def _ratios(gpu: GpuSpec, heads: Heads, fixed_ns: float, seq_ns: Floats) -> Ratios | None:
    """Return measured over predicted times, of the nearest query heads with as many KV heads.

    Rows are repeated on one KV cache, and those of short ones found it in the L2 cache: a row
    counts only if it took longer than the form says, which is cold. So the price is that of the
    slower of both: of the rows with large caches a third (H100) to two thirds (A100, B200) are
    faster than the form, by up to 15 %. Beyond 1.5 (many sequences of under 64 tokens) it is cut.
    """
    arrays, name = load_arrays(gpu), f"decode/{heads.kv_dtype}/{heads.head_dim}"
    if f"{name}/us" not in arrays:
        return None
    shapes = arrays[f"{name}/heads"]
    alike = np.flatnonzero(shapes[:, 1] == heads.kv_heads)
    if not len(alike):
        return None
    row = alike[np.argmin(np.abs(np.log(shapes[alike, 0] / heads.q_heads)))]
    batch, context = arrays[f"{name}/batch"], arrays[f"{name}/context"]
    context = context[context < len(seq_ns)]
    if not len(context):
        return None
    form_ns = fixed_ns + np.outer(batch, seq_ns[context])
    ratio = arrays[f"{name}/us"][row][:, : len(context)] * NS_PER_US / form_ns
    ratio = _extended(np.clip(ratio, 1.0, LONGEST_RATIO))
    exact = int(shapes[row, 0]) == heads.q_heads
    return Ratios(batch.astype(np.float64), context.astype(np.float64), ratio, exact)


def _extended(ratio: Floats) -> Floats:
    """Return the ratios with those missing (large KV caches) as at the longest context measured."""
    for column in range(1, ratio.shape[1]):
        missing = np.isnan(ratio[:, column])
        ratio[missing, column] = ratio[missing, column - 1]
    return np.nan_to_num(ratio, nan=1.0)


def shape_seq_ns(constants: Fit, gpu: GpuSpec, heads: Heads, context: Floats) -> Floats:
    """Return the time of a sequence, ((s0 + s1·q)^p + max(K/(e_m·BW), F/(e_c·peak))^p)^(1/p).

    F are the FLOPs on its context. They bound kernels that read the keys for each query head anew,
    as FlashAttention 2 does with sliding windows, and MLA. Fitted by `tools/fit_attention.py`: left
    out rows have median errors of 2 to 18 %.
    """
    moved_s = context * heads.kv_bytes_per_token / (constants["mem_eff"] * gpu.hbm_bytes_per_s)
    flop_s = context * heads.decode_flop_per_pair / (constants["compute_eff"] * gpu.bf16_flop_per_s)
    start_us = constants["t_seq_us"] + constants["t_seq_us_per_qhead"] * heads.q_heads
    return _norm(start_us * NS_PER_US, np.maximum(moved_s, flop_s) * NS_PER_S, constants["p"])


def _norm(start_ns: float, busy_ns: Floats, p: float) -> Floats:
    return start_ns + busy_ns if p == 1 else np.asarray((start_ns**p + busy_ns**p) ** (1 / p))


def _fitted_shape(heads: Heads) -> str:
    """Return which shape of `attention_decode_shapes` these heads have; empty: none of them.

    A window that was not measured takes the nearest one of its head size. Attention in chunks is
    plain attention of sequences that start anew.
    """
    prefix = f"{heads.kv_dtype}/{heads.head_dim}/"
    windows = [
        int(shape.removeprefix(prefix))
        for shape in fitted_dtypes("attention_decode_shapes")
        if shape.startswith(prefix)
    ]
    wanted = 0 if heads.chunked else heads.window_tokens
    if wanted:
        windows = [window for window in windows if window]
        wanted = min(windows, key=lambda window: abs(math.log(window / wanted)), default=0)
    return f"{prefix}{wanted}" if wanted in windows else ""


def _mixed_factor(gpu: GpuSpec, heads: Heads) -> float:
    if gpu.sm_arch not in FA2_ARCHITECTURES:
        return 1.0
    group = heads.q_heads / heads.kv_heads
    factor = FA2_MIXED_OFFSET + FA2_MIXED_PER_QUERY_HEAD * group
    return min(max(1.0, factor), FA2_MIXED_LARGEST)


def basis_of(constants: Fit, heads: Heads) -> tuple[Basis, str]:
    """Return on what a form rests, and what to know about it."""
    if heads.chunked:
        size = f"{heads.window_tokens} tokens"
        return constants.basis, f"{constants.origin}; beyond {size}, half of them are seen"
    return constants.basis, constants.origin
