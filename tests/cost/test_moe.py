import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim.cost.formats import sixteen_bit
from kvsim.cost.moe import MoeShape, activated_experts, moe_curves
from kvsim.cost.tables import Curve, Floats, load_arrays
from kvsim.gpu import load_gpu

H100 = load_gpu("h100_sxm")
TOKENS = np.arange(2049)
MIXTRAL = MoeShape(hidden=4096, inter=14336, topk=2, experts=8, tp=2)


def total(curves: list[Curve]) -> Floats:
    ns: Floats = np.sum([curve.ns for curve in curves], axis=0)
    return ns


def test_activated_experts_are_the_mean_of_random_routing() -> None:
    random = np.random.default_rng(5)
    for tokens in (1, 4, 20):
        draws = [
            len({e for _ in range(tokens) for e in random.permutation(16)[:3].tolist()})
            for _ in range(2000)
        ]
        expected = activated_experts(np.array([tokens]), 16, 3)[0]
        assert np.mean(draws) == pytest.approx(expected, rel=0.02)


def test_a_measured_shape_is_its_own_price() -> None:
    arrays = load_arrays(H100)
    row = arrays["moe/bfloat16/shapes"].tolist().index(list(MIXTRAL))
    grid, measured_us = arrays["moe/bfloat16/tokens"], arrays["moe/bfloat16/power_law_1.2/us"][row]
    curves = moe_curves(H100, sixteen_bit(H100), grid, MIXTRAL, 3, "power_law_1.2")
    known = np.isfinite(measured_us)
    assert total(curves)[known] == pytest.approx(measured_us[known] * 1e3, rel=1e-5)
    assert curves[0].part.basis == "measured"


def test_what_a_gpu_has_of_a_layer_is_what_counts() -> None:
    half = MIXTRAL._replace(inter=7168, tp=1)
    curves = moe_curves(H100, sixteen_bit(H100), TOKENS, half, matrices=3)
    exact = moe_curves(H100, sixteen_bit(H100), TOKENS, MIXTRAL, matrices=3)
    assert total(curves) == pytest.approx(total(exact))
    assert curves[0].part.basis == "interpolated"


def test_unequal_routing_costs_more_where_experts_are_dealt_out() -> None:
    shape = MoeShape(4096, 1536, 8, 128, tp=1, ep=8)
    tokens = np.array([8192])
    unequal, equal = (
        total(moe_curves(H100, sixteen_bit(H100), tokens, shape, 3, routing))[0]
        for routing in ("power_law_1.2", "balanced")
    )
    assert unequal > 1.1 * equal


@pytest.mark.parametrize(
    ("dtype", "median", "ninth"), [("bfloat16", 0.08, 0.40), ("fp8_block", 0.06, 0.20)]
)
def test_models_that_are_withheld_are_priced_from_the_others(
    dtype: str, median: float, ninth: float
) -> None:
    path = Path(__file__).parents[2] / "tools" / "check_experts.py"
    spec = importlib.util.spec_from_file_location("check_experts", path)
    assert spec
    assert spec.loader
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    ratios = tool.withheld(H100, dtype)
    assert len(ratios) > 2000
    errors = np.abs(ratios - 1)
    assert np.median(errors) < median
    assert np.percentile(errors, 90) < ninth
    assert np.median(errors) > 0.01  # its own rows are really withheld


def test_an_unmeasured_shape_is_scaled_from_its_neighbours() -> None:
    near = MIXTRAL._replace(inter=14000)
    curves = moe_curves(H100, sixteen_bit(H100), TOKENS, near, matrices=3)
    exact = total(moe_curves(H100, sixteen_bit(H100), TOKENS, MIXTRAL, matrices=3))
    assert curves[0].part.basis == "extrapolated"
    assert total(curves)[1:] == pytest.approx(exact[1:], rel=0.15)


def test_without_a_table_the_weights_of_activated_experts_are_streamed() -> None:
    twin = replace(H100, name="not measured")
    curves = moe_curves(twin, sixteen_bit(twin), TOKENS, MIXTRAL, matrices=3)
    assert curves[0].part.basis == "physical"
    measured = total(moe_curves(H100, sixteen_bit(H100), TOKENS, MIXTRAL, matrices=3))
    ratio = total(curves)[1:] / measured[1:]
    assert 0.7 < np.median(ratio) < 1.3
    assert total(curves)[0] == 0
