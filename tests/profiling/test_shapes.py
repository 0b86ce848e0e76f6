"""Which shapes a model has on one GPU, counted anew from its config."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.model import load_model, model_names, quantized_weights
from kvsim.profiling.groups import grouped
from kvsim.profiling.shapes import (
    BLOCK_SIZES,
    AllReduce,
    AttentionCall,
    Copy,
    Gemm,
    Limits,
    plan,
)

LLAMA = load_model("meta-llama/Llama-3.1-8B-Instruct")
HIDDEN, INTER, VOCAB, Q_HEADS, KV_HEADS, SIZE = 4096, 14336, 128256, 32, 8, 128


def of(kind, planned):
    return [shape for shape in planned.shapes if isinstance(shape, kind)]


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_products_are_those_of_one_gpu(gpus):
    gemms = of(Gemm, plan(LLAMA, gpus, Limits(max_num_batched_tokens=8192)))
    rows = Counter((shape.n, shape.k) for shape in gemms)
    heads = (Q_HEADS + 2 * KV_HEADS) * SIZE
    assert set(rows) == {
        (heads // gpus, HIDDEN),
        (HIDDEN, HIDDEN // gpus),
        (2 * INTER // gpus, HIDDEN),
        (HIDDEN, INTER // gpus),
        (VOCAB // gpus, HIDDEN),
    }
    assert len(set(rows.values())) == 1  # the same rows for all: a full rectangle
    assert {shape.m for shape in gemms} >= {1, 16, 256, 8192}
    assert max(shape.m for shape in gemms) == 8192
    assert {shape.dtype for shape in gemms} == {"bfloat16"}


def test_quantized_layers_are_multiplied_in_fp8_and_logits_in_16_bit():
    quantized = replace(LLAMA, quantization=quantized_weights("fp8"))
    dtypes = {(shape.n, shape.dtype) for shape in of(Gemm, plan(quantized, 1, Limits()))}
    assert {n for n, dtype in dtypes if dtype == "bfloat16"} == {VOCAB}
    assert {n for n, dtype in dtypes if dtype == "fp8"} == {6144, HIDDEN, 2 * INTER}


def test_heads_are_divided_and_kv_heads_replicated():
    for gpus, heads in {1: (32, 8), 2: (16, 4), 8: (4, 1), 16: (2, 1)}.items():
        calls = of(AttentionCall, plan(LLAMA, gpus, Limits()))
        assert {(call.q_heads, call.kv_heads, call.head_dim) for call in calls} == {(*heads, SIZE)}


@settings(max_examples=25)
@given(
    st.builds(Limits, st.integers(1, 40000), st.integers(1, 2000), st.integers(1, 200000)),
    st.sampled_from([1, 2, 4]),
)
def test_shapes_stay_within_the_limits_and_are_distinct(limits, gpus):
    planned = plan(LLAMA, gpus, limits)
    assert len(set(planned.shapes)) == len(planned.shapes)
    assert all(shape.m <= limits.max_num_batched_tokens for shape in of(Gemm, planned))
    for call in of(AttentionCall, planned):
        assert call.batch <= limits.max_num_seqs
        assert call.batch * call.new_tokens <= max(
            limits.max_num_batched_tokens, call.batch if call.phase == "decode" else 0
        )
        assert call.new_tokens <= call.kv_tokens <= limits.max_model_len
        assert call.phase == "prefill" or call.new_tokens == 1
    most = limits.max_num_batched_tokens * HIDDEN * 2
    assert all(shape.size_bytes <= most for shape in of(AllReduce, planned))
    compared = [call for call in of(AttentionCall, planned) if call.compared]
    assert {call.phase for call in compared} >= {"decode"}
    for call in compared:
        same = replace(call, block_size=0, fused=False)
        variants = {
            (c.block_size, c.fused)
            for c in compared
            if replace(same, block_size=c.block_size, fused=c.fused) == c
        }
        assert variants == {(s, f) for s in (0, *BLOCK_SIZES) for f in (False, True)}
    assert not any(call.block_size for call in of(AttentionCall, planned) if not call.compared)


def test_one_gpu_has_no_all_reduce_and_several_have_one_over_all():
    assert not of(AllReduce, plan(LLAMA, 1, Limits()))
    assert {shape.world_size for shape in of(AllReduce, plan(LLAMA, 4, Limits()))} == {4}


def test_copies_go_every_way_in_one_piece_and_in_several():
    copies = of(Copy, plan(LLAMA, 1, Limits()))
    for op in ("device_to_device", "device_gather", "host_to_device", "device_to_host"):
        assert {shape.pieces for shape in copies if shape.op == op} == {1, 16}


def test_bytes_of_a_call_are_those_of_its_tensors():
    call = AttentionCall("decode", 32, 8, 128, 4, 1, 1000)
    assert call.kv_bytes == 2 * (4 * 1000 * 8 * 128) * 2
    assert call.working_bytes == call.kv_bytes + 2 * (4 * 32 * 128) * 2
    gathered = replace(call, block_size=16)
    assert gathered.working_bytes - call.working_bytes == call.kv_bytes
    assert Gemm(1, 10, 20, "fp8").weight_bytes == 200
    assert Copy("device_to_host", 4096, 16).working_bytes == 2 * 65536


@pytest.mark.parametrize("name", model_names())
def test_every_model_of_the_catalog_has_shapes(name):
    model = load_model(name)
    planned = plan(model, 1, Limits())
    assert of(Gemm, planned)
    # Either attention of some head shape is timed, or it is said that none is.
    assert of(AttentionCall, planned) or any("attention" in text for text in planned.left_out)
    assert ("routed experts" in planned.left_out) == model.is_moe


def test_what_is_not_timed_is_said():
    assert (
        "attention of MLA layers"
        in plan(load_model("deepseek-ai/DeepSeek-V3"), 8, Limits()).left_out
    )
    oss = plan(load_model("openai/gpt-oss-20b"), 1, Limits()).left_out
    assert any("windows" in text for text in oss)
    assert any("mxfp4" in text for text in oss)
    assert not plan(LLAMA, 1, Limits()).left_out


def test_heads_that_cannot_be_divided_are_refused():
    with pytest.raises(InputError, match="can't be divided"):
        plan(LLAMA, 3, Limits())


def test_groups_hold_every_shape_once():
    planned = plan(LLAMA, 2, Limits())
    rows = list(grouped(planned.shapes))
    assert sum(count for _, count, _ in rows) == len(planned.shapes)
    assert len({what for _, _, what in rows}) == len(rows)
    (line,) = [what for _, _, what in rows if what.startswith("bfloat16 n 3072 k 4096")]
    assert line.startswith("bfloat16 n 3072 k 4096, m 1 2 4 8 16 ")
