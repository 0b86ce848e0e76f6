"""What the kernels are priced from: a GPU's measured arrays, and constants fitted on all GPUs."""

import csv
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.cost import Basis, Bound, Part
from kvsim.errors import InputError, Problem
from kvsim.gpu import GpuSpec, KernelFile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TICKS_PER_NS = 1024
TICK_THRESHOLD = 2**0.5 - 1

_DATA = Path(str(resources.files("kvsim"))) / "data" / "kernels"


@dataclass(frozen=True, slots=True)
class Curve:
    """Nanoseconds of one part of the iteration, indexed by the integer that it depends on."""

    part: Part
    ns: Floats


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants of a physical form, and whose measurements they were fitted on."""

    values: Mapping[str, float]
    own: bool
    origin: str

    def __getitem__(self, name: str) -> float:
        value = self.values[name]
        if math.isnan(value):
            raise LookupError(f"{self.origin}: {name} was not fitted")
        return value

    @property
    def basis(self) -> Basis:
        """A form fitted on the GPU's own rows interpolates them; another GPU's is only physics."""
        return "interpolated" if self.own else "physical"


def load_arrays(gpu: GpuSpec) -> Mapping[str, NDArray[Any]]:
    """Return the measured arrays of a GPU by name, none if nobody measured it.

    `gemm/DTYPE/us` has the shape [m, n, k], with its axes beside it; `prefill/KV_DTYPE/HEAD_DIM/us`
    [heads, tokens]; `moe/DTYPE/ROUTING/us` [shapes, tokens]; `COLLECTIVE/GPUS/us` and
    `send_recv/PLACE/us` [bytes]; `deepep/GPUS/MODE/us` [shapes, tokens]; `dynamic_scale/us` [m, k].
    Latencies in µs, NaN where nothing was measured.

    Raises:
        InputError: The GPU names a file of its own, and that holds no kernel timings.
    """
    return _arrays(gpu.name) if gpu.kernels is None else _own_arrays(gpu.kernels)


def fit(form: str, gpu: GpuSpec, dtype: str = "") -> Fit:
    """Return the constants of a physical form for a GPU.

    They are the GPU's own if it was measured, else those of a GPU of the same compute capability
    (same kernels, same efficiency), else the median over the measured architectures, of which
    each counts once. A dtype that was not measured on an architecture takes its bf16 constants,
    and the median for a constant that bf16 has no need of.

    Args:
        form: Which one; its constants are in `fit_FORM.csv`.
        gpu: The GPU.
        dtype: Second key: dtype, shape of attention, or number of GPUs of an all-reduce.
    """
    rows = _fit_rows(form)
    wanted = [row for row in rows if row.dtype == dtype]
    if not wanted:
        raise LookupError(f"no {form} was fitted for {dtype}")
    middle = _median_over_architectures(wanted)
    for key in dict.fromkeys((dtype, "bfloat16")):
        of_dtype = [row for row in rows if row.dtype == key]
        own = [row for row in of_dtype if row.gpu == gpu.name]
        siblings = [row for row in of_dtype if row.architecture == _architecture(gpu.sm_arch)]
        if own or siblings:
            near = (own or siblings)[0]
            values = near.values if key == dtype else _filled(near.values, middle)
            origin = "form fitted on" if own else "form with the constants of"
            return Fit(values, bool(own) and key == dtype, f"{origin} {near.gpu}")
    return Fit(middle, False, "form with median constants")


def fitted_dtypes(form: str) -> set[str]:
    """Return the dtypes (or shapes) that a form was fitted for on any GPU."""
    return {row.dtype for row in _fit_rows(form)}


def whole_ticks(ns: Floats | float) -> Floats:
    """Round times to multiples of 2^-10 ns, so that an iteration lasts as long on any computer.

    The last bits of a power or a logarithm depend on the processor. Rounded to ticks, entries agree
    (but for one in some hundred thousand, which is a tick off), and their sums and products with
    integers are exact in any order (53 bits hold two hours of ticks). One in thirty measured
    latencies lies halfway between two ticks, where the last bit would decide after all: hence a
    threshold that is no fraction.
    """
    return np.asarray(np.floor(np.multiply(ns, TICKS_PER_NS) + TICK_THRESHOLD) / TICKS_PER_NS)


def log_interpolate(at: Ints | Floats, grid: NDArray[np.generic], values: Floats) -> Floats:
    """Interpolate along a line in log-log; constant below the grid, proportional beyond it.

    The arguments must be positive. Points of the grid without a value (NaN) are skipped.
    """
    known = np.isfinite(values)
    x, y = np.asarray(grid, np.float64)[known], np.asarray(values, np.float64)[known]
    inside = np.exp(np.interp(np.log(at), np.log(x), np.log(y)))
    return np.asarray(inside * np.maximum(at / x[-1], 1.0), np.float64)


def two_nearest(points: Floats, target: Floats) -> list[tuple[int, float]]:
    """Return the two rows of `points` nearest to the target in log space, and their weights."""
    return nearest(points, target, 2)


def nearest(points: Floats, target: Floats, count: int) -> list[tuple[int, float]]:
    """Return the rows of `points` nearest to the target in log space, and their weights.

    The weights are inverse to the distance and sum to one; an exact hit has all of it.
    """
    distances = np.linalg.norm(np.log(points) - np.log(target), axis=1)
    rows = np.argsort(distances, kind="stable")[:count]
    if distances[rows[0]] == 0 or len(rows) == 1:
        return [(int(rows[0]), 1.0)]
    weights = 1 / distances[rows]
    return [(int(i), float(w)) for i, w in zip(rows, weights / weights.sum(), strict=True)]


def split_by_bound(
    component: str, ns: Floats, compute: NDArray[np.bool_], why: Part
) -> list[Curve]:
    """Return the two curves that a component splits into: where FLOPs bound it, and where bytes."""
    bounds: tuple[tuple[Bound, NDArray[np.bool_]], ...] = (("compute", compute), ("hbm", ~compute))
    return [
        Curve(Part(component, bound, why.basis, why.note), np.where(where, ns, 0.0))
        for bound, where in bounds
    ]


@dataclass(frozen=True, slots=True)
class _FitRow:
    gpu: str
    architecture: int | None
    dtype: str
    values: Mapping[str, float]


@cache
def measured_gpus() -> frozenset[str]:
    """Return the names of the GPUs whose kernels were timed."""
    return frozenset(path.stem for path in _DATA.glob("*.npz"))


@cache
def _arrays(gpu_name: str) -> Mapping[str, NDArray[Any]]:
    if gpu_name not in measured_gpus():
        return {}
    return _Packed((_DATA / f"{gpu_name}.npz").read_bytes())


class _Packed(Mapping[str, NDArray[Any]]):
    """Arrays of a packed file, each unpacked when it is first asked for: few models need all."""

    def __init__(self, packed: bytes) -> None:
        self._file = np.load(BytesIO(packed))
        self._unpacked: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._unpacked:
            self._unpacked[name] = self._file[name]
        return self._unpacked[name]

    def __contains__(self, name: object) -> bool:
        return name in self._file.files

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.files)

    def __len__(self) -> int:
        return len(self._file.files)


@cache
def _own_arrays(kernels: KernelFile) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of a user's file; remembered by its content."""
    try:
        with kernels.path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(_no_timings(kernels)) from error
    if not any(name.endswith("/us") for name in found):
        raise InputError(_no_timings(kernels))
    return found


def _no_timings(kernels: KernelFile) -> Problem:
    what = "is no file of kernel timings, as `kvsim calibrate --kernels` packs them"
    return Problem(f"{kernels.path} {what}", path="gpu.kernels")


@cache
def _fit_rows(form: str) -> list[_FitRow]:
    with (_DATA / f"fit_{form}.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    keys = ("gpu", "sm_arch", "dtype", "kv_dtype", "world_size")
    rows = []
    for row in table:
        dtype = row.get("dtype") or row.get("kv_dtype") or row["world_size"]
        values = {name: float(cell or "nan") for name, cell in row.items() if name not in keys}
        rows.append(_FitRow(row["gpu"], _architecture(int(row["sm_arch"])), dtype, values))
    return rows


def _architecture(sm_arch: int | None) -> int | None:
    """Data-center Blackwell (100 and 103) is one architecture; older ones differ in each number."""
    return 100 if sm_arch == 103 else sm_arch


def _filled(values: Mapping[str, float], middle: Mapping[str, float]) -> Mapping[str, float]:
    return {name: middle[name] if math.isnan(value) else value for name, value in values.items()}


def _median_over_architectures(rows: list[_FitRow]) -> Mapping[str, float]:
    groups: dict[int | None, list[_FitRow]] = {}
    for row in rows:
        groups.setdefault(row.architecture, []).append(row)
    return {
        name: median(median(row.values[name] for row in group) for group in groups.values())
        for name in rows[0].values
    }
