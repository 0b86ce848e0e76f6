"""Communication between the GPUs of a server, by bytes."""

from typing import Literal

import numpy as np

from kvsim.cost import Basis, Part
from kvsim.cost.tables import Curve, Fit, Floats, fit, load_arrays, log_interpolate, two_nearest
from kvsim.errors import InputError, Problem
from kvsim.gpu import GpuSpec, load_gpu
from kvsim.units import NS_PER_S, NS_PER_US

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
DeepEpMode = Literal["normal", "low_latency"]

FITTED_WORLDS = (2, 4, 8)
# GPUs without measurements take the latency and efficiency of these. The other GPU measured over
# PCIe, L40S, is no model for others: four of them reach 4 GB/s.
LIKE_NVLINK, LIKE_PCIE = "h100_sxm", "rtx_pro_6000_server"
NVLINK_BYTES_PER_S = 100e9  # the slowest NVLink switch or mesh is faster, PCIe 5.0 is slower
GATHER_LATENCY_NS = 15e3  # assumed in the data set's recommendation, not measured
HOP_LATENCY_NS = 10e3  # of a copy from one pipeline stage to the next, from the same source
# All-reduce of the whole tensor is a reduce-scatter and an all-gather.
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
# A table far below what its own link does between two GPUs: it tells of the machine as well.
SLOW_TABLES = {("l40s", 4), ("l40s", 8)}
SLOW = "the machine that was measured is far slower among 4 and 8 of these GPUs than among 2"
OVER_PCIE = "over PCIe, where a whole engine was seen to take twice as long as the collective alone"


def collective_curve(
    op: Collective, gpu: GpuSpec, gpus: int, size_bytes: Floats, times: int = 1
) -> Curve:
    """Price `times` collectives of each size.

    The GPU's table is interpolated in log-log: all-reduces as vLLM's own kernel replayed in a CUDA
    graph, the others as NCCL's. Without one, alpha + bytes/bus bandwidth, where a ring moves
    (g-1)/g of the bytes through each GPU's link, an all-reduce twice.

    Args:
        op: The collective.
        gpu: The GPU.
        gpus: How many of them take part.
        size_bytes: Bytes of the whole tensor: what all have after an all-gather or all-reduce,
            what each has before a reduce-scatter or all-to-all. None cost nothing.
        times: How often it happens in an iteration.

    Raises:
        InputError: Nothing is known about the link between the GPUs.
    """
    arrays, name = load_arrays(gpu), f"{op}/{gpus}"
    if f"{name}/us" in arrays:
        ns = _from_table(gpu, name, size_bytes)
        return Curve(
            _part("measured", _doubt(gpu, gpus)), np.where(size_bytes > 0, ns * times, 0.0)
        )
    constants, like = _constants(op, gpu, gpus)
    rate = constants["bus_eff"] * _link_bytes_per_s(gpu)
    moved_bytes = size_bytes * (PASSES[op] * (gpus - 1) / gpus)
    ns = constants["alpha_us"] * NS_PER_US + moved_bytes / rate * NS_PER_S
    notes = (f"{op.replace('_', '-')} as on {like}", _doubt(gpu, gpus))
    part = _part("physical", "; ".join(note for note in notes if note))
    return Curve(part, np.where(size_bytes > 0, ns * times, 0.0))


def gather_curve(gpu: GpuSpec, size_bytes: Floats) -> Curve:
    """Price the gather of sharded logits: 15 µs and its bytes over the link (an assumption)."""
    ns = GATHER_LATENCY_NS + size_bytes / _link_bytes_per_s(gpu) * NS_PER_S
    return Curve(_part("physical", "logits gather: assumed"), np.where(size_bytes > 0, ns, 0.0))


def hop_curve(gpu: GpuSpec, size_bytes: Floats, between_nodes: bool) -> Curve:
    """Price a copy from a GPU to one of the next pipeline stage: table, or 10 µs and its bytes.

    Raises:
        InputError: Nothing is known about the link, or the network between nodes.
    """
    name = "send_recv/network" if between_nodes else "send_recv/node"
    if f"{name}/us" in load_arrays(gpu):
        ns, part = _from_table(gpu, name, size_bytes), _part("measured")
    else:
        rate = _network_bytes_per_s(gpu) if between_nodes else _link_bytes_per_s(gpu)
        ns = HOP_LATENCY_NS + size_bytes / rate * NS_PER_S
        where = "between nodes" if between_nodes else "in a node"
        part = _part("physical", f"pipeline hop {where}: 10 µs and its bytes")
    return Curve(part, np.where(size_bytes > 0, ns, 0.0))


def deepep_curve(
    gpu: GpuSpec, gpus: int, mode: DeepEpMode, tokens: Floats, sizes: tuple[int, int, int]
) -> Curve:
    """Price DeepEP's dispatch of tokens to their experts, and the combination of the results.

    Args:
        gpu: The GPU.
        gpus: GPUs that the experts are dealt out to.
        mode: DeepEP's kernels: `normal` for throughput, or `low_latency`.
        tokens: Tokens of one GPU.
        sizes: Hidden size, experts of a token, experts. Sizes that were not measured take the time
            of the nearest ones, in proportion to the bytes of a token.

    Raises:
        InputError: It was not measured among so many of these GPUs.
    """
    arrays, name = load_arrays(gpu), f"deepep/{gpus}/{mode}"
    if f"{name}/us" not in arrays:
        what = f"DeepEP was not measured among {gpus} {gpu.name}; use allgather_reducescatter"
        raise InputError(Problem(what, path="engine.all2all_backend"))
    measured, grid = arrays[f"{name}/us"].astype(np.float64), arrays[f"{name}/tokens"]
    shapes = arrays[f"{name}/shapes"].astype(np.float64)
    ns = np.zeros(len(tokens))
    found = two_nearest(shapes, np.array(sizes, np.float64))
    for index, weight in found:
        bytes_ratio = sizes[0] * sizes[1] / (shapes[index, 0] * shapes[index, 1])
        us = log_interpolate(np.maximum(tokens, 1.0), grid, measured[index])
        ns += weight * bytes_ratio * us * NS_PER_US
    part = _part("measured") if len(found) == 1 else _part("extrapolated", "DeepEP: nearest sizes")
    return Curve(part, np.where(tokens > 0, ns, 0.0))


def _part(basis: Basis, note: str = "") -> Part:
    return Part("communication", "communication", basis, note)


def _doubt(gpu: GpuSpec, gpus: int) -> str:
    """Say why an engine may differ from the price of a collective among these GPUs."""
    if (gpu.name, gpus) in SLOW_TABLES:
        return SLOW
    is_pcie = (gpu.link_bytes_per_s or 0.0) <= (gpu.pcie_bytes_per_s or 0.0)
    return OVER_PCIE if is_pcie else ""


def _from_table(gpu: GpuSpec, name: str, size_bytes: Floats) -> Floats:
    arrays = load_arrays(gpu)
    table = arrays[f"{name}/us"].astype(np.float64)
    return log_interpolate(np.maximum(size_bytes, 1.0), arrays[f"{name}/bytes"], table) * NS_PER_US


def _constants(op: Collective, gpu: GpuSpec, gpus: int) -> tuple[Fit, str]:
    link_bytes_per_s = _link_bytes_per_s(gpu)
    like = LIKE_NVLINK if link_bytes_per_s >= NVLINK_BYTES_PER_S else LIKE_PCIE
    world = min(FITTED_WORLDS, key=lambda fitted: abs(fitted - gpus))
    return fit(op, load_gpu(like), str(world)), like


def _link_bytes_per_s(gpu: GpuSpec) -> float:
    rate = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s
    if rate is None:
        needs = f"GPU '{gpu.name}': more than one needs link_bytes_per_s or pcie_bytes_per_s"
        raise InputError(Problem(needs, path="gpu"))
    return rate


def _network_bytes_per_s(gpu: GpuSpec) -> float:
    if gpu.network_bytes_per_s is None:
        needs = f"GPU '{gpu.name}': stages on several nodes need network_bytes_per_s"
        raise InputError(Problem(needs, path="gpu"))
    return gpu.network_bytes_per_s
