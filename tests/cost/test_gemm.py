from dataclasses import replace

import numpy as np
import pytest

from kvsim.cost.formats import WeightFormat, sixteen_bit
from kvsim.cost.gemm import gemm_curves, roofline_ns
from kvsim.cost.tables import Curve, Floats, load_arrays
from kvsim.gpu import GpuSpec, load_gpu

TOKENS = np.arange(4097)
H100 = load_gpu("h100_sxm")
UNKNOWN = GpuSpec("unknown", 80 * 2**30, 2e12, 5e14, fp8_flop_per_s=1e15)


def total(curves: list[Curve]) -> Floats:
    ns: Floats = np.sum([curve.ns for curve in curves], axis=0)
    return ns


def fp8(gpu: GpuSpec, **changes: object) -> WeightFormat:
    plain = WeightFormat("fp8", 1.0, gpu.fp8_flop_per_s or gpu.bf16_flop_per_s, "fp8")
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", ["a100_sxm", "h100_sxm", "l40s", "b200_sxm"])
def test_a_measured_point_is_its_own_price(gpu: str) -> None:
    arrays = load_arrays(load_gpu(gpu))
    rows, n_grid, k_grid = (arrays[f"gemm/bfloat16/{axis}"] for axis in "mnk")
    random = np.random.default_rng(7)
    for _ in range(20):
        i, j = random.integers(len(n_grid)), random.integers(len(k_grid))
        n, k = int(n_grid[i]), int(k_grid[j])
        measured_us = arrays["gemm/bfloat16/us"][:, i, j]
        if not np.isfinite(measured_us).all():
            continue
        curves = gemm_curves("gemm", load_gpu(gpu), sixteen_bit(load_gpu(gpu)), rows, n, k)
        assert total(curves) == pytest.approx(measured_us * 1e3, rel=1e-5)
        assert {curve.part.basis for curve in curves} == {"measured"}


def test_a_measured_point_stands_alone_beside_a_gap() -> None:
    gpu, rows = load_gpu("l40s"), np.array([1, 64, 4096])
    arrays = load_arrays(gpu)
    for dtype, weights in (("bfloat16", sixteen_bit(gpu)), ("fp8", fp8(gpu))):
        grids = [arrays[f"gemm/{dtype}/{axis}"] for axis in "mnk"]
        whole = np.isfinite(arrays[f"gemm/{dtype}/us"]).all(axis=0)
        for n, k in [(65536, 7168), (65536, 10240), (65536, 16384)]:
            at = np.searchsorted(grids[1], n), np.searchsorted(grids[2], k)
            curves = gemm_curves("gemm", gpu, weights, rows, n, k)
            assert (curves[0].part.basis == "measured") == whole[at]
            if whole[at]:
                us = arrays[f"gemm/{dtype}/us"][np.searchsorted(grids[0], rows), *at]
                assert total(curves) == pytest.approx(us * 1e3, rel=1e-5)


def test_between_measured_points_the_price_lies_between_theirs() -> None:
    weights = sixteen_bit(H100)
    low, mid, high = (
        total(gemm_curves("gemm", H100, weights, TOKENS, n, 4096)) for n in (4096, 4600, 5120)
    )
    assert np.all(mid >= np.minimum(low, high) * (1 - 1e-12))
    assert np.all(mid <= np.maximum(low, high) * (1 + 1e-12))


def test_beyond_the_table_the_price_is_proportional() -> None:
    weights = sixteen_bit(H100)
    wide = total(gemm_curves("gemm", H100, weights, TOKENS, 65536, 4096))
    twice = gemm_curves("gemm", H100, weights, TOKENS, 2 * 65536, 4096)
    assert total(twice) == pytest.approx(2 * wide)
    assert twice[0].part.basis == "extrapolated"
    rows = np.array([32768, 65536])
    one, two = total(gemm_curves("gemm", H100, weights, rows, 4096, 4096))
    assert two == pytest.approx(2 * one)


def test_no_tokens_cost_nothing_and_each_count_has_one_bound() -> None:
    compute, hbm = gemm_curves("gemm", H100, sixteen_bit(H100), TOKENS, 4096, 4096)
    assert compute.ns[0] == hbm.ns[0] == 0
    assert np.all((compute.ns[1:] > 0) != (hbm.ns[1:] > 0))
    assert hbm.ns[1] > 0  # one token streams the weights
    assert compute.ns[4096] > 0


def test_the_one_shape_that_was_not_measured_is_scaled_from_its_neighbours() -> None:
    curves = gemm_curves("gemm", H100, sixteen_bit(H100), TOKENS, 65536, 65536)
    assert "nearest" in curves[0].part.note
    floor = np.maximum(*roofline_ns(H100, sixteen_bit(H100), TOKENS[1:], 65536, 65536))
    ratio = total(curves)[1:] / floor
    assert np.all((ratio > 1.0) & (ratio < 2.0))


@pytest.mark.parametrize("name", ["h100_sxm", "b200_sxm", "l40s", "a100_sxm"])
def test_the_physical_form_is_near_the_table_of_the_gpu_it_was_fitted_on(name: str) -> None:
    gpu, rows = load_gpu(name), np.array([1, 16, 64, 256, 1024, 4096])
    twin = replace(gpu, name="not measured")  # same architecture, so the same constants
    errors: list[float] = []
    for n, k in [(4096, 4096), (6144, 4096), (16384, 4096), (4096, 12288), (8192, 8192)]:
        table = total(gemm_curves("gemm", gpu, sixteen_bit(gpu), rows, n, k))
        form = gemm_curves("gemm", twin, sixteen_bit(twin), rows, n, k)
        assert form[0].part.basis == "physical"
        errors.extend(np.abs(total(form) / table - 1))
    assert np.median(errors) < 0.12  # published hold-out medians: 5 to 8 %


def test_an_unknown_gpu_takes_median_constants_and_is_slower_than_its_roofline() -> None:
    curves = gemm_curves("gemm", UNKNOWN, sixteen_bit(UNKNOWN), TOKENS, 4096, 4096)
    assert curves[0].part.basis == "physical"
    assert "median" in curves[0].part.note
    floor = np.maximum(*roofline_ns(UNKNOWN, sixteen_bit(UNKNOWN), TOKENS[1:], 4096, 4096))
    assert np.all(total(curves)[1:] > floor)


def test_static_scales_save_time_but_never_beat_the_roofline() -> None:
    dynamic = total(gemm_curves("gemm", H100, fp8(H100), TOKENS, 4096, 4096))[1:]
    static = fp8(H100, static_scale=True)
    saved = total(gemm_curves("gemm", H100, static, TOKENS, 4096, 4096))[1:]
    floor = np.maximum(*roofline_ns(H100, static, TOKENS[1:], 4096, 4096))
    assert np.all(saved <= np.maximum(dynamic, floor))
    assert np.mean(saved < dynamic) > 0.9
    assert np.all(saved >= floor)


def test_weight_only_formats_save_bytes_and_no_flops() -> None:
    plain, small = sixteen_bit(H100), replace(sixteen_bit(H100), bytes_per_weight=0.5)
    small = replace(small, weight_only=True)
    few = np.array([1, 8, 4096])
    saved = total(gemm_curves("gemm", H100, small, few, 8192, 8192))
    full = total(gemm_curves("gemm", H100, plain, few, 8192, 8192))
    assert saved[0] < 0.5 * full[0]
    assert saved[2] > 0.8 * full[2]


def test_fp8_where_only_bf16_was_fitted_has_a_price() -> None:
    own = replace(UNKNOWN, sm_arch=80)
    with_pass = total(gemm_curves("gemm", own, fp8(own), TOKENS, 4096, 4096))
    assert np.all(np.isfinite(with_pass))
    plain = total(gemm_curves("gemm", own, sixteen_bit(own), TOKENS, 4096, 4096))
    assert 0.4 * plain[4096] < with_pass[4096] < plain[4096]


def test_fp8_on_an_unknown_gpu_pays_for_quantizing_the_activation() -> None:
    with_pass = total(gemm_curves("gemm", UNKNOWN, fp8(UNKNOWN), TOKENS, 4096, 4096))
    no_pass = replace(fp8(UNKNOWN), weight_only=True)
    assert with_pass[4096] > total(gemm_curves("gemm", UNKNOWN, no_pass, TOKENS, 4096, 4096))[4096]
