"""Multi-head latent attention (DeepSeek, Kimi): a module beside its matrix products.

The forms are fitted on whole modules as vLLM runs them, less their products
(`tools/fit_attention.py`): norms of the latents, rotary embedding, copies and the products with the
latents' own matrices in decode are in them. Whole modules that were left out of the fit are met
within 4 to 8 % (decode) and 3 to 6 % (prefill) in the median, those with a left-out number of heads
within 2 to 18 and 2 to 6 %.
"""

import numpy as np

from kvsim.cost import Basis
from kvsim.cost.attention import DecodePrice, Heads, shape_seq_ns
from kvsim.cost.prefill import PrefillPrice
from kvsim.cost.tables import Fit, Ints, fit
from kvsim.gpu import GpuSpec
from kvsim.units import NS_PER_S, NS_PER_US


def price_mla_decode(gpu: GpuSpec, heads: Heads, max_context_tokens: int) -> DecodePrice:
    """Price MLA decode, for mean contexts 0 to `max_context_tokens`; heads share the latents."""
    constants = fit("mla_decode", gpu, heads.kv_dtype)
    context = np.arange(max_context_tokens + 1, dtype=np.float64)
    seq_ns = shape_seq_ns(constants, gpu, heads, context)
    basis, note = _basis(constants)
    fixed_ns, shared_ns = constants["t_fix_us"] * NS_PER_US, _shared_ns(gpu, heads)
    return DecodePrice(fixed_ns, seq_ns, 1.0, basis, note, shared_ns)


def price_mla_prefill(gpu: GpuSpec, heads: Heads, tokens: Ints) -> PrefillPrice:
    """Price MLA prefill chunks of every size in `tokens` = 0, 1, 2, ...

    t = t_fix + c·(u0 + u1·q) + (c + S½)·(p + c/2)·FLOPs of a pair/(e_c·peak), for a chunk alone as
    for one of many. A prefix is kept as latents: each chunk on it expands them to keys and values
    again, whose FLOPs count for each token of it (no row measured that).
    """
    constants = fit("mla_prefill", gpu, heads.kv_dtype)
    flop_per_ns = constants["compute_eff"] * gpu.bf16_flop_per_s / NS_PER_S
    pair_ns = (tokens + constants["s_half_tokens"]) * heads.flop_per_pair / flop_per_ns
    expand_eff = fit("gemm", gpu, "bfloat16")["compute_eff"]
    expand_ns = heads.expand_flop_per_key / (expand_eff * gpu.bf16_flop_per_s) * NS_PER_S
    per_token_us = constants["t_token_us"] + constants["t_token_us_per_qhead"] * heads.q_heads
    base_ns = tokens * (per_token_us * NS_PER_US) - expand_ns * tokens / 2
    basis, note = _basis(constants)
    return PrefillPrice(
        fixed_ns=constants["t_fix_us"] * NS_PER_US,
        base_ns=base_ns,
        pair_ns=np.where(tokens > 0, pair_ns + expand_ns, 0.0),
        key_ns=np.zeros(len(tokens)),
        tail_ns=0.0,
        share_ns=base_ns,
        basis=basis,
        note=note,
    )


def _shared_ns(gpu: GpuSpec, heads: Heads) -> float:
    """Return the fixed cost that a decode and a prefill in one step pay once.

    It is what the small kernels around the attention take: a module's fixed time beyond that of
    plain decode attention.
    """
    modules = [fit(f"mla_{phase}", gpu, heads.kv_dtype) for phase in ("decode", "prefill")]
    kernel_us = fit("attention_decode", gpu, heads.kv_dtype)["t_fix_us"]
    return max(0.0, min(one["t_fix_us"] for one in modules) - kernel_us) * NS_PER_US


def _basis(constants: Fit) -> tuple[Basis, str]:
    return constants.basis, f"MLA; {constants.origin}"
