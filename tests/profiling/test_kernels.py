"""What is run in torch computes what its row says: beside plain softmax and plain products."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvsim.profiling.collectives import time_all_reduces  # noqa: E402
from kvsim.profiling.device import open_device  # noqa: E402
from kvsim.profiling.kernels import work_of  # noqa: E402
from kvsim.profiling.shapes import (  # noqa: E402
    BLOCK_SIZES,
    AllReduce,
    AttentionCall,
    Copy,
    Gemm,
)

CPU = open_device("cpu")
BFLOAT16 = 2.0**-8  # half the distance of neighboring values, relative
DECODE = AttentionCall("decode", 8, 2, 32, 3, 1, 70)
PROMPT = AttentionCall("prefill", 8, 2, 32, 2, 33, 33)
CHUNK = AttentionCall("prefill", 4, 4, 64, 2, 20, 300)


def plain_attention(query, keys, values):
    """Softmax attention of [new, q_heads, size] on [tokens, kv_heads, size], in float64."""
    query, keys, values = (tensor.double().numpy() for tensor in (query, keys, values))
    new, tokens = len(query), len(keys)
    answer = np.empty_like(query)
    for row, head in itertools.product(range(new), range(query.shape[1])):
        shared = head * keys.shape[1] // query.shape[1]
        seen = tokens - new + row + 1
        scores = keys[:seen, shared] @ query[row, head] / np.sqrt(query.shape[2])
        weights = np.exp(scores - scores.max())
        answer[row, head] = weights @ values[:seen, shared] / weights.sum()
    return answer


def assert_attends(answer, query, keys, values):
    """Compare [batch, heads, new, size] with plain softmax on [batch, tokens, heads, size]."""
    for number in range(len(query)):
        expected = plain_attention(query[number].transpose(0, 1), keys[number], values[number])
        got = answer[number].transpose(0, 1).double().numpy()
        np.testing.assert_allclose(got, expected, atol=8 * BFLOAT16)


def unpaged(pool, table, kv_tokens):
    """Read a pool [blocks, block_size, heads, size] token by token through a table."""
    size = pool.shape[1]
    return torch.stack(
        [
            torch.stack([pool[row[token // size], token % size] for token in range(kv_tokens)])
            for row in table
        ]
    )


@pytest.mark.parametrize("shape", [DECODE, PROMPT, CHUNK])
def test_contiguous_attention_is_plain_softmax(shape):
    work = work_of(CPU, shape)
    assert work.kernel == "torch_sdpa_flash"
    for call in work.calls:
        _, query, keys, values = call.args
        assert keys.shape == (shape.batch, shape.kv_tokens, shape.kv_heads, shape.head_dim)
        assert_attends(call(), query, keys, values)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("shape", [DECODE, PROMPT, CHUNK])
def test_gathered_attention_is_plain_softmax_for_every_block_size(shape, block_size):
    work = work_of(CPU, replace(shape, block_size=block_size))
    assert work.kernel == "torch_gather_sdpa_flash"
    for call in work.calls:
        _, query, key_pool, value_pool, kv_tokens, table = call.args
        assert key_pool.shape[1:] == (block_size, shape.kv_heads, shape.head_dim)
        assert sorted(table.flatten().tolist()) == list(range(len(key_pool)))
        keys, values = (unpaged(pool, table, kv_tokens) for pool in (key_pool, value_pool))
        assert_attends(call(), query, keys, values)


def documented_varlen(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size, enable_gqa,
    seqused_k=None, block_table=None,
):  # fmt: skip
    """Compute what torch's documentation says that `varlen_attn` does."""
    assert window_size == (-1, 0)  # causal
    assert enable_gqa
    starts = cu_seq_q.tolist()
    assert cu_seq_q.dtype == torch.int32
    assert starts[-1] == len(query)
    if block_table is None:
        assert cu_seq_k.dtype == torch.int32
        assert cu_seq_k.tolist()[-1] == len(key)
        bounds = itertools.pairwise(cu_seq_k.tolist())
        caches = [(key[start:end], value[start:end]) for start, end in bounds]
    else:
        assert cu_seq_k is None
        assert {seqused_k.dtype, block_table.dtype} == {torch.int32}
        used = zip(block_table, seqused_k.tolist(), strict=True)
        caches = [
            tuple(unpaged(pool, row[None], length)[0] for pool in (key, value))
            for row, length in used
        ]
    answers = []
    for (start, end), (keys, values) in zip(itertools.pairwise(starts), caches, strict=True):
        assert (end - start, len(keys)) == (max_q, max_k)
        answers.append(plain_attention(query[start:end], keys, values))
    return np.concatenate(answers)


@pytest.mark.parametrize("block_size", [0, *BLOCK_SIZES])
@pytest.mark.parametrize("shape", [DECODE, PROMPT, CHUNK])
def test_kernels_of_gpus_are_asked_for_the_same(shape, block_size, monkeypatch):
    """They run on GPUs alone: what they are handed must mean, as documented, this attention."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", documented_varlen)
    plain = replace(shape, block_size=block_size)
    fused = work_of(CPU, replace(plain, fused=True))
    assert fused.kernel == ("torch_varlen_flash_paged" if block_size else "torch_varlen_flash")
    (expected,) = (call() for call in work_of(CPU, plain).calls)  # the same seed, the same data
    together = expected.transpose(1, 2).flatten(0, 1).double().numpy()
    np.testing.assert_allclose(fused.calls[0](), together, atol=8 * BFLOAT16)


def test_a_cpu_has_no_kernel_with_a_block_table():
    work = work_of(CPU, replace(DECODE, block_size=16, fused=True))
    assert work.kernel == "torch_varlen_flash_paged"
    with pytest.raises(RuntimeError):
        work.calls[0]()


@pytest.mark.parametrize("m", [1, 7])
def test_products_are_plain_products(m):
    work = work_of(CPU, Gemm(m, 48, 64, "bfloat16"))
    x, weight = work.calls[0].args
    assert (x.shape, weight.shape) == ((m, 64), (48, 64))
    expected = x.double() @ weight.double().T
    torch.testing.assert_close(work.calls[0]().double(), expected, rtol=2 * BFLOAT16, atol=0.05)


@pytest.mark.parametrize("m", [1, 7])
def test_fp8_products_quantize_the_activation_by_token(m):
    work = work_of(CPU, Gemm(m, 48, 64, "fp8"))
    _, _, x, weight, scale = work.calls[0].args
    assert weight.dtype == torch.float8_e4m3fn
    assert scale.shape == (48, 1)
    product = work.calls[0]()
    assert product.dtype == torch.bfloat16
    expected = x.double() @ (weight.double() * scale.double()).T
    # Three bits of mantissa: each of 64 terms is off by up to 1/16, with random signs.
    error = (product.double() - expected).square().mean().sqrt()
    assert error < expected.square().mean().sqrt() / 16
    # A token's scale is its own: another token changes nothing.
    call = work.calls[0]
    larger = torch.cat([x, 1000 * x[:1]])
    again = call.func(*call.args[:2], larger, weight, scale)
    torch.testing.assert_close(again[:m], product)


def test_a_gpu_without_fp8_says_so():
    with pytest.raises(RuntimeError, match="fp8"):
        work_of(replace(CPU, has_fp8=False), Gemm(1, 16, 16, "fp8"))


@pytest.mark.parametrize("op", ["device_to_device", "host_to_device", "device_to_host"])
def test_copies_copy_every_piece(op):
    work = work_of(CPU, Copy(op, 4096, 3))
    target, source = work.calls[0].args
    assert source.shape == (3, 4096)
    source.random_(0, 255)
    assert not torch.equal(source, target)
    work.calls[0]()
    assert torch.equal(source, target)


def test_gathers_read_scattered_pieces():
    work = work_of(replace(CPU, cache_bytes=100_000), Copy("device_gather", 4096, 5))
    read = [call.args[-1].tolist() for call in work.calls]
    assert sorted(itertools.chain(*read)) == list(range(5 * len(read)))
    assert read != [sorted(pieces) for pieces in read]
    assert work.calls[0]().shape == (5, 4096)


@pytest.mark.parametrize(
    "shape", [Gemm(2, 64, 64, "bfloat16"), DECODE, replace(DECODE, block_size=16)]
)
def test_each_call_reads_memory_of_its_own(shape):
    operand_bytes = shape.weight_bytes if isinstance(shape, Gemm) else shape.kv_bytes
    calls = work_of(replace(CPU, cache_bytes=3 * operand_bytes), shape).calls
    assert len(calls) == 6  # twice the cache
    cold = [call.args[-1] for call in calls]  # a weight, a cache of values, a block table
    assert len({tensor.data_ptr() for tensor in cold}) == 6
    if getattr(shape, "block_size", 0):
        blocks = [block for table in cold for block in table.flatten().tolist()]
        assert len(set(blocks)) == len(blocks)


def test_all_reduces_are_timed_over_processes():
    times = time_all_reduces(CPU, [AllReduce(2, 256), AllReduce(2, 65536)])
    assert len(times) == 2
    assert all(0 < us < 60e6 for us in times)


def test_more_gpus_than_there_are_is_an_error():
    with pytest.raises(RuntimeError, match="4 GPUs: 2 here"):
        time_all_reduces(replace(CPU, kind="cuda", num_gpus=2), [AllReduce(4, 256)])
