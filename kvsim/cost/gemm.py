"""Linear layers: the time of one matrix product by its number of tokens."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.cost import Part
from kvsim.cost.formats import SIXTEEN_BIT_BYTES, WeightFormat
from kvsim.cost.tables import (
    Curve,
    Fit,
    Floats,
    Ints,
    fit,
    load_arrays,
    log_interpolate,
    split_by_bound,
    two_nearest,
)
from kvsim.gpu import GpuSpec
from kvsim.units import NS_PER_S, NS_PER_US

TILE = 128  # output tile of the physical form, both ways


def gemm_curves(
    component: str, gpu: GpuSpec, weights: WeightFormat, tokens: Ints, n: int, k: int
) -> list[Curve]:
    """Price [tokens, k] x [k, n] for every number of tokens.

    Args:
        component: Component that the time belongs to.
        gpu: The GPU.
        weights: Format of the [k, n] matrix.
        tokens: Row counts 0, 1, 2, ...; no tokens cost nothing.
        n: Output width on this GPU.
        k: Input width on this GPU.

    Returns:
        Two curves: where FLOPs bound the product, and where bytes do.
    """
    rows = np.maximum(tokens, 1)
    ns, why = _measured(component, gpu, weights, rows, n, k) or (
        _physical_ns(gpu, weights, rows, n, k),
        _physical_part(component, gpu, weights),
    )
    compute_ns, bytes_ns = roofline_ns(gpu, weights, rows, n, k)
    return split_by_bound(component, np.where(tokens > 0, ns, 0.0), compute_ns > bytes_ns, why)


def roofline_ns(
    gpu: GpuSpec, weights: WeightFormat, rows: Ints, n: int, k: int
) -> tuple[Floats, Floats]:
    """Return the least time for the FLOPs and for the bytes of a product."""
    count = rows.astype(np.float64)
    flops = count * (2.0 * n * k)
    size_bytes = n * k * weights.bytes_per_weight + count * ((n + k) * SIXTEEN_BIT_BYTES)
    return flops / weights.flop_per_s * NS_PER_S, size_bytes / gpu.hbm_bytes_per_s * NS_PER_S


def _measured(
    component: str, gpu: GpuSpec, weights: WeightFormat, rows: Ints, n: int, k: int
) -> tuple[Floats, Part] | None:
    """Interpolate the GPU's table in log m, log n and log k; None if it has no such table."""
    arrays = load_arrays(gpu)
    name = f"gemm/{weights.kernel}"
    if weights.weight_only or f"{name}/us" not in arrays:
        return None
    n_grid, k_grid = arrays[f"{name}/n"], arrays[f"{name}/k"]
    cube = arrays[f"{name}/us"].astype(np.float64)
    (n_at, n_weights), (k_at, k_weights) = _bracket(n_grid, n), _bracket(k_grid, k)
    logs = np.log(cube[:, n_at][:, :, k_at])
    if not np.isfinite(logs).all():
        return _scaled(component, gpu, weights, rows, n, k)
    along_k = (logs * k_weights).sum(axis=2)
    curve = np.exp((along_k * n_weights).sum(axis=1))
    beyond = max(n / n_grid[-1], 1.0) * max(k / k_grid[-1], 1.0)
    ns = log_interpolate(rows, arrays[f"{name}/m"], curve) * NS_PER_US * beyond
    if weights.static_scale and "dynamic_scale/us" in arrays:
        ns = np.maximum(
            ns - _dynamic_scale_ns(gpu, rows, k), _roofline_floor_ns(gpu, weights, rows, n, k)
        )
    on_grid = n in n_grid and k in k_grid
    basis: Literal["measured", "interpolated", "extrapolated"] = (
        "extrapolated" if beyond > 1 else "measured" if on_grid else "interpolated"
    )
    return ns, Part(component, "hbm", basis, weights.note)


def _roofline_floor_ns(gpu: GpuSpec, weights: WeightFormat, rows: Ints, n: int, k: int) -> Floats:
    """Return the roofline: no subtraction may go below it."""
    return np.maximum(*roofline_ns(gpu, weights, rows, n, k))


def _bracket(grid: NDArray[Any], at: int) -> tuple[list[int], Floats]:
    """Return the points of the grid around `at` and their weights in log space.

    A point of the grid stands for itself, and its ends for all beyond them.
    """
    inside = np.clip(at, grid[0], grid[-1])
    high = int(np.searchsorted(grid, inside))
    if grid[high] == inside:
        return [high], np.ones(1)
    share = np.log(inside / grid[high - 1]) / np.log(grid[high] / grid[high - 1])
    return [high - 1, high], np.array([1.0 - share, share])


def _dynamic_scale_ns(gpu: GpuSpec, rows: Ints, k: int) -> Floats:
    arrays = load_arrays(gpu)
    nearest = int(np.argmin(np.abs(np.log(arrays["dynamic_scale/k"] / k))))
    column = arrays["dynamic_scale/us"][:, nearest].astype(np.float64)
    return np.interp(rows, arrays["dynamic_scale/m"], column) * NS_PER_US


def _scaled(
    component: str, gpu: GpuSpec, weights: WeightFormat, rows: Ints, n: int, k: int
) -> tuple[Floats, Part]:
    """Scale this shape's roofline by the efficiency of the two nearest measured shapes."""
    arrays = load_arrays(gpu)
    name = f"gemm/{weights.kernel}"
    cube = arrays[f"{name}/us"].astype(np.float64)
    known = np.argwhere(np.isfinite(cube).all(axis=0))
    shapes = np.stack([arrays[f"{name}/n"][known[:, 0]], arrays[f"{name}/k"][known[:, 1]]], axis=1)
    ratio = np.zeros(len(rows))
    for index, weight in two_nearest(shapes.astype(np.float64), np.array([n, k], np.float64)):
        near_n, near_k = (int(size) for size in shapes[index])
        column = cube[:, known[index][0], known[index][1]]
        near_ns = log_interpolate(rows, arrays[f"{name}/m"], column) * NS_PER_US
        ratio += weight * near_ns / _roofline_floor_ns(gpu, weights, rows, near_n, near_k)
    note = "efficiency of the two nearest measured shapes"
    return ratio * _roofline_floor_ns(gpu, weights, rows, n, k), Part(
        component, "hbm", "extrapolated", note
    )


def _physical_ns(gpu: GpuSpec, weights: WeightFormat, rows: Ints, n: int, k: int) -> Floats:
    """Return t0 + p-norm of (FLOPs or a tile's serial loop) and bytes, as fitted on whole tables.

    The activation of fp8 products is quantised in a pass of its own: it reads 16 bit and writes 8.
    """
    constants = _constants(gpu, weights)
    compute_ns, bytes_ns = roofline_ns(gpu, weights, rows, n, k)
    tiles = np.ceil(rows / TILE) * np.ceil(n / TILE)
    waves = np.ceil(tiles / gpu.sm_count) if gpu.sm_count else np.ones(len(rows))
    serial_ns = constants["serial_ns_per_k"] * k * waves
    busy_ns = np.maximum(compute_ns / constants["compute_eff"], serial_ns)
    moved_ns = bytes_ns / constants["mem_eff"]
    p = constants["p"]
    ns = constants["t0_us"] * NS_PER_US + (busy_ns**p + moved_ns**p) ** (1 / p)
    if weights.kernel == "fp8" and not weights.weight_only:
        rate = constants["quant_stage_bw_eff"] * gpu.hbm_bytes_per_s
        ns = ns + rows * (3.0 * k) / rate * NS_PER_S
    return np.asarray(ns, np.float64)


def _constants(gpu: GpuSpec, weights: WeightFormat) -> Fit:
    return fit("gemm", gpu, "bfloat16" if weights.weight_only else weights.kernel)


def _physical_part(component: str, gpu: GpuSpec, weights: WeightFormat) -> Part:
    notes = (weights.note, _constants(gpu, weights).origin)
    return Part(component, "hbm", "physical", "; ".join(note for note in notes if note))
