"""The kernel data that ships, and the tool that packs it."""

import importlib.util
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from kvsim.cost.tables import fit, load_arrays, log_interpolate, two_nearest, whole_ticks
from kvsim.gpu import GpuSpec, gpu_names, load_gpu

DATA = Path(str(resources.files("kvsim"))) / "data" / "kernels"
MEASURED = sorted(path.stem for path in DATA.glob("*.npz"))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "pack_kernels.py"
    spec = importlib.util.spec_from_file_location("pack_kernels", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_data_is_small_and_credits_its_sources() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 4_000_000
    notice = (DATA / "NOTICE").read_text(encoding="utf-8")
    for holder in ("NVIDIA CORPORATION", "Microsoft Corporation", "CASYS Lab at KAIST"):
        assert f"{holder}" in notice
    assert "Version 2.0" in (DATA / "LICENSE-APACHE-2.0").read_text(encoding="utf-8")


def test_measured_gpus_are_in_the_catalogue() -> None:
    assert len(MEASURED) == 10
    assert set(MEASURED) <= set(gpu_names())


@pytest.mark.parametrize("gpu", MEASURED)
def test_latencies_are_positive_and_axes_ascend(gpu: str) -> None:
    arrays = load_arrays(load_gpu(gpu))
    for name, values in arrays.items():
        if name.endswith("/us") and not name.startswith("dynamic_scale"):
            assert np.nanmin(values) > 0, name
        if name.endswith(("/m", "/n", "/k", "/tokens", "/bytes")):
            assert np.all(np.diff(values) > 0), name


def test_larger_products_take_longer_on_the_whole() -> None:
    us = load_arrays(load_gpu("h100_sxm"))["gemm/bfloat16/us"]
    for axis in range(3):
        low, high = np.take(us, 0, axis), np.take(us, -1, axis)
        known = np.isfinite(high)
        assert np.mean(high[known] > low[known]) > 0.99


def test_constants_come_from_the_gpu_then_its_architecture_then_the_median() -> None:
    own = fit("gemm", load_gpu("h100_sxm"), "bfloat16")
    assert own.own
    assert fit("gemm", load_gpu("h100_pcie"), "bfloat16").values == own.values
    assert not fit("gemm", load_gpu("h100_pcie"), "bfloat16").own
    unknown = GpuSpec("mine", 2**34, 1e12, 1e14)
    names = ("a100_sxm", "h100_sxm", "h200_sxm", "l40s", "b200_sxm", "rtx_pro_6000_server")
    values = [fit("gemm", load_gpu(name), "bfloat16")["mem_eff"] for name in names]
    assert min(values) < fit("gemm", unknown, "bfloat16")["mem_eff"] < max(values)
    with pytest.raises(LookupError):
        fit("all_reduce", unknown, "3")


def test_a_constant_that_was_not_fitted_is_no_number() -> None:
    with pytest.raises(LookupError, match="quant_stage_bw_eff"):
        fit("gemm", load_gpu("a100_sxm"), "bfloat16")["quant_stage_bw_eff"]


def test_ticks_do_not_depend_on_the_last_bits_of_a_time() -> None:
    us = load_arrays(load_gpu("h100_sxm"))["gemm/bfloat16/us"]
    ns = us[np.isfinite(us)].astype(np.float64) * 1000
    above, below = ns * (1 + 4e-16), ns * (1 - 4e-16)
    assert np.any(np.rint(above * 1024) != np.rint(below * 1024))  # a plain rounding would
    assert np.array_equal(whole_ticks(above), whole_ticks(below))
    assert np.all(np.abs(whole_ticks(ns) - ns) < 1 / 1024)
    assert whole_ticks(np.arange(9.0)).tolist() == list(range(9))


def test_interpolation_hits_its_points_skips_gaps_and_continues_in_proportion() -> None:
    grid, values = np.array([1, 2, 4, 8]), np.array([3.0, np.nan, 12.0, 20.0])
    at = np.array([0.5, 1, 2, 4, 8, 16])
    expected = [3, 3, 6, 12, 20, 40]
    assert log_interpolate(at, grid, values) == pytest.approx(expected)


def test_the_nearest_of_several_points_weighs_most() -> None:
    points = np.array([[1.0, 1.0], [8.0, 8.0], [100.0, 1.0]])
    assert two_nearest(points, np.array([8.0, 8.0])) == [(1, 1.0)]
    (first, much), (second, little) = two_nearest(points, np.array([6.0, 6.0]))
    assert (first, second) == (1, 0)
    assert much > little
    assert much + little == pytest.approx(1)


def test_packing_gemm_keeps_every_point_and_leaves_gaps_open(tool: ModuleType) -> None:
    rows = pd.DataFrame(
        {
            "framework": "vllm", "dtype": "bfloat16",
            "m": [1, 1, 2], "n": [32, 64, 32], "k": [32, 32, 32],
            "latency_us": [1.0, 2.0, 3.0],
        }
    )  # fmt: skip
    arrays = tool.gemm_arrays(rows)
    assert arrays["gemm/bfloat16/n"].tolist() == [32, 64]
    assert arrays["gemm/bfloat16/us"][:, :, 0].tolist()[0] == [1.0, 2.0]
    assert arrays["gemm/bfloat16/us"][1, 0, 0] == 3.0
    assert np.isnan(arrays["gemm/bfloat16/us"][1, 1, 0])
    assert tool.smooth_gemm_arrays(rows.assign(n=51200)) == {}  # absent on some GPUs


def test_packing_prefill_splits_the_largest_batch_into_shares(tool: ModuleType) -> None:
    rows = pd.DataFrame(
        {
            "framework": "vllm", "source": "aiconfigurator", "kv_dtype": "bfloat16",
            "head_dim": 64, "window": [0, 0, 0, 0, 0, 128], "q_heads": 8, "kv_heads": 1,
            "prefix_tokens": 0, "batch": [1, 2, 8, 1, 4, 1],
            "new_tokens": [16, 16, 16, 32, 32, 16],
            "latency_us": [10.0, 12.0, 26.0, 14.0, 30.0, 9.0],
        }
    )  # fmt: skip
    arrays = tool.prefill_arrays(rows)
    assert arrays["prefill/bfloat16/64/us"].tolist() == [[10.0, 14.0]]
    assert arrays["prefill/bfloat16/64/share_us"].tolist() == [[2.0, 5.0]]
    assert arrays["prefill/bfloat16/64/128/us"].tolist() == [[9.0]]
    assert "prefill/bfloat16/64/128/share_us" not in arrays  # no batch was measured


def test_lone_spikes_are_noise_and_tile_edges_are_not(tool: ModuleType) -> None:
    column = [1.0, 1.0, 3.0, 1.1, 2.2, 2.3, 2.2, 9.0]
    cube = np.array(column, dtype=np.float32).reshape(-1, 1, 1)
    expected = [1.0, 1.0, 1.1, 1.1, 2.2, 2.3, 2.2, 9.0]
    assert tool.without_spikes(cube).ravel() == pytest.approx(expected)
    cube[1] = np.nan  # a gap: its neighbours have one neighbour each
    assert np.isnan(tool.without_spikes(cube)[1])
    assert tool.without_spikes(cube)[2] == pytest.approx(1.1)


def test_packing_all_reduce_prefers_vllm_and_takes_medians(tool: ModuleType) -> None:
    rows = pd.DataFrame(
        {
            "framework": ["vllm", "vllm", "sglang", "sglang"],
            "op": "all_reduce",
            "launch": ["graph", "graph", "graph", "eager"],
            "world_size": [2, 2, 2, 4],
            "bytes": [512, 512, 512, 512],
            "latency_us": [4.0, 6.0, 1.0, 40.0],
        }
    )
    arrays = tool.all_reduce_arrays(rows)
    assert arrays["all_reduce/2/us"].tolist() == [5.0]
    assert "all_reduce/4/us" not in arrays


def test_packing_collectives_takes_nccl_in_half_precision(tool: ModuleType) -> None:
    rows = pd.DataFrame(
        {
            "op": ["all_gather", "all_gather", "all_gather", "all_reduce", "reduce_scatter"],
            "impl": ["nccl", "nccl", "other", "nccl", "nccl"],
            "dtype": ["half", "int8", "half", "half", "half"],
            "world_size": 4,
            "bytes": 1024,
            "latency_us": [1.0, 2.0, 3.0, 4.0, 5.0],
        }
    )
    arrays = tool.nccl_arrays(rows)
    assert arrays["all_gather/4/us"].tolist() == [1.0]
    assert arrays["reduce_scatter/4/us"].tolist() == [5.0]
    assert not any(name.startswith("all_reduce") for name in arrays)


def test_packing_copies_thins_out_sizes_and_keeps_the_largest(tool: ModuleType) -> None:
    rows = pd.DataFrame(
        {
            "op": "send_recv",
            "topology": ["dgx"] * 10 + ["dgx_internode"] * 2 + ["pairwise_nvlink"],
            "bytes": [*range(1, 11), 1, 2, 3],
            "latency_us": [float(size) for size in range(13)],
        }
    )
    arrays = tool.send_recv_arrays(rows)
    assert arrays["send_recv/node/bytes"].tolist() == [2, 6, 10]
    assert arrays["send_recv/network/bytes"].tolist() == [2]
    assert len(arrays) == 4


def test_packing_experts_keeps_layouts_and_routings_apart(tool: ModuleType) -> None:
    shape = {"hidden": 64, "inter": 32, "topk": 2, "experts": 8}
    rows = pd.DataFrame(
        [
            {**shape, "tp": 1, "ep": 2, "tokens": 4, "distribution": "balanced", "latency_us": 1.0},
            {**shape, "tp": 1, "ep": 4, "tokens": 8, "distribution": "balanced", "latency_us": 2.0},
            {
                **shape, "tp": 1, "ep": 2, "tokens": 8, "distribution": "power_law_1.2",
                "latency_us": 3.0,
            },
        ]
    ).assign(framework="vllm", dtype="bfloat16")  # fmt: skip
    arrays = tool.moe_arrays(rows)
    assert arrays["moe/bfloat16/shapes"][:, -1].tolist() == [2, 4]
    assert arrays["moe/bfloat16/tokens"].tolist() == [4, 8]
    nan = float("nan")
    balanced = arrays["moe/bfloat16/balanced/us"]
    assert np.array_equal(balanced, [[1.0, nan], [nan, 2.0]], equal_nan=True)
    unequal = arrays["moe/bfloat16/power_law_1.2/us"]
    assert np.array_equal(unequal, [[nan, 3.0], [nan, nan]], equal_nan=True)


def test_packing_deepep_adds_up_both_ways(tool: ModuleType) -> None:
    rows = pd.DataFrame(
        {
            "mode": ["normal", "normal", "low_latency"],
            "sms": [20, 24, -1],
            "hidden": 64, "topk": 2, "experts": 8, "tokens": 4,
            "dispatch_us": [1.0, 5.0, 7.0],
            "combine_us": [2.0, 5.0, 8.0],
        }
    )  # fmt: skip
    arrays = tool.deepep_arrays(rows, 8)
    assert arrays["deepep/8/normal/us"].tolist() == [[3.0]]
    assert arrays["deepep/8/low_latency/us"].tolist() == [[15.0]]
    assert arrays["deepep/8/normal/shapes"].tolist() == [[64, 2, 8]]
