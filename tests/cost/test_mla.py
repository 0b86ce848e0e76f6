"""Attention with latents, against modules that vLLM measured with all of their projections."""

import numpy as np
import pytest

from kvsim.cost.attention import Heads
from kvsim.cost.formats import sixteen_bit
from kvsim.cost.gemm import gemm_curves
from kvsim.cost.layers import heads_on_gpu, products
from kvsim.cost.mla import price_mla_decode, price_mla_prefill
from kvsim.gpu import GpuSpec, load_gpu
from kvsim.model import load_model

V3 = load_model("deepseek-ai/DeepSeek-V3")
ATTENTION = V3.layers[0].attention
H100 = load_gpu("h100_sxm")
TOKENS = np.arange(8193)

# (local heads, sequences, context, µs) of a decoding module and (…, prompts, tokens of each, µs) of
# a prefilling one, bf16, H100.
DECODE_US = [
    (16, 1, 257, 97.8), (16, 16, 2049, 128.8), (16, 64, 4097, 224.3), (16, 256, 1025, 251.3),
    (16, 64, 16385, 523.4), (128, 1, 1025, 215.4), (128, 16, 4097, 273.9), (128, 64, 1025, 277.8),
    (128, 256, 2049, 600.1), (128, 128, 8193, 717.7),
]  # fmt: skip
PREFILL_US = [
    (16, 1, 512, 188.4), (16, 1, 2048, 380.7), (16, 1, 8192, 1661.0), (16, 4, 1024, 688.2),
    (16, 32, 128, 729.9), (128, 1, 1024, 847.5), (128, 1, 4096, 3532.0), (128, 8, 512, 3633.0),
    (128, 1, 8192, 8385.0),
]  # fmt: skip


def on_gpu(q_heads: int, kv_cache_dtype: str = "bfloat16") -> Heads:
    return heads_on_gpu(ATTENTION, ATTENTION.q_heads // q_heads, kv_cache_dtype)


def products_ns(q_heads: int, tokens: int) -> float:
    weights, shards = [*ATTENTION.weights(V3.hidden_size)], ATTENTION.q_heads // q_heads
    return sum(
        curve.ns[0]
        for one in products(weights, shards)
        for curve in gemm_curves("gemm", H100, sixteen_bit(H100), np.array([tokens]), one.n, one.k)
    )


def test_decoding_modules_are_near_what_was_measured() -> None:
    errors = []
    for q_heads, batch, context, us in DECODE_US:
        price = price_mla_decode(H100, on_gpu(q_heads), 20_000)
        ns = products_ns(q_heads, batch) + price.fixed_ns + batch * price.seq_ns[context]
        errors.append(abs(ns / (us * 1e3) - 1))
    assert np.median(errors) < 0.06
    assert max(errors) < 0.2


def test_prefilling_modules_are_near_what_was_measured() -> None:
    errors = []
    for q_heads, prompts, new, us in PREFILL_US:
        price = price_mla_prefill(H100, on_gpu(q_heads), TOKENS)
        chunk_ns = price.share_ns[new] + price.pair_ns[new] * new / 2
        ns = products_ns(q_heads, prompts * new) + price.fixed_ns + prompts * chunk_ns
        errors.append(abs(ns / (us * 1e3) - 1))
    assert np.median(errors) < 0.06
    assert max(errors) < 0.2


def test_a_prefix_is_expanded_again_for_each_chunk() -> None:
    price, heads = price_mla_prefill(H100, on_gpu(16), TOKENS), on_gpu(16)
    slope_ns = price.pair_ns[1]  # a single query: hardly any FLOPs of its own
    expand_flop = 2 * 512 * 16 * (128 + 128)
    assert heads.expand_flop_per_key == expand_flop
    assert 1.0 < slope_ns / (expand_flop / H100.bf16_flop_per_s * 1e9) < 1.6


def test_a_mixed_step_pays_for_the_small_kernels_once() -> None:
    for gpu in ("h100_sxm", "b200_sxm", "l40s", "a100_sxm"):
        spec = load_gpu(gpu)
        decode = price_mla_decode(spec, on_gpu(16), 10)
        prefill = price_mla_prefill(spec, on_gpu(16), TOKENS)
        assert 0 <= decode.shared_ns < min(decode.fixed_ns, prefill.fixed_ns)


@pytest.mark.parametrize(
    ("gpu", "kv_cache_dtype", "basis"),
    [
        (H100, "bfloat16", "interpolated"),
        (load_gpu("b200_sxm"), "fp8", "interpolated"),
        (load_gpu("a100_sxm"), "bfloat16", "physical"),
        (GpuSpec("unknown", 2**34, 1e12, 1e14), "bfloat16", "physical"),
    ],
)
def test_the_basis_says_whether_modules_of_this_gpu_were_measured(
    gpu: GpuSpec, kv_cache_dtype: str, basis: str
) -> None:
    heads = on_gpu(16, kv_cache_dtype)
    assert price_mla_decode(gpu, heads, 10).basis == basis
    assert price_mla_prefill(gpu, heads, TOKENS).basis == basis


def test_longer_contexts_cost_more_and_small_latents_less() -> None:
    plain, small = (price_mla_decode(H100, on_gpu(16, d), 8192) for d in ("bfloat16", "fp8"))
    assert np.all(np.diff(plain.seq_ns) >= 0)
    assert small.seq_ns[8192] < plain.seq_ns[8192]
