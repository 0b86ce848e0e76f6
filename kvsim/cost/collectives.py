"""All-reduce between the GPUs of a replica, by bytes."""

import numpy as np

from kvsim.cost import Part
from kvsim.cost.tables import Curve, Floats, fit, load_arrays, log_interpolate
from kvsim.errors import InputError, Problem
from kvsim.gpu import GpuSpec, load_gpu
from kvsim.units import NS_PER_S, NS_PER_US

FITTED_WORLDS = (2, 4, 8)
# GPUs without measurements take the latency and efficiency of these. The other GPU measured over
# PCIe, L40S, is no model for others: four of them reach 4 GB/s.
LIKE_NVLINK, LIKE_PCIE = "h100_sxm", "rtx_pro_6000_server"
NVLINK_BYTES_PER_S = 100e9  # the slowest NVLink switch or mesh is faster, PCIe 5.0 is slower
GATHER_LATENCY_NS = 15e3  # assumed in the data set's recommendation, not measured


def all_reduce_curve(gpu: GpuSpec, gpus: int, size_bytes: Floats, times: int = 1) -> Curve:
    """Price `times` all-reduces of each size, replayed in a CUDA graph.

    The GPU's table is interpolated in log-log. Without one, alpha + bytes/bus bandwidth, where
    a ring moves 2·(g-1)/g of the bytes through each GPU's link.

    Raises:
        InputError: Nothing is known about the link between the GPUs.
    """
    arrays = load_arrays(gpu)
    if f"all_reduce/{gpus}/us" in arrays:
        grid, table = arrays[f"all_reduce/{gpus}/bytes"], arrays[f"all_reduce/{gpus}/us"]
        ns = log_interpolate(np.maximum(size_bytes, 1.0), grid, table.astype(np.float64))
        part = Part("communication", "communication", "measured")
        return Curve(part, np.where(size_bytes > 0, ns * NS_PER_US * times, 0.0))
    link_bytes_per_s = _link_bytes_per_s(gpu)
    like = LIKE_NVLINK if link_bytes_per_s >= NVLINK_BYTES_PER_S else LIKE_PCIE
    world = min(FITTED_WORLDS, key=lambda fitted: abs(fitted - gpus))
    constants = fit("all_reduce", load_gpu(like), str(world))
    rate = constants["bus_eff"] * link_bytes_per_s
    ns = constants["alpha_us"] * NS_PER_US + size_bytes * (2 * (gpus - 1) / gpus) / rate * NS_PER_S
    part = Part("communication", "communication", "physical", f"all-reduce as on {like}")
    return Curve(part, np.where(size_bytes > 0, ns * times, 0.0))


def gather_curve(gpu: GpuSpec, size_bytes: Floats) -> Curve:
    """Price the gather of sharded logits: 15 µs and its bytes over the link (an assumption)."""
    ns = GATHER_LATENCY_NS + size_bytes / _link_bytes_per_s(gpu) * NS_PER_S
    part = Part("communication", "communication", "physical", "logits gather: assumed")
    return Curve(part, np.where(size_bytes > 0, ns, 0.0))


def _link_bytes_per_s(gpu: GpuSpec) -> float:
    rate = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s
    if rate is None:
        needs = f"GPU '{gpu.name}': tensor parallelism needs link_bytes_per_s or pcie_bytes_per_s"
        raise InputError(Problem(needs, path="gpu"))
    return rate
