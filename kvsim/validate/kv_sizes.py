"""KV cache sizes: a CSV of what servers logged when they started."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from kvsim.units import GIB
from kvsim.validate.case import Case, Measured, Server
from kvsim.validate.fields import Fields, named_rows

NEEDED = ("model", "gpu", "reported_kv_tokens")

_BLOCK_SIZE = 16  # vLLM's, where a row counts blocks and doesn't state it
_V0 = "0.6.0"  # stands for any version of the legacy engine


def cases_of(rows: Iterator[tuple[int, Mapping[str, str]]], file: Path) -> list[Case]:
    """Return the servers of a table, given with the lines that they stand in.

    Raises:
        InputError: A row names neither itself nor its model.
    """
    return [_case(row) for row in named_rows(rows, file)]


def _case(row: Fields) -> Case:
    server = _server(row)
    tokens, gib = row.positive("reported_kv_tokens"), row.positive("available_kv_gib_per_gpu")
    blocks = row.count("reported_blocks")
    if tokens is None and blocks:
        tokens = blocks * (server.block_size or _BLOCK_SIZE)
    refusals = [] if server.gpu else ["the GPU is not recorded"]
    if (row.text("outcome") or "starts") != "starts":
        refusals.append(f"the server did not start: {row.text('outcome')}")
    if tokens is None and gib is None:
        refusals.append("no KV cache size is recorded")
    return Case(
        id=str(row.text("id")),
        server=server,
        client=None,
        measured=() if tokens is None else (Measured("kv_cache_tokens", tokens),),
        kv_bytes_per_gpu=gib * GIB if gib and tokens is None else None,
        refusals=(*refusals, *row.unclear),
    )


def _server(row: Fields) -> Server:
    dtype = (row.text("dtype") or "").lower()
    return Server(
        model=str(row.text("model")),
        gpu=row.text("gpu") or "",
        version=_version(row.text("vllm_version")),
        tensor_parallel_size=row.count("tp") or row.count("n_gpus") or 1,
        pipeline_parallel_size=row.count("pp") or 1,
        data_parallel_size=row.count("dp") or 1,
        precision=(row.text("quantisation") or row.text("quantization") or "").split(" ")[0]
        or None,
        dtype="float16" if dtype in {"fp16", "float16"} else None,
        kv_cache_dtype=row.text("kv_dtype"),
        max_model_len=row.count("max_model_len"),
        max_num_batched_tokens=row.count("max_num_batched_tokens"),
        max_num_seqs=row.count("max_num_seqs"),
        gpu_memory_utilization=row.positive("gpu_memory_utilization"),
        block_size=row.count("block_size"),
    )


def _version(text: str | None) -> str | None:
    """Return `0.6.0` for `0.6.x (V0 engine)`; None where a text names no version."""
    found = re.match(r"v?(\d+)\.(\d+)", text or "")
    if found:
        return f"{found[1]}.{found[2]}.0"
    return _V0 if text and "V0" in text else None
