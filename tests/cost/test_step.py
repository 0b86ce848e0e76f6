from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cost import Part, StepShape
from kvsim.cost.attention import DecodePrice, Heads
from kvsim.cost.kernels import Deployment, build_cost
from kvsim.cost.overheads.async_engine import AsyncEngine
from kvsim.cost.prefill import PrefillPrice
from kvsim.cost.step import AttentionLayers, KernelCost, Work
from kvsim.cost.tables import Curve
from kvsim.gpu import load_gpu
from kvsim.model import load_model

MAX_TOKENS, MAX_SEQS, MAX_LEN = 1024, 128, 4096


def built(model: str, gpu: str, gpus: int, kv_cache_dtype: str = "auto") -> KernelCost:
    deployment = Deployment(gpus, kv_cache_dtype, MAX_TOKENS, MAX_SEQS, MAX_LEN)
    return build_cost(load_model(model), load_gpu(gpu), deployment, AsyncEngine())


COSTS = {
    "dense": built("meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", 1),
    "sharded fp8": built("nvidia/Llama-3.1-70B-Instruct-FP8", "b200_sxm", 4, "fp8"),
    "experts": built("mistralai/Mixtral-8x7B-v0.1", "h100_sxm", 2),
    "windows": built("openai/gpt-oss-20b", "h100_sxm", 1),
    "latent": built("deepseek-ai/DeepSeek-V2-Lite", "h100_sxm", 1),
    "FlashAttention 2": built("meta-llama/Llama-2-70b-hf", "a100_sxm", 4),
    "physical": built("Qwen/Qwen2.5-7B-Instruct", "l4", 1),
}

CHUNKS = st.lists(st.tuples(st.integers(1, 200), st.integers(0, MAX_LEN - 200)), max_size=4)
DECODES = st.lists(st.integers(1, MAX_LEN), max_size=60)
STEPS = st.lists(st.tuples(CHUNKS, DECODES).filter(any), min_size=1, max_size=8)


def shape(cost: KernelCost, steps: list[Any], whole_ns: bool) -> StepShape:
    """Return the columns of the steps table; the chunks' attention as stored, or unrounded."""
    rows = []
    for chunks, decodes in steps:
        chunks_ns = cost.chunks_ns(chunks)
        rows.append(
            (
                len(chunks),
                sum(new for new, _ in chunks),
                sum(new + prefix for new, prefix in chunks),
                sum(new * prefix + new * (new + 1) // 2 for new, prefix in chunks),
                round(chunks_ns) if whole_ns else chunks_ns,
                len(decodes),
                sum(decodes),
            )
        )
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return StepShape(*columns)


def one_by_one(cost: KernelCost, steps: list[Any]) -> list[int]:
    return [
        cost.step_ns(
            sum(new for new, _ in chunks) + len(decodes),
            len(chunks) + len(decodes),
            len(decodes),
            sum(decodes),
            cost.chunks_ns(chunks),
        )
        for chunks, decodes in steps
    ]


@pytest.mark.parametrize("kind", COSTS)
@settings(max_examples=40)
@given(steps=STEPS)
def test_times_are_exact_fractions_whose_order_of_summation_is_free(
    kind: str, steps: list[Any]
) -> None:
    cost = COSTS[kind]
    for chunks, decodes in steps:
        exact_ns = Fraction(cost.chunks_ns(chunks))
        assert (exact_ns * 2048).denominator == 1  # ticks of 2^-10 ns, times half tokens
        assert exact_ns == cost.chunks_ns(chunks[::-1])
        parts = cost.parts_ns(shape(cost, [(chunks, decodes)], whole_ns=False))
        total_ns = sum(Fraction(float(ns[0])) for ns in parts.values())
        assert (round(total_ns) or 1) == one_by_one(cost, [(chunks, decodes)])[0]


@pytest.mark.parametrize("kind", COSTS)
@settings(max_examples=40)
@given(steps=STEPS)
def test_parts_sum_to_the_duration(kind: str, steps: list[Any]) -> None:
    cost = COSTS[kind]
    parts = cost.parts_ns(shape(cost, steps, whole_ns=True))
    total = np.sum(list(parts.values()), axis=0)
    assert np.all(np.abs(total - one_by_one(cost, steps)) <= 1.0 + 1e-6)
    assert all(np.all(ns >= -1e-6) for ns in parts.values())


@pytest.mark.parametrize("kind", COSTS)
def test_the_table_of_contexts_reaches_the_longest_one(kind: str) -> None:
    cost = COSTS[kind]
    full = cost.step_ns(MAX_SEQS, MAX_SEQS, MAX_SEQS, MAX_SEQS * MAX_LEN, 0.0)
    assert full >= cost.step_ns(MAX_SEQS, MAX_SEQS, MAX_SEQS, MAX_SEQS * (MAX_LEN - 1), 0.0)
    assert (
        cost.step_ns(MAX_TOKENS, 1, 0, 0, cost.chunks_ns([(MAX_TOKENS, MAX_LEN - MAX_TOKENS)])) > 0
    )


@pytest.mark.parametrize("kind", COSTS)
def test_longer_contexts_never_cost_less(kind: str) -> None:
    cost = COSTS[kind]
    times = [cost.step_ns(60, 60, 60, kv, 0.0) for kv in range(60, 60 * MAX_LEN, 997)]
    assert times == sorted(times)


@pytest.mark.parametrize("kind", COSTS)
@settings(max_examples=40)
@given(chunks=CHUNKS.filter(lambda chunks: len(chunks) > 1))
def test_chunks_take_at_least_what_the_longest_does_and_more_with_one_more(
    kind: str, chunks: list[tuple[int, int]]
) -> None:
    cost = COSTS[kind]
    together_ns = cost.chunks_ns(chunks)
    assert together_ns >= max(cost.chunks_ns([chunk]) for chunk in chunks)
    assert cost.chunks_ns([*chunks, (100, 0)]) >= together_ns


def test_short_prompts_share_the_gpu_and_the_call() -> None:
    cost = COSTS["dense"]
    alone_ns = cost.step_ns(128, 1, 0, 0, cost.chunks_ns([(128, 0)]))
    assert cost.step_ns(512, 4, 0, 0, cost.chunks_ns([(128, 0)] * 4)) < 0.7 * 4 * alone_ns
    one, many = cost.chunks_ns([(128, 0)]), cost.chunks_ns([(128, 0)] * 8)
    assert one < many < 0.8 * 8 * one


def test_flops_and_bytes_are_those_of_the_model() -> None:
    cost, model = COSTS["dense"], load_model("meta-llama/Llama-3.1-8B-Instruct")
    decodes = [1000] * 64
    steps = shape(cost, [([], decodes), ([(512, 512)], [])], whole_ns=True)
    flops, size_bytes = cost.work(steps)
    head = model.hidden_size * model.vocab_size
    matrices = model.active_parameters()
    per_pair = 4 * 32 * 32 * 128
    assert flops[0] == pytest.approx(2 * 64 * matrices + per_pair * 64_000, rel=1e-3)
    pairs = 512 * 512 + 512 * 513 // 2
    expected = 2 * 512 * (matrices - head) + 2 * head + per_pair * pairs
    assert flops[1] == pytest.approx(expected, rel=1e-3)
    weights = sum(model.weight_bytes(1).values()) - model.weight_bytes(1)["embedding"]
    kv = model.kv_bytes_per_token(1)
    assert size_bytes[0] == weights + kv * 64_000
    assert size_bytes[1] == weights + kv * 1024
    assert cost.peaks() == (989e12, 3.35e12)


@settings(max_examples=60)
@given(steps=STEPS)
def test_no_step_beats_its_own_work(steps: list[Any]) -> None:
    for kind in ("dense", "physical"):
        cost = COSTS[kind]
        flops, size_bytes = cost.work(shape(cost, steps, whole_ns=True))
        flop_per_s, bytes_per_s = cost.peaks()
        seconds = np.array(one_by_one(cost, steps)) / 1e9
        assert np.all(flops / flop_per_s < seconds)
        assert np.all(size_bytes / bytes_per_s < seconds)


def test_sharding_divides_the_work_but_not_the_latent() -> None:
    one = built("meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", 1)
    four = built("meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", 4)
    steps = shape(one, [([], [500] * 32)], whole_ns=True)
    for whole, share in zip(one.work(steps), four.work(steps), strict=True):
        assert share == pytest.approx(whole / 4, rel=0.01)
    latent = built("deepseek-ai/DeepSeek-V2-Lite", "h100_sxm", 1)
    latent_two = built("deepseek-ai/DeepSeek-V2-Lite", "h100_sxm", 2)
    long, short = shape(latent, [([], [4000])], True), shape(latent, [([], [1])], True)
    kv = [cost.work(long)[1] - cost.work(short)[1] for cost in (latent, latent_two)]
    assert kv[0] == pytest.approx(kv[1])


def test_experts_are_read_as_tokens_reach_them() -> None:
    cost, model = COSTS["experts"], load_model("mistralai/Mixtral-8x7B-v0.1")
    one, many = (cost.work(shape(cost, [([], [1] * n)], True))[1][0] for n in (1, 60))
    experts = model.weight_bytes(2)["experts"]
    assert many - one == pytest.approx(experts * 6 / 8, rel=0.01)  # 2 of 8, then all


def test_windows_bound_what_is_read() -> None:
    cost, model = COSTS["windows"], load_model("openai/gpt-oss-20b")
    low, high = (cost.work(shape(cost, [([], [kv])], True))[1][0] for kv in (2000, 3000))
    full_layers = sum(g.count for g in model.layers if not g.attention.window_tokens)
    per_layer = model.kv_bytes_per_token(1) // model.num_layers
    assert high - low == 1000 * per_layer * full_layers


def crafted(*groups: AttentionLayers) -> KernelCost:
    nothing = np.zeros(10_000)
    curve = Curve(Part("gemm", "hbm", "given"), nothing)
    return KernelCost([curve], [curve], groups, Work(0.0, 0.0, nothing, 0.0, 0.0))


def layers(
    count: int = 1, fixed_ns: float = 0.0, seq_ns: float = 1.0, factor: float = 1.0, **more: Any
) -> AttentionLayers:
    """Return layers whose chunks take 1 ns for each pair, and decodes `seq_ns` for each key."""
    new, nothing = np.arange(10_000.0), np.zeros(10_000)
    prefill = PrefillPrice(0.0, nothing, new, nothing, 0.0, nothing, "physical", "")
    decode = DecodePrice(fixed_ns, seq_ns * np.arange(101.0), factor, "physical", "")
    return AttentionLayers(
        count, Heads(8, 8, 128, 1.0, 1.0, 1.0, "bfloat16", **more), prefill, decode
    )


def test_each_group_of_layers_is_slowed_by_its_own_factor() -> None:
    cost = crafted(layers(5, 10.0, 2.0, 1.0), layers(1, 100.0, 40.0, 2.5))
    local_ns, full_ns = 5 * (10 + 3 * 2 * 50), 100 + 3 * 40 * 50
    assert cost.step_ns(3, 3, 3, 150, 0.0) == local_ns + full_ns
    assert cost.step_ns(10, 4, 3, 150, 0.0) == local_ns + 2.5 * full_ns


@pytest.mark.parametrize("chunked", [True, False])
def test_windows_and_chunks_of_attention_bound_the_pairs(chunked: bool) -> None:
    size = 1000
    cost = crafted(layers(window_tokens=size, chunked=chunked))
    for new, prefix in [(1000, 0), (500, 0), (500, 500), (1000, 3000), (3000, 4000)]:
        at = np.arange(prefix, prefix + new)
        keys = at % size + 0.5 if chunked else np.minimum(at + 0.5, size)
        assert cost.chunks_ns([(new, prefix)]) == pytest.approx(keys.sum())
        steps = shape(cost, [([(new, prefix)], [])], whole_ns=True)
        if prefix >= size:
            assert cost.work(steps)[0] == pytest.approx(keys.sum())
    pairs = cost.work(shape(cost, [([], [700]), ([], [5000])], whole_ns=True))[0]
    assert pairs.tolist() == [700, size / 2 if chunked else size]


def test_the_basis_names_every_component_once_for_each_reason() -> None:
    for cost in COSTS.values():
        assert len(set(cost.basis)) == len(cost.basis)
        components = {component for component, _, _ in cost.basis}
        assert {"gemm", "attention_prefill", "attention_decode", "logits", "host"} <= components
    assert {basis for name, basis, _ in COSTS["physical"].basis if name == "gemm"} == {"physical"}
