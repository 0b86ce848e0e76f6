"""Experts shared by data-parallel ranks, and dealt out whole."""

from dataclasses import replace

import numpy as np
import pytest

from kvsim.cost import StepShape
from kvsim.cost.collectives import collective_curve
from kvsim.cost.formats import sixteen_bit
from kvsim.cost.kernels import Deployment, build_cost
from kvsim.cost.moe import MoeShape, moe_curves
from kvsim.cost.overheads.none import NoOverhead
from kvsim.gpu import load_gpu
from kvsim.model import load_model

H100 = load_gpu("h100_sxm")
QWEN = load_model("Qwen/Qwen3-30B-A3B")
LAYERS = 48
ALONE = Deployment(1, "auto", 512, 64, 2048)


def parts(**changes: object) -> dict[str, float]:
    """Return ns by component of a step of 32 decodes on each rank."""
    cost = build_cost(QWEN, H100, replace(ALONE, **changes), NoOverhead())
    zero = np.zeros(1, np.int64)
    steps = StepShape(zero, zero, zero, zero, zero, np.array([32]), np.array([32 * 500]))
    sums: dict[str, float] = {}
    for part, ns in cost.parts_ns(steps).items():
        sums[part.component] = sums.get(part.component, 0.0) + float(ns[0])
    return sums


def experts_ns(tokens: int, tp: int, ep: int) -> float:
    shape = MoeShape(2048, 768, 8, 128, tp, ep)
    curves = moe_curves(H100, sixteen_bit(H100), np.array([tokens]), shape, matrices=3)
    return LAYERS * sum(float(curve.ns[0]) for curve in curves)


def test_ranks_bring_their_tokens_to_the_experts_of_all():
    for ep in (False, True):
        shared = parts(data_parallel_size=4, enable_expert_parallel=ep)
        tp, dealt = (1, 4) if ep else (4, 1)
        assert shared["experts"] == pytest.approx(experts_ns(128, tp, dealt), rel=1e-6)


def test_only_the_experts_and_their_tokens_tell_ranks_from_single_servers():
    alone, shared = parts(), parts(data_parallel_size=4)
    size_bytes = np.array([4 * 32 * 2048 * 2.0])
    sent = [
        collective_curve(op, H100, 4, size_bytes, LAYERS) for op in ("all_gather", "reduce_scatter")
    ]
    assert shared.pop("communication") == pytest.approx(sum(float(c.ns[0]) for c in sent), rel=1e-6)
    shared.pop("experts"), alone.pop("experts")
    assert shared == pytest.approx(alone)


def test_whole_experts_leave_the_rest_of_tensor_parallelism_as_it_is():
    cut, whole = (
        parts(tensor_parallel_size=4),
        parts(tensor_parallel_size=4, enable_expert_parallel=True),
    )
    assert whole.pop("experts") == pytest.approx(experts_ns(32, 1, 4), rel=1e-6)
    cut.pop("experts")
    assert whole == cut


def test_measured_layouts_say_so():
    curves = moe_curves(
        H100, sixteen_bit(H100), np.array([64]), MoeShape(2048, 768, 8, 128, 1, 8), 3
    )
    assert curves[0].part.basis == "measured"
    cost = build_cost(QWEN, H100, replace(ALONE, data_parallel_size=8), NoOverhead())
    notes = {component: (basis, note) for component, basis, note in cost.basis}
    assert "ranks with as many tokens each" in notes["experts"][1]
    assert notes["communication"][0] == "measured"


def test_dense_ranks_are_single_servers():
    llama = load_model("meta-llama/Llama-3.1-8B-Instruct")
    alone = build_cost(llama, H100, ALONE, NoOverhead())
    ranks = build_cost(llama, H100, replace(ALONE, data_parallel_size=8), NoOverhead())
    for seqs in (1, 7, 64):
        arguments = seqs, seqs, seqs, seqs * 300, 0.0
        assert ranks.step_ns(*arguments) == alone.step_ns(*arguments)
