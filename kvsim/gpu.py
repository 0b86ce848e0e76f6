"""GPUs: a catalog of public figures, prices with their source, GPUs that the user describes."""

import csv
import hashlib
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from kvsim.copies import found_at
from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.policy import Parameters

_DATA = Path(str(resources.files("kvsim"))) / "data"

Bytes = Annotated[float, Field(ge=1e6, le=1e14)]
PeakRate = Annotated[float, Field(ge=1e6, le=1e18)]  # bytes or FLOP per second


@dataclass(frozen=True, slots=True)
class KernelFile:
    """Kernel timings of a user's own: the path as written, where the file lies, what is in it."""

    file: str
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """What a GPU can do at best. Rates are peaks without sparsity; None: unknown or not offered.

    Links count one direction. `pcie_bytes_per_s` is the link to the host, NVLink-C2C included.
    """

    name: str
    hbm_bytes: int  # nominal
    hbm_bytes_per_s: float
    bf16_flop_per_s: float  # fp16 where the GPU has no bf16
    usable_hbm_bytes: int | None = None  # what an engine sees; None: unknown
    fp8_flop_per_s: float | None = None
    fp4_flop_per_s: float | None = None
    sm_arch: int | None = None  # compute capability without its dot: 90 is Hopper
    sm_count: int | None = None
    link_bytes_per_s: float | None = None  # to another GPU of the node
    pcie_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None  # to a GPU of another node
    source: str = "given by the user"
    kernels: KernelFile | None = None  # None: those that ship, if it was measured

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, ready for JSON; kernels of its own by their content."""
        facts = asdict(self)
        del facts["kernels"]
        if self.kernels is not None:
            facts["kernels"] = {"file": self.kernels.file, "sha256": self.kernels.sha256}
        return facts


class CustomGpu(Parameters):
    """A GPU of the user's own, by a handful of numbers; the rest stays unknown."""

    name: str = Field(min_length=1)
    """Any name that the catalog does not have."""
    hbm_bytes: Bytes
    """Memory, nominal."""
    hbm_bytes_per_s: PeakRate
    """Memory bandwidth."""
    bf16_flop_per_s: PeakRate
    """Dense bf16 peak."""
    usable_hbm_bytes: Bytes | None = None
    """Memory that an engine sees."""
    fp8_flop_per_s: PeakRate | None = None
    """Dense fp8 peak."""
    fp4_flop_per_s: PeakRate | None = None
    """Dense fp4 peak."""
    sm_arch: int | None = Field(default=None, ge=1, le=1000)
    """Compute capability without its dot (90: Hopper): kernels take the constants measured on it;
    null: the median over the architectures that were measured."""
    sm_count: int | None = Field(default=None, ge=1, le=10**5)
    """Streaming multiprocessors."""
    link_bytes_per_s: PeakRate | None = None
    """To another GPU, one direction."""
    pcie_bytes_per_s: PeakRate | None = None
    """To the host, one direction."""
    network_bytes_per_s: PeakRate | None = None
    """To a GPU of another node, one direction."""
    kernels: str | None = Field(default=None, min_length=1)
    """Its kernel timings: a file beside this one that `kvsim calibrate --kernels` packed; null:
    physical forms price them."""
    _base_dir: Path = PrivateAttr(default=Path())

    def model_post_init(self, context: Any, /) -> None:
        """Remember the folder of the scenario file."""
        self._base_dir = Path((context or {}).get("base_dir", "."))

    @field_validator("name")
    @classmethod
    def _is_a_name_of_its_own(cls, name: str) -> str:
        if name in gpu_names():
            raise ValueError(f"'{name}' is a GPU of the catalog: choose another name")
        if not name.isprintable():
            raise ValueError(f"{name!r} has characters that don't print")
        return name

    @model_validator(mode="after")
    def _no_more_is_usable_than_there_is(self) -> Self:
        if self.usable_hbm_bytes is not None and self.usable_hbm_bytes > self.hbm_bytes:
            raise ValueError("usable_hbm_bytes is above hbm_bytes")
        return self

    def spec(self) -> GpuSpec:
        """Return the GPU as the rest of the simulator sees it.

        Raises:
            InputError: The file of its kernels can't be read.
        """
        values = self.model_dump()
        sizes = ("hbm_bytes", "usable_hbm_bytes")
        whole = {key: values[key] and int(values[key]) for key in sizes}
        return GpuSpec(**values | whole | {"kernels": self._kernel_file()})

    def _kernel_file(self) -> KernelFile | None:
        if self.kernels is None:
            return None
        path = found_at(self._base_dir / self.kernels)
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            what = f"{path} can't be read: {reason}"
            raise InputError(Problem(what, path="gpu.kernels")) from error
        return KernelFile(self.kernels, path, digest)


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of one GPU costs, in which range, and who says so."""

    usd_per_gpu_hour: float
    low: float
    high: float
    as_of: str
    source: str


def gpu_names() -> list[str]:
    """Return the names in the catalog, in its order."""
    return list(_catalog())


def load_gpu(name: str) -> GpuSpec:
    """Return a GPU of the catalog by its name, in any case; another is never put in its place.

    Raises:
        InputError: The catalog has no such GPU; names those that come close.
    """
    if name.lower() in _catalog():
        return _catalog()[name.lower()]
    hint = did_you_mean(name, gpu_names(), at_most=3) or f"; known are {', '.join(gpu_names())}"
    raise InputError(f"GPU '{name}' is not in the catalog{hint}")


def price_of(gpu_name: str) -> Price | None:
    """Return the price of a GPU, or None where none is known."""
    for row in _rows("prices.csv"):
        if row["gpu"] == gpu_name:
            usd, low, high = (float(row[key]) for key in ("usd_per_gpu_hour", "low", "high"))
            return Price(usd, low, high, row["as_of"], row["source"])
    return None


@cache
def _rows(name: str) -> list[dict[str, str]]:
    with (_DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def _catalog() -> dict[str, GpuSpec]:
    return {row["gpu"]: _spec(row) for row in _rows("gpus.csv")}


def _spec(row: dict[str, str]) -> GpuSpec:
    def number(key: str) -> float | None:
        return float(row[key]) if row[key] else None

    def whole(key: str) -> int | None:
        return int(row[key]) if row[key] else None

    return GpuSpec(
        name=row["gpu"],
        hbm_bytes=int(row["hbm_bytes"]),
        usable_hbm_bytes=whole("usable_hbm_bytes"),
        hbm_bytes_per_s=float(row["hbm_bw_Bps"]),
        bf16_flop_per_s=float(row["bf16_flops"]),
        fp8_flop_per_s=number("fp8_flops"),
        fp4_flop_per_s=number("fp4_flops"),
        sm_arch=whole("sm_arch"),
        sm_count=whole("sm_count"),
        link_bytes_per_s=number("intra_node_bw_Bps_per_dir"),
        pcie_bytes_per_s=number("pcie_or_c2c_bw_Bps_per_dir"),
        network_bytes_per_s=number("inter_node_bw_Bps_per_dir"),
        source=row["source"],
    )
