"""The decode step of Llama-3.1-8B on one H100 SXM, as published with the kernel tables (6 c).

The published sums take the form for decode attention; kvsim prices it by measured rows where they
are longer. So the sums are compared with the form, and the rows add to them.
"""

import pytest

from kvsim.cost import attention
from kvsim.cost.kernels import Deployment, build_cost
from kvsim.cost.overheads.none import NoOverhead
from kvsim.cost.step import KernelCost
from kvsim.gpu import load_gpu
from kvsim.model import load_model

CONTEXTS = (512, 1024, 2048, 4096, 8192)
STEP_MS = {
    1: (6.44, 6.46, 6.50, 6.59, 6.77),
    8: (6.5, 6.7, 7.1, 7.8, 9.2),
    32: (7.7, 8.4, 9.9, 12.7, 18.4),
    64: (8.7, 10.1, 13.0, 18.7, 30.1),
    128: (10.1, 13.0, 18.7, 30.1, 52.9),
    256: (14.7, 20.4, 31.8, 54.6, 100),
}


def built() -> KernelCost:
    model, gpu = load_model("meta-llama/Llama-3.1-8B-Instruct"), load_gpu("h100_sxm")
    build = build_cost.__wrapped__  # what is remembered knows nothing of other tables
    cost = build(model, gpu, Deployment(1, "auto", 2048, 256, 8192), NoOverhead())
    assert isinstance(cost, KernelCost)
    return cost


@pytest.fixture(scope="module")
def cost() -> KernelCost:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_ratios", lambda *_: None)
        return built()


@pytest.mark.parametrize("batch", STEP_MS)
@pytest.mark.parametrize("context", CONTEXTS)
def test_decode_step_is_the_published_sum_of_kernels(
    cost: KernelCost, batch: int, context: int
) -> None:
    published_ms = STEP_MS[batch][CONTEXTS.index(context)]
    step_ms = cost.step_ns(batch, batch, batch, batch * context, 0.0) / 1e6
    assert step_ms == pytest.approx(published_ms, rel=0.03)


def test_measured_rows_make_a_step_longer_but_not_by_much(cost: KernelCost) -> None:
    longer = [
        built().step_ns(batch, batch, batch, batch * context, 0.0)
        / cost.step_ns(batch, batch, batch, batch * context, 0.0)
        for batch in (16, 32, 64, 128)
        for context in CONTEXTS
    ]
    assert min(longer) >= 1 - 1e-6
    assert 1.02 < max(longer) < 1.08
