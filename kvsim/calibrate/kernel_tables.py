"""A folder of kernel timings → one file that the GPU of a scenario names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from kvsim.calibrate.pack import (
    Arrays,
    by_bytes,
    decode_arrays,
    gemm_arrays,
    moe_arrays,
    prefill_arrays,
)
from kvsim.errors import InputError, Problem
from kvsim.workload.files import told_by_name, written_whole

_LATENCY = "latency_us"
_ATTENTION = ("attn_dtype", "kv_dtype", "head_dim", "window", "q_heads", "kv_heads", "batch")
_WORDS = {"dtype", "attn_dtype", "kv_dtype", "distribution", "op", "launch"}
_MAY_BE_0 = {"window", "prefix_tokens"}
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_NO_GPU = "cpu"  # what `kvsim profile --device cpu` calls it


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the format: what tells its rows apart, and the arrays that they become."""

    keys: tuple[str, ...]
    arrays: Callable[[pd.DataFrame], Arrays]
    whole: tuple[str, ...] = ()  # if given, only values of the first that all others have are kept


def pack_kernels(folder: Path, gpu: str | None, target: Path) -> tuple[str, list[str]]:
    """Pack the tables of a folder; the file is there whole or not at all.

    Args:
        folder: Holds tables such as `gemm.parquet` or `gemm.csv`; see docs/how-to.md.
        gpu: Whose rows; None: there is only one.
        target: The file to write (.npz).

    Returns:
        The GPU's name in the tables, and what was packed, in words.

    Raises:
        InputError: A table can't be read or lacks columns, values can't be used, or there is no
            table of this GPU.
    """
    if not folder.is_dir():
        raise InputError(Problem("is no folder of kernel tables", str(folder)))
    tables = _tables_in(folder)
    name = _gpu_of(tables, gpu, folder)
    arrays: Arrays = {}
    packed: list[str] = []
    for table, rows in tables.items():
        own = rows[rows.gpu.astype(str) == name]
        if not own.empty:
            merged = _merged(own, _TABLES[table])
            arrays |= _TABLES[table].arrays(merged)
            packed.append(f"{table}: {len(merged)} rows")
    if not arrays:
        raise InputError(Problem("holds nothing that steps are priced from", str(folder)))
    with written_whole(target) as working, working.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return name, packed


def _tables_in(folder: Path) -> dict[str, pd.DataFrame]:
    """Return the tables by name, checked; others in the folder are left alone."""
    found: dict[str, pd.DataFrame] = {}
    problems: list[Problem] = []
    for name, table in _TABLES.items():
        for path in (folder / f"{name}.{form}" for form in ("parquet", "csv")):
            if path.is_file() and name not in found:
                with told_by_name(path):
                    found[name] = (
                        pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
                    )
                problems += _problems(found[name], table, path)
    if problems:
        raise InputError(*problems)
    if not found:
        names = ", ".join(_TABLES)
        raise InputError(Problem(f"holds none of the tables {names} (.parquet, .csv)", str(folder)))
    return found


def _problems(rows: pd.DataFrame, table: _Table, path: Path) -> Iterator[Problem]:
    missing = [name for name in ("gpu", *table.keys, _LATENCY) if name not in rows]
    if missing:
        yield Problem(f"lacks the columns {', '.join(missing)}", str(path), 1)
        return
    for name in (_LATENCY, *(key for key in table.keys if key not in _WORDS)):
        least = 0.0 if name in _MAY_BE_0 else 1e-3
        numbers = pd.to_numeric(rows[name], errors="coerce").to_numpy(np.float64)
        wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= least)))
        if len(wrong):
            line = int(wrong[0]) + 2 if path.suffix == ".csv" else None
            value = rows[name].iloc[int(wrong[0])]
            yield Problem(f"must be a number above 0, not {str(value)!r}", str(path), line, name)


def _gpu_of(tables: Mapping[str, pd.DataFrame], gpu: str | None, folder: Path) -> str:
    names = sorted({str(name) for rows in tables.values() for name in rows.gpu.unique()})
    if not names:
        raise InputError(Problem("has tables without rows", str(folder)))
    if gpu is None and len(names) > 1:
        raise InputError(Problem(f"has several GPUs, say --gpu: {', '.join(names)}", str(folder)))
    name = gpu or names[0]
    if name not in names:
        raise InputError(Problem(f"has no GPU {name!r}, but {', '.join(names)}", str(folder)))
    if name == _NO_GPU:
        raise InputError(Problem("was measured on a CPU, to try the format out", str(folder)))
    return name


def _merged(rows: pd.DataFrame, table: _Table) -> pd.DataFrame:
    """Return one row a shape, with the median of its readings.

    Rows of vLLM's own kernels go before those of others.
    """
    if "framework" in rows and (rows.framework == "vllm").any():
        rows = rows[rows.framework == "vllm"]
    plain = rows.astype({name: str for name in table.keys if rows[name].dtype == "category"})
    merged = plain.groupby([*table.keys])[[_LATENCY]].median().reset_index()
    return _whole(merged, table) if table.whole else merged


def _whole(rows: pd.DataFrame, table: _Table) -> pd.DataFrame:
    """Return the rows at those sizes at which all shapes were measured.

    The largest products of a large shape may not have fitted the memory.
    """
    size, *shape = table.whole
    counts = rows.groupby(size)[_LATENCY].transform("size")
    common = rows[counts == len(rows.groupby(shape))]
    if common.empty:
        raise InputError(f"no {size} was measured for all of {', '.join(shape)}")
    return common


def _all_reduces(rows: pd.DataFrame) -> Arrays:
    """Return latencies by bytes; those replayed in CUDA graphs, as an engine does, if there are."""
    arrays: Arrays = {}
    for op in _COLLECTIVES:
        of_op = rows[rows.op == op]
        graph = of_op[of_op.launch == "graph"]
        chosen = of_op if graph.empty else graph
        for world, part in chosen.groupby("world_size"):
            arrays |= by_bytes(f"{op}/{world}", part)
    return arrays


_TABLES: Mapping[str, _Table] = {
    "gemm": _Table(("dtype", "m", "n", "k"), gemm_arrays, ("m", "dtype", "n", "k")),
    "attention_prefill": _Table((*_ATTENTION, "new_tokens", "prefix_tokens"), prefill_arrays),
    "attention_decode": _Table((*_ATTENTION, "kv_len"), decode_arrays),
    "moe": _Table(
        ("dtype", "hidden", "inter", "topk", "experts", "tp", "ep", "distribution", "tokens"),
        moe_arrays,
    ),
    "comm": _Table(("op", "launch", "world_size", "bytes"), _all_reduces),
}
