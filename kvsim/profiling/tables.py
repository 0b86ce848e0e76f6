"""Timed shapes → rows → files in the format of the published kernel tables."""

import csv
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from kvsim.errors import InputError, Problem
from kvsim.profiling.device import Device
from kvsim.profiling.shapes import AllReduce, AttentionCall, Copy, Gemm, Shape
from kvsim.tables import Column

Format = Literal["parquet", "csv"]
Row = Mapping[str, str | int | float]
MANIFEST = "profile.json"
SIGNIFICANT_DIGITS = 4  # as in the published tables: no timing is better than that
_16_BIT = "bfloat16"

_WHO = (
    Column("gpu", "text", "Name of the GPU; cpu: the format was tried out, nothing to price from"),
    Column("framework", "text", "torch"),
    Column("version", "text", "Its version"),
)
_KERNEL = Column("kernel", "text", "What was run, see kvsim/profiling/kernels.py")
_LATENCY = Column("latency_us", "us", "Median over runs of one call")
_SOURCE = Column("source", "text", "kvsim profile")
_HEADS = (
    Column("attn_dtype", "text", "Of the queries"),
    Column("kv_dtype", "text", "Of the KV cache"),
    Column("head_dim", "count", "Size of a head"),
    Column("window", "tokens", "Sliding window, 0: full attention"),
    Column("q_heads", "count", "Query heads on one GPU"),
    Column("kv_heads", "count", "KV heads on one GPU"),
    Column("batch", "count", "Sequences, of equal length"),
)
_NEW = Column("new_tokens", "tokens", "Query tokens of a sequence")
_PREFIX = Column("prefix_tokens", "tokens", "Tokens of a sequence that were in the cache before")

TABLES: Mapping[str, tuple[Column, ...]] = {
    "gemm": (
        *_WHO,
        Column("dtype", "text", "Of the weights; fp8 with the quantization of the activation"),
        _KERNEL,
        Column("m", "tokens", "Rows"),
        Column("n", "count", "Outputs"),
        Column("k", "count", "Inputs"),
        _LATENCY,
    ),
    "attention_prefill": (*_WHO, *_HEADS, _NEW, _PREFIX, _KERNEL, _LATENCY, _SOURCE),
    "attention_decode": (
        *_WHO,
        *_HEADS,
        Column("kv_len", "tokens", "Tokens that each sequence attends to"),
        *(_KERNEL, _LATENCY, _SOURCE),
    ),
    "attention_layouts": (
        *_WHO,
        Column("phase", "text", "prefill or decode"),
        *(*_HEADS, _NEW, _PREFIX),
        Column("block_size", "tokens", "Tokens of a KV block; 0: contiguous"),
        *(_KERNEL, _LATENCY, _SOURCE),
    ),
    "comm": (
        *_WHO,
        Column("impl", "text", "torch_distributed_nccl"),
        Column("launch", "text", "graph: replayed in a CUDA graph; eager: one by one"),
        Column("op", "text", "all_reduce"),
        Column("dtype", "text", "Of the tensor"),
        Column("world_size", "count", "GPUs"),
        Column("bytes", "bytes", "Size of the tensor"),
        Column("topology", "text", "node: GPUs of one machine"),
        *(_SOURCE, _LATENCY),
    ),
    "copies": (
        *_WHO,
        Column(
            "op",
            "text",
            "device_to_device; device_gather: scattered pieces into one; host_to_device and "
            "device_to_host: pinned memory",
        ),
        _KERNEL,
        Column("piece_bytes", "bytes", "Size of a piece"),
        Column("pieces", "count", "Pieces of a call, copied one after the other"),
        *(_LATENCY, _SOURCE),
    ),
}


def table_of(shape: Shape) -> str:
    """Return the table that the rows of a shape belong to."""
    if isinstance(shape, AttentionCall):
        return "attention_layouts" if shape.compared else f"attention_{shape.phase}"
    return {Gemm: "gemm", AllReduce: "comm", Copy: "copies"}[type(shape)]


def row_of(shape: Shape, kernel: str, latency_us: float, device: Device) -> Row:
    """Return the row of a timed shape, its columns in the order of its table."""
    known: dict[str, str | int | float] = {
        "gpu": device.name,
        "framework": "torch",
        "version": str(device.torch.__version__),
        "kernel": kernel,
        "source": "kvsim profile",
        "latency_us": float(f"{latency_us:.{SIGNIFICANT_DIGITS}g}"),
        **asdict(shape),
    }
    if isinstance(shape, AttentionCall):
        prefix = shape.kv_tokens - shape.new_tokens
        known |= {"attn_dtype": _16_BIT, "kv_dtype": _16_BIT, "window": 0}
        known |= {"prefix_tokens": prefix, "kv_len": shape.kv_tokens}
    if isinstance(shape, AllReduce):
        launch = "graph" if device.kind == "cuda" else "eager"
        known |= {"impl": kernel, "launch": launch, "op": "all_reduce", "dtype": _16_BIT}
        known |= {"bytes": shape.size_bytes, "topology": "node"}
    return {column.name: known[column.name] for column in TABLES[table_of(shape)]}


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder that becomes `target` if all goes well, and vanishes otherwise.

    Raises:
        InputError: There is something at `target` already.
        OSError: The disk refuses.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(Problem("is there already; choose another --out", str(target)))
    place = target.absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        folder = working / "new"
        folder.mkdir()
        yield folder
        folder.replace(place)
    finally:
        shutil.rmtree(working, ignore_errors=True)


def write_tables(
    folder: Path, rows: Mapping[str, Sequence[Row]], form: Format, about: Mapping[str, Any]
) -> list[Path]:
    """Write each table that has rows, and `profile.json`, into an existing folder."""
    written = []
    for table, of_table in rows.items():
        path = folder / f"{table}.{form}"
        write = _write_parquet if form == "parquet" else _write_csv
        write(path, TABLES[table], of_table)
        written.append(path)
    text = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return written


def _write_parquet(path: Path, columns: tuple[Column, ...], rows: Sequence[Row]) -> None:
    kinds = {"text": pa.dictionary(pa.int32(), pa.string()), "us": pa.float32()}
    fields = [
        pa.field(
            column.name,
            kinds.get(column.unit, pa.int64()),
            metadata={"unit": column.unit, "description": column.description},
        )
        for column in columns
    ]
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], pa.schema(fields)), path)


def _write_csv(path: Path, columns: tuple[Column, ...], rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [column.name for column in columns], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
