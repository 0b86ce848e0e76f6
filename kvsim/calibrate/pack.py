"""Kernel timings of one GPU, as tables → the arrays that steps are priced from.

The names and shapes of the arrays are those of `kvsim.cost.tables.load_arrays`; the columns of the
tables are documented in docs/kernel-tables.md.
"""

from typing import Any, get_args

import numpy as np
import pandas as pd

from kvsim.cost.moe import MeasuredRouting, MoeShape

GEMM_DTYPES = ("bfloat16", "fp8", "nvfp4")
MOE_DTYPES = ("bfloat16", "fp8", "fp8_block", "nvfp4", "int4_wo", "w4a16_mxfp4")
MOE_SHAPE = list(MoeShape._fields)  # columns of the tables
FEWEST_NEW_TOKENS = 16  # shorter chunks are priced by the form

Arrays = dict[str, Any]  # numpy arrays by name


def spread(rows: pd.DataFrame, keys: list[str], axis: str) -> tuple[Any, Any, Any]:
    """Return the distinct keys, the axis and the latencies [key, axis] in µs, NaN: not measured."""
    table = rows.pivot_table(index=keys, columns=axis, values="latency_us", aggfunc="median")
    index = np.array(table.index.to_list(), dtype=np.int32).reshape(len(table), len(keys))
    return index, table.columns.to_numpy(np.int32), table.to_numpy(np.float32)


def gemm_arrays(rows: pd.DataFrame) -> Arrays:
    """Return a cube of latencies [m, n, k] for each dtype, and its axes; NaN: not measured."""
    arrays: Arrays = {}
    for dtype in GEMM_DTYPES:
        part = rows[rows.dtype == dtype]
        if part.empty:
            continue
        m, n, k = (np.sort(part[axis].unique()) for axis in ("m", "n", "k"))
        cube = np.full((len(m), len(n), len(k)), np.nan, dtype=np.float32)
        at = tuple(np.searchsorted(a, part[x]) for a, x in ((m, "m"), (n, "n"), (k, "k")))
        cube[at] = part.latency_us
        arrays |= {f"gemm/{dtype}/us": cube, f"gemm/{dtype}/m": m.astype(np.int32)}
        arrays |= {f"gemm/{dtype}/n": n.astype(np.int32), f"gemm/{dtype}/k": k.astype(np.int32)}
    return arrays


def prefill_arrays(rows: pd.DataFrame) -> Arrays:
    """Return latencies [(q_heads, kv_heads), tokens] of prompts by KV dtype, head size and window.

    `us` is of one prompt alone, `share_us` what a prompt adds to a call that has many: the time of
    the largest batch beyond a lone short prompt's, divided by the batch. NaN: not measured.
    """
    chosen = rows[(rows.prefix_tokens == 0) & (rows.new_tokens >= FEWEST_NEW_TOKENS)]
    arrays: Arrays = {}
    keys = ["q_heads", "kv_heads"]
    for (dtype, size, window), part in chosen.groupby(
        ["kv_dtype", "head_dim", "window"], observed=True
    ):
        name = f"prefill/{dtype}/{size}" + (f"/{window}" if window else "")
        heads, tokens, alone = spread(part[part.batch == 1], keys, "new_tokens")
        share = np.full_like(alone, np.nan)
        places = {tuple(pair): place for place, pair in enumerate(heads.tolist())}
        shortest = np.nanmin(alone, axis=1)
        many = part[(part.batch > 1) & part.new_tokens.isin(tokens)].sort_values("batch")
        largest = many.groupby([*keys, "new_tokens"]).last().reset_index()
        for row in largest.to_dict("records"):
            place = places.get((row["q_heads"], row["kv_heads"]))
            if place is not None:
                added_us = row["latency_us"] - shortest[place]
                column = np.searchsorted(tokens, row["new_tokens"])
                share[place, column] = added_us / row["batch"]
        arrays |= {f"{name}/heads": heads, f"{name}/tokens": tokens}
        arrays[f"{name}/us"] = alone
        if np.isfinite(share).any():
            arrays[f"{name}/share_us"] = share
    return arrays


def decode_arrays(rows: pd.DataFrame) -> Arrays:
    """Return latencies [(q_heads, kv_heads), sequences, context] of plain decode by KV dtype."""
    chosen = rows[(rows.head_dim == 128) & (rows.window == 0)]
    arrays: Arrays = {}
    for dtype, part in chosen.groupby("kv_dtype", observed=True):
        name, axes = f"decode/{dtype}/128", ("batch", "kv_len")
        heads = np.unique(part[["q_heads", "kv_heads"]].to_numpy(np.int32), axis=0)
        batch, context = (np.sort(part[axis].unique()).astype(np.int32) for axis in axes)
        us = np.full((len(heads), len(batch), len(context)), np.nan, dtype=np.float32)
        for place, (q_heads, kv_heads) in enumerate(heads):
            own = part[(part.q_heads == q_heads) & (part.kv_heads == kv_heads)]
            table = own.pivot_table(index="batch", columns="kv_len", values="latency_us")
            us[place] = table.reindex(index=batch, columns=context).to_numpy()
        arrays |= {f"{name}/heads": heads, f"{name}/batch": batch, f"{name}/context": context}
        arrays[f"{name}/us"] = us
    return arrays


def moe_arrays(rows: pd.DataFrame) -> Arrays:
    """Return latencies [(hidden, inter, topk, experts, tp, ep), tokens] by dtype and routing."""
    arrays: Arrays = {}
    for dtype in MOE_DTYPES:
        part = rows[rows.dtype == dtype]
        if part.empty:
            continue
        name = f"moe/{dtype}"
        shapes = part[MOE_SHAPE].drop_duplicates().sort_values(MOE_SHAPE)
        tokens = np.sort(part.tokens.unique())
        arrays |= {f"{name}/shapes": shapes.to_numpy(np.int32)}
        arrays |= {f"{name}/tokens": tokens.astype(np.int32)}
        for routing in get_args(MeasuredRouting):
            rows_of = part[part.distribution == routing]
            table = rows_of.pivot_table(index=MOE_SHAPE, columns="tokens", values="latency_us")
            full = table.reindex(index=pd.MultiIndex.from_frame(shapes), columns=tokens)
            if not table.empty:
                arrays[f"{name}/{routing}/us"] = full.to_numpy(np.float32)
    return arrays


def by_bytes(name: str, rows: pd.DataFrame, keep_every: int = 1) -> Arrays:
    """Return the sizes, the last one in any case, and their median latencies in µs."""
    curve = rows.groupby("bytes").latency_us.median()
    curve = curve.iloc[(len(curve) - 1) % keep_every :: keep_every]
    return {
        f"{name}/bytes": curve.index.to_numpy(np.int64),
        f"{name}/us": curve.to_numpy(np.float32),
    }
