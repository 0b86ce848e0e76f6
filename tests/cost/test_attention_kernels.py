"""What paging costs by kernel generation and block size, against the paper's range and by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kvsim.cost.attention_kernels
from kvsim.cost import StepShape
from kvsim.cost.attention_kernels.contiguous import Contiguous
from kvsim.cost.attention_kernels.modern import Modern
from kvsim.cost.attention_kernels.paged_2023 import Paged2023
from kvsim.cost.kernels import Deployment, build_cost
from kvsim.cost.overheads.none import NoOverhead
from kvsim.cost.overheads.synchronous import Synchronous
from kvsim.gpu import load_gpu
from kvsim.model import load_model
from kvsim.policy import policies_in

KINDS: dict[str, Any] = {
    policy.model_fields["kind"].default: policy.model_validate({})
    for policy in policies_in(kvsim.cost.attention_kernels)
}
BLOCK_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
DEPLOYED = Deployment(1, "auto", 2048, 64, 2048)
OPT, A100 = load_model("facebook/opt-13b"), load_gpu("a100_sxm_40gb")
LLAMA = load_model("meta-llama/Llama-3.1-8B-Instruct")


def decodes(seqs: int, context: int) -> StepShape:
    zero = np.zeros(1, np.int64)
    return StepShape(zero, zero, zero, zero, zero, np.array([seqs]), np.array([seqs * context]))


def parts_ns(cost: Any, steps: StepShape) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part, ns in cost.parts_ns(steps).items():
        sums[part.component] = sums.get(part.component, 0.0) + float(np.sum(ns))
    return sums


@pytest.mark.parametrize("kind", KINDS)
def test_larger_blocks_never_cost_a_kernel_more(kind: str):
    factors = [KINDS[kind].decode_factor(size) for size in BLOCK_SIZES]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] >= 1


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_kernel_of_2023_is_in_the_printed_range_where_it_was_measured(share: float):
    kernel = Paged2023(per_block_fraction=share)
    assert 1.20 <= kernel.decode_factor(16) <= 1.26
    assert kernel.decode_factor(256) == kernel.decode_factor(16)


def test_the_band_below_blocks_of_16_is_from_nothing_to_all_of_it():
    by_share = [Paged2023(per_block_fraction=share).decode_factor(1) for share in (0, 0.5, 1)]
    np.testing.assert_allclose(by_share, [1.23, 1 + 0.23 * 8.5, 1 + 0.23 * 16])


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("model", [OPT, LLAMA], ids=["without_tables", "with_tables"])
def test_only_decode_attention_takes_longer(model, block_size: int):
    plain = build_cost(model, A100, replace(DEPLOYED, block_size=block_size), NoOverhead())
    changed = replace(DEPLOYED, block_size=block_size, attention_kernel=Paged2023())
    paged = build_cost(model, A100, changed, NoOverhead())
    before, after = (parts_ns(cost, decodes(30, 460)) for cost in (plain, paged))
    factor = Paged2023().decode_factor(block_size)
    assert after.pop("attention_decode") == pytest.approx(
        factor * before.pop("attention_decode"), rel=1e-6
    )
    assert after == before
    assert paged.chunks_ns([(300, 0)]) == plain.chunks_ns([(300, 0)])


def test_contiguous_and_modern_kernels_are_as_the_tables():
    first, second = (
        build_cost(OPT, A100, replace(DEPLOYED, attention_kernel=kernel), NoOverhead())
        for kernel in (Modern(), Contiguous())
    )
    assert first.step_ns(30, 30, 30, 14_000, 0.0) == second.step_ns(30, 30, 30, 14_000, 0.0)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("block_size", [1, 8, 16, 64])
def test_the_host_pays_for_the_entries_beyond_those_of_blocks_of_16(stages: int, block_size: int):
    deployed = replace(DEPLOYED, pipeline_parallel_size=stages)
    at_16 = build_cost(OPT, A100, deployed, Synchronous())
    cost = build_cost(OPT, A100, replace(deployed, block_size=block_size), Synchronous())
    more_entries = max(0.0, 14_000 / block_size - 14_000 / 16)
    expected_ns = 50 * more_entries  # with a full pipe each of two stages has half of them
    steps = decodes(28, 500)
    host_ns = parts_ns(cost, steps)["host"] - parts_ns(at_16, steps)["host"]
    assert host_ns == pytest.approx(expected_ns, rel=1e-4)
    shape = (28, 28, 28, 14_000, 0.0)
    assert cost.step_ns(*shape) - at_16.step_ns(*shape) == pytest.approx(expected_ns, abs=2)
    assert sum(parts_ns(cost, steps).values()) == pytest.approx(cost.step_ns(*shape), abs=1)


# Milliseconds in which Sarathi-Serve prepared inputs (Microsoft Vidur): GPUs, sequences, then
# Llama-2-7B (positions: 4096) and CodeLlama-34B (16384), which served the same requests.
PREPARED_MS = [
    (1, 8, 0.2932, 0.5247), (1, 32, 0.671, 1.7006), (2, 8, 0.381, 0.6873),
    (2, 64, 1.2324, 3.6877), (4, 8, 0.3749, 0.6887), (4, 64, 1.2956, 3.8),
]  # fmt: skip


@pytest.mark.parametrize(("gpus", "seqs", "narrow_ms", "wide_ms"), PREPARED_MS)
def test_an_entry_takes_as_long_as_wider_tables_say(gpus, seqs, narrow_ms, wide_ms):
    entries = seqs * (16384 - 4096) / 16
    entry_ns = (wide_ms - narrow_ms) * 1e6 / entries
    assert 37 < entry_ns < 52
    assert Synchronous().per_table_entry_s * 1e9 == pytest.approx(entry_ns, rel=0.35)
