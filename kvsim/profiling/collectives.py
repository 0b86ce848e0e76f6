"""All-reduces over the GPUs of one machine, a process a GPU."""

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kvsim.profiling.device import Device, Kind
from kvsim.profiling.shapes import AllReduce
from kvsim.profiling.timing import CpuTimer, CudaTimer, Timer

KERNELS = {"cuda": "torch_distributed_nccl", "cpu": "torch_distributed_gloo"}
_REPLAYS = 4  # the same on all ranks, which wait for one another


def time_all_reduces(device: Device, shapes: Sequence[AllReduce]) -> list[float]:
    """Return the time of each, in µs, as the first of the GPUs saw it.

    Raises:
        RuntimeError: There are fewer GPUs, or they don't get to one another.
    """
    (world_size,) = {shape.world_size for shape in shapes}
    if device.kind == "cuda" and device.num_gpus < world_size:
        raise RuntimeError(f"all-reduce over {world_size} GPUs: {device.num_gpus} here")
    from torch.multiprocessing.spawn import ProcessException, spawn

    with tempfile.TemporaryDirectory() as folder:
        sizes = [shape.size_bytes for shape in shapes]
        arguments = (world_size, device.kind, sizes, folder)
        try:
            spawn(_rank, args=arguments, nprocs=world_size)
        except ProcessException as error:  # its last line is the error of the process
            reason = str(error).strip().splitlines()[-1]
            raise RuntimeError(f"all-reduce over {world_size} GPUs failed: {reason}") from error
        times: list[float] = json.loads((Path(folder) / "us.json").read_text(encoding="utf-8"))
    return times


def _rank(rank: int, world_size: int, kind: Kind, sizes: list[int], folder: str) -> None:
    """Time all sizes together with the other ranks; the first one writes the result down."""
    import torch
    import torch.distributed as dist

    timer: Timer = CpuTimer()
    if kind == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(rank)
        timer = CudaTimer(torch, replays=_REPLAYS)
    backend = "nccl" if kind == "cuda" else "gloo"
    meeting = (Path(folder) / "meeting").as_uri()
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world_size)
    try:
        times = []
        for size_bytes in sizes:
            tensor = torch.zeros(size_bytes // 2, dtype=torch.bfloat16, device=kind)
            times.append(timer.median_us([partial(dist.all_reduce, tensor)]))
        if rank == 0:
            (Path(folder) / "us.json").write_text(json.dumps(times), encoding="utf-8")
        dist.barrier()
    finally:
        dist.destroy_process_group()
