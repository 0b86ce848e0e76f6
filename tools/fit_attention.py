"""Fits forms of attention that the published constants don't cover, and writes the constants.

Usage: python tools/fit_attention.py SOURCE_DIR [TARGET_DIR]

SOURCE_DIR holds `mla.parquet` and `attention_decode.parquet`.

- MLA (DeepSeek): vLLM's modules contain all of the attention block: the projections from the hidden
  state to the latents, those to the heads, norms, rotary embedding, the attention itself and the
  output projection (their time grows with the heads as that of these products does). Products are
  priced by the GPU's table of linear layers; forms are fitted to the rest, on the whole module's
  time, from the rows with 16-bit products. Rows of bare kernels are no base: vLLM's were timed
  eagerly (100 to 350 µs).
- Decode with other head sizes than 128 or with a sliding window, from rows whose KV streams from
  HBM (twice the L2 cache or more) or hardly counts (up to 4 MB): an engine never finds it in L2.

Printed are the errors on rows left out of the fit: a fifth, or all of one number of heads.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from kvsim.cost.formats import sixteen_bit
from kvsim.cost.gemm import gemm_curves
from kvsim.cost.layers import products
from kvsim.cost.tables import Floats
from kvsim.gpu import GpuSpec, load_gpu
from kvsim.model import load_model
from kvsim.units import NS_PER_US

HIDDEN, LATENT, HEAD_KEY, HEAD_VALUE, RANK, ROPE = 7168, 576, 192, 128, 512, 64  # DeepSeek-V3
LEAST_HEADS = 4  # numbers of heads that tell their share from the rest
LEFT_OUT_HEADS = 32
HARDLY_BYTES = 4e6
OTHERS_L2_MB = 126.0  # where a GPU's cache is unknown (B300, GB200, GB300)
# Constants with their bounds: no rate above the peak (cuBLAS and FlashAttention reach 0.9 of it).
DECODE = {
    "t_fix_us": (1, 300), "t_seq_us": (1e-4, 3), "t_seq_us_per_qhead": (1e-5, 0.1),
    "mem_eff": (0.05, 1), "compute_eff": (0.02, 0.95), "p": (1.001, 4),
}  # fmt: skip
PREFILL = {
    "t_fix_us": (1, 300), "t_token_us": (1e-5, 1), "t_token_us_per_qhead": (1e-6, 0.1),
    "compute_eff": (0.03, 0.95), "s_half_tokens": (0.01, 3000),
}  # fmt: skip

Form = Callable[[Floats], Floats]


def decode_form(gpu: GpuSpec, rows: pd.DataFrame) -> Form:
    """Return t_fix + ((B·(s0 + s1·q))^p + max(bytes/(e_m·BW), FLOPs/(e_c·peak))^p)^(1/p) in µs.

    The rows say how many bytes all keys of a call take (`kv_bytes`) and how many FLOPs.
    """
    batch, heads = rows.batch.to_numpy(float), rows.q_heads.to_numpy(float)
    moved_us = rows.kv_bytes.to_numpy(float) / gpu.hbm_bytes_per_s * 1e6
    flop_us = rows.flops.to_numpy(float) / gpu.bf16_flop_per_s * 1e6

    def form(x: Floats) -> Floats:
        fixed, seq, seq_head, mem_eff, compute_eff, p = x
        busy = np.maximum(moved_us / mem_eff, flop_us / compute_eff)
        return np.asarray(fixed + ((batch * (seq + seq_head * heads)) ** p + busy**p) ** (1 / p))

    return form


def prefill_form(gpu: GpuSpec, rows: pd.DataFrame) -> Form:
    """Return t_fix + T·(u0 + u1·q) + FLOPs·(1 + S½/S)/(e_c·peak) in µs, T tokens in all."""
    new, heads = rows.new_tokens.to_numpy(float), rows.q_heads.to_numpy(float)
    tokens = rows.batch.to_numpy(float) * new
    flops = tokens * new / 2 * 2 * heads * (HEAD_KEY + HEAD_VALUE)
    flop_us = flops / gpu.bf16_flop_per_s * 1e6

    def form(x: Floats) -> Floats:
        fixed, token, token_head, compute_eff, s_half = x
        return np.asarray(
            fixed
            + tokens * (token + token_head * heads)
            + flop_us / compute_eff * (1 + s_half / new)
        )

    return form


def products_us(gpu: GpuSpec, rows: pd.DataFrame) -> Floats:
    """Return what kvsim says of a module's matrix products."""
    attention = load_model("deepseek-ai/DeepSeek-V3").layers[0].attention
    total_us = np.zeros(len(rows))
    for heads in rows.q_heads.unique():
        here = (rows.q_heads == heads).to_numpy()
        tokens = (rows.batch * rows.new_tokens).to_numpy()[here]
        for one in products([*attention.weights(HIDDEN)], attention.q_heads // int(heads)):
            for curve in gemm_curves("gemm", gpu, sixteen_bit(gpu), tokens, one.n, one.k):
                total_us[here] += curve.ns / NS_PER_US
    return total_us


def fitted(form: Form, rest: Floats, bounds: dict[str, tuple[float, float]], measured: Any) -> Any:
    """Return constants that bring products + form near the measured times, robustly, in log."""
    low, high = np.log(np.array(list(bounds.values()), float)).T
    start = (low + high) / 2

    def errors(x: Floats) -> Floats:
        return np.asarray(np.log((rest + form(np.exp(x))) / measured))

    return np.exp(least_squares(errors, start, bounds=(low, high), loss="soft_l1", f_scale=0.1).x)


def mla_rows(source: Path, phase: str) -> pd.DataFrame:
    """Return measured modules, with what their products take and their attention reads."""
    rows = pd.read_parquet(source / "mla.parquet")
    rows = rows[(rows.framework == "vllm") & (rows.form == "module") & (rows.phase == phase)]
    rows = rows[(rows.gemm_dtype.astype(str) == "bfloat16") & (rows.mla_dtype == "bfloat16")]
    rows = rows[(rows.new_tokens >= 16) | (phase == "decode")]
    keys = rows.batch * rows.kv_len
    kv_bytes = keys * LATENT * _element_bytes(rows)
    flops = keys * rows.q_heads * (2.0 * (2 * RANK + ROPE))
    rows = rows.assign(dtype=rows.kv_dtype.astype(str), kv_bytes=kv_bytes, flops=flops)
    return pd.concat(
        part.assign(rest_us=products_us(load_gpu(str(gpu)), part))
        for gpu, part in rows.groupby("gpu", observed=True)
    )


def decode_rows(source: Path) -> pd.DataFrame:
    """Return decode calls of other shapes than head size 128 without window."""
    rows = pd.read_parquet(source / "attention_decode.parquet")
    rows = rows[(rows.framework == "vllm") & (rows.source == "aiconfigurator")]
    rows = rows[(rows.head_dim != 128) | (rows.window > 0)]
    keys = rows.batch * rows.kv_len.where(rows.window == 0, np.minimum(rows.kv_len, rows.window))
    kv_bytes = keys * rows.kv_heads * rows.head_dim * 2 * _element_bytes(rows)
    flops = keys * rows.q_heads * rows.head_dim * 4.0
    dtype = rows.kv_dtype.astype(str) + "/" + rows.head_dim.astype(str) + "/"
    dtype = dtype + rows.window.astype(str)
    rows = rows.assign(dtype=dtype, kv_bytes=kv_bytes, flops=flops, rest_us=0.0)
    l2_mb = pd.read_csv(source / "gpus.csv").set_index("gpu").l2_mb.fillna(OTHERS_L2_MB)
    l2_bytes = rows.gpu.astype(str).map(l2_mb) * 1e6
    return rows[(rows.kv_bytes <= HARDLY_BYTES) | (rows.kv_bytes >= 2 * l2_bytes)]


def _element_bytes(rows: pd.DataFrame) -> Any:
    return np.where(rows.kv_dtype == "fp8", 1, 2)


def main(source: Path, target: Path) -> None:
    """Fit on each GPU and dtype (or shape), print the errors, write the constants."""
    arch = pd.read_csv(source / "gpus.csv").set_index("gpu").sm_arch.to_dict()
    for name, rows, build, bounds in (
        ("mla_decode", mla_rows(source, "decode"), decode_form, DECODE),
        ("mla_prefill", mla_rows(source, "prefill"), prefill_form, PREFILL),
        ("attention_decode_shapes", decode_rows(source), decode_form, DECODE),
    ):
        lines = []
        for (gpu, dtype), part in rows.groupby(["gpu", "dtype"], observed=True):
            if part["q_heads"].nunique() >= LEAST_HEADS:
                values = _one(f"{gpu} {name} {dtype}", load_gpu(str(gpu)), part, build, bounds)
                lines.append([gpu, arch[str(gpu)], dtype, *values])
        out = pd.DataFrame(lines, columns=["gpu", "sm_arch", "dtype", *bounds])
        out.round(5).to_csv(target / f"fit_{name}.csv", index=False)


def _one(
    title: str,
    gpu: GpuSpec,
    rows: pd.DataFrame,
    build: Callable[[GpuSpec, pd.DataFrame], Form],
    bounds: dict[str, tuple[float, float]],
) -> Any:
    """Print the errors on rows that were left out; return the constants of all rows."""
    rest, measured = rows.rest_us.to_numpy(float), rows.latency_us.to_numpy(float)
    heads = rows.q_heads.to_numpy()
    alone = LEFT_OUT_HEADS if LEFT_OUT_HEADS in heads else int(np.median(heads))
    splits: dict[str, Any] = {
        "a fifth of the rows": np.random.default_rng(1).random(len(rows)) < 0.2,
        f"{alone} heads": heads == alone,
    }
    for what, out in splits.items():
        if out.any() and not out.all():
            values = fitted(build(gpu, rows[~out]), rest[~out], bounds, measured[~out])
            error = np.abs((rest[out] + build(gpu, rows[out])(values)) / measured[out] - 1)
            figures = f"{100 * np.median(error):5.1f} % ({100 * np.quantile(error, 0.9):.0f})"
            print(f"{title:50} without {what:20} {figures}")
    return fitted(build(gpu, rows), rest, bounds, measured)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else here / "kvsim/data/kernels")
