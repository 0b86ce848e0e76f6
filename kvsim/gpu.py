"""GPUs: a catalogue of public figures, prices with their source, GPUs that the user describes."""

import csv
import difflib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, field_validator

from kvsim.errors import InputError
from kvsim.units import MIB

_DATA = Path(str(resources.files("kvsim"))) / "data"


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
    int8_op_per_s: float | None = None
    fp4_flop_per_s: float | None = None
    sm_arch: int | None = None  # compute capability without its dot: 90 is Hopper
    sm_count: int | None = None
    l2_bytes: int | None = None
    power_w: float | None = None
    gpus_per_node: int | None = None
    link_bytes_per_s: float | None = None  # to another GPU of the node
    inter_node_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None
    p2p_latency_s: float | None = None
    source: str = "given by the user"


class CustomGpu(BaseModel):
    """A GPU of the user's own, by a handful of numbers; the rest stays unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str = Field(min_length=1, description="any name that the catalogue does not have")
    hbm_bytes: PositiveFloat = Field(description="memory, nominal")
    hbm_bytes_per_s: PositiveFloat = Field(description="memory bandwidth")
    bf16_flop_per_s: PositiveFloat = Field(description="dense bf16 peak")
    usable_hbm_bytes: PositiveFloat | None = Field(None, description="memory that an engine sees")
    fp8_flop_per_s: PositiveFloat | None = Field(None, description="dense fp8 peak")
    int8_op_per_s: PositiveFloat | None = Field(None, description="dense int8 peak")
    fp4_flop_per_s: PositiveFloat | None = Field(None, description="dense fp4 peak")
    sm_count: PositiveInt | None = Field(None, description="streaming multiprocessors")
    l2_bytes: PositiveFloat | None = Field(None, description="L2 cache")
    link_bytes_per_s: PositiveFloat | None = Field(
        None, description="to another GPU, one direction"
    )
    pcie_bytes_per_s: PositiveFloat | None = Field(None, description="to the host, one direction")
    p2p_latency_s: PositiveFloat | None = Field(None, description="latency between two GPUs")

    @field_validator("name")
    @classmethod
    def _is_no_catalogue_name(cls, name: str) -> str:
        if name in gpu_names():
            raise ValueError(f"'{name}' is a GPU of the catalogue: choose another name")
        return name

    def spec(self) -> GpuSpec:
        """Return the GPU as the rest of the simulator sees it."""
        values = self.model_dump()
        sizes = ("hbm_bytes", "usable_hbm_bytes", "l2_bytes")
        return GpuSpec(**values | {key: values[key] and int(values[key]) for key in sizes})


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of one GPU costs, and who says so."""

    usd_per_gpu_hour: float
    low: float
    high: float
    as_of: str
    source: str


def gpu_names() -> list[str]:
    """Return the names in the catalogue, in its order."""
    return list(_catalogue())


def load_gpu(name: str) -> GpuSpec:
    """Return a GPU of the catalogue by its exact name; another is never put in its place.

    Raises:
        InputError: The catalogue has no such GPU; names those that come close.
    """
    if name in _catalogue():
        return _catalogue()[name]
    wanted = name.lower().replace("-", "_").replace(" ", "_")
    close = difflib.get_close_matches(wanted, gpu_names(), n=3, cutoff=0.4)
    close += [known for known in gpu_names() if known.startswith(f"{wanted}_")]
    hint = " or ".join(dict.fromkeys(close)) or ", ".join(gpu_names())
    raise InputError(f"GPU '{name}' is not in the catalogue; did you mean {hint}?")


def price_of(gpu_name: str) -> Price | None:
    """Return the price of a GPU, or None where none is known."""
    for row in _rows("prices.csv"):
        if row["gpu"] == gpu_name:
            usd, low, high = (float(row[key]) for key in ("usd_per_gpu_hour", "low", "high"))
            return Price(usd, low, high, row["as_of"], row["source"])
    return None


def _rows(name: str) -> list[dict[str, str]]:
    with (_DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def _catalogue() -> dict[str, GpuSpec]:
    return {row["gpu"]: _spec(row) for row in _rows("gpus.csv")}


def _spec(row: dict[str, str]) -> GpuSpec:
    def number(key: str) -> float | None:
        return float(row[key]) if row[key] else None

    def whole(key: str) -> int | None:
        return int(row[key]) if row[key] else None

    l2_mib = number("l2_mb")
    return GpuSpec(
        name=row["gpu"],
        hbm_bytes=int(row["hbm_bytes"]),
        usable_hbm_bytes=whole("usable_hbm_bytes"),
        hbm_bytes_per_s=float(row["hbm_bw_Bps"]),
        bf16_flop_per_s=float(row["bf16_flops"]),
        fp8_flop_per_s=number("fp8_flops"),
        int8_op_per_s=number("int8_ops"),
        fp4_flop_per_s=number("fp4_flops"),
        sm_arch=whole("sm_arch"),
        sm_count=whole("sm_count"),
        l2_bytes=round(l2_mib * MIB) if l2_mib else None,
        power_w=number("power_w"),
        gpus_per_node=whole("gpus_per_node"),
        link_bytes_per_s=number("intra_node_bw_Bps_per_dir"),
        inter_node_bytes_per_s=number("inter_node_bw_Bps_per_dir"),
        pcie_bytes_per_s=number("pcie_or_c2c_bw_Bps_per_dir"),
        p2p_latency_s=number("p2p_latency_s"),
        source=row["source"],
    )
