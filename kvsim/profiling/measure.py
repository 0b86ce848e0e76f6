"""Goes through the shapes on a device: times what it can, and says what it can't."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from textwrap import shorten

from kvsim.errors import InputError
from kvsim.profiling.collectives import KERNELS, time_all_reduces
from kvsim.profiling.device import Device
from kvsim.profiling.kernels import work_of
from kvsim.profiling.shapes import AllReduce, AttentionCall, Copy, Gemm, Shape
from kvsim.profiling.tables import Row, row_of, table_of
from kvsim.units import format_bytes

REASON_WIDTH = 160
Told = Callable[[int], None]  # how many shapes are done


@dataclass(frozen=True, slots=True)
class Measured:
    """Rows by table, and why other shapes have none: (table, reason) with their number."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, shape: Shape, row: Row) -> None:
        """Append a row to its table."""
        self.rows.setdefault(table_of(shape), []).append(row)

    def refuse(self, shape: Shape, reason: object) -> None:
        """Count a shape that has no row; torch's reasons are long, their beginning is kept."""
        lines = str(reason).strip().splitlines() or ["no reason given"]
        self.refused[table_of(shape), shorten(lines[0], REASON_WIDTH, placeholder=" ...")] += 1


def measure(shapes: Sequence[Shape], device: Device, told: Told = lambda done: None) -> Measured:
    """Time the shapes, in their order.

    Raises:
        InputError: Nothing at all could be timed, or the GPU failed and takes no more work.
    """
    measured = Measured()
    alone = [shape for shape in shapes if not isinstance(shape, AllReduce)]
    for done, shape in enumerate(alone):
        told(done)
        if shape.working_bytes > device.usable_bytes:
            size = format_bytes(device.usable_bytes)
            measured.refuse(shape, f"takes more than the {size} of memory that can be used")
            continue
        try:
            kernel, latency_us = _time(shape, device)
        except (RuntimeError, ValueError) as error:  # torch says no in either way
            _refuse_dead_gpu(device, error)
            measured.refuse(shape, error)
        else:
            measured.add(shape, row_of(shape, kernel, latency_us, device))
    told(len(alone))
    _measure_all_reduces([s for s in shapes if isinstance(s, AllReduce)], device, measured)
    told(len(shapes))
    if not measured.rows:
        reasons = (f"{table}: {reason}" for table, reason in measured.refused)
        raise InputError("nothing could be timed", *reasons)
    return measured


def _time(shape: Gemm | AttentionCall | Copy, device: Device) -> tuple[str, float]:
    """Return the kernel and its time in µs; what it took is free again afterwards."""
    work = work_of(device, shape)
    return work.kernel, device.timer.median_us(work.calls)


def _measure_all_reduces(shapes: list[AllReduce], device: Device, measured: Measured) -> None:
    if not shapes:
        return
    if device.kind == "cuda":
        device.torch.cuda.empty_cache()  # the other processes need room on this GPU too
    try:
        times = time_all_reduces(device, shapes)
    except RuntimeError as error:
        for shape in shapes:
            measured.refuse(shape, error)
        return
    for shape, latency_us in zip(shapes, times, strict=True):
        measured.add(shape, row_of(shape, KERNELS[device.kind], latency_us, device))


def _refuse_dead_gpu(device: Device, error: Exception) -> None:
    """Tell a shape that is refused from a CUDA error, after which every call fails."""
    if isinstance(error, device.torch.AcceleratorError):
        raise InputError(f"the GPU failed, nothing is written: {error}") from error
