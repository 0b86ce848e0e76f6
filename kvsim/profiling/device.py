"""The device that is measured: a CUDA GPU, or the CPU for trying the format."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from kvsim.errors import InputError
from kvsim.profiling.timing import CpuTimer, CudaTimer, Timer
from kvsim.units import GIB

Kind = Literal["cuda", "cpu"]
CPU = "cpu"  # in the column `gpu`: no GPU has this name, so nothing is priced from such rows
_FP8_CAPABILITY = (8, 9)  # Ada and newer multiply fp8
_USED_FRACTION = 0.8  # of the free memory: the rest is for graphs and the allocator
_CPU_MEMORY_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True)
class Device:
    """A device, and torch on it.

    Attributes:
        torch: The module.
        kind: `cuda` or `cpu`, as torch names it.
        name: Value of the column `gpu`.
        full_name: As the device calls itself.
        timer: Takes the time.
        cache_bytes: L2 cache, 0 where cold operands don't matter.
        usable_bytes: Memory that operands may take.
        has_fp8: Whether it multiplies fp8.
        num_gpus: Devices of this kind.
    """

    torch: Any
    kind: Kind
    name: str
    full_name: str
    timer: Timer
    cache_bytes: int
    usable_bytes: int
    has_fp8: bool
    num_gpus: int


def open_device(kind: Kind, name: str | None = None) -> Device:
    """Import torch and return the device.

    Args:
        kind: `cuda` or `cpu`.
        name: What to call the GPU in the tables, by default what the driver calls it.

    Raises:
        InputError: torch is not installed, there is no CUDA GPU, or the name can't be had.
    """
    torch = _import_torch()
    if kind == CPU:
        if name not in {None, CPU}:
            raise InputError("--name: what is timed on a CPU is always called 'cpu' in the tables")
        torch.set_num_threads(1)  # what others do on the machine disturbs a single thread least
        return Device(torch, kind, CPU, CPU, CpuTimer(), 0, _CPU_MEMORY_BYTES, True, 1)
    if not torch.cuda.is_available():
        raise InputError(
            f"no CUDA GPU: torch {torch.__version__} finds none; --device cpu tries out the "
            "format, and its tables can't be used for prices"
        )
    about = torch.cuda.get_device_properties(0)
    return Device(
        torch,
        kind,
        _checked(name) if name else _slug(about.name),
        about.name,
        CudaTimer(torch),
        about.L2_cache_size,
        int(torch.cuda.mem_get_info(0)[0] * _USED_FRACTION),
        torch.cuda.get_device_capability(0) >= _FP8_CAPABILITY,
        torch.cuda.device_count(),
    )


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise InputError(
            "kvsim profile needs torch, which is not installed: pip install 'kvsim[profile]'"
        ) from error
    return torch


def _checked(name: str) -> str:
    if name == CPU or not re.fullmatch(r"\w+", name, flags=re.ASCII):
        raise InputError(f"--name {name!r}: use letters, digits and '_', and not 'cpu'")
    return name


def _slug(name: str) -> str:
    """Turn `NVIDIA H100 80GB HBM3` into `nvidia_h100_80gb_hbm3`."""
    return re.sub(r"\W+", "_", name.lower(), flags=re.ASCII).strip("_")
