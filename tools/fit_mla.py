"""Fits what a module of MLA (DeepSeek) takes beside its matrix products, and writes the constants.

Usage: python tools/fit_mla.py SOURCE_DIR [TARGET_DIR]

SOURCE_DIR holds `mla.parquet`. Its vLLM modules contain all of the attention block: the projections
from the hidden state to the latents, those to the heads, norms, rotary embedding, the attention
itself and the output projection (their time grows with the heads as that of these products does).
Products are priced by the GPU's table of linear layers; forms are fitted to the rest, on the whole
module's time, from the rows with 16-bit products. Rows of bare kernels are no base: vLLM's were
timed eagerly (100 to 350 µs). Printed are the errors of whole modules that were left out of the
fit: a fifth of the rows, or all rows with 32 heads.
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


def decode_form(gpu: GpuSpec, rows: pd.DataFrame, kv_dtype: str) -> Form:
    """Return t_fix + ((B·(s0 + s1·q))^p + max(bytes/(e_m·BW), FLOPs/(e_c·peak))^p)^(1/p) in µs."""
    batch, heads = rows.batch.to_numpy(float), rows.q_heads.to_numpy(float)
    keys = batch * rows.kv_len.to_numpy(float)
    moved_us = keys * LATENT * (1 if kv_dtype == "fp8" else 2) / gpu.hbm_bytes_per_s * 1e6
    flop_us = keys * 2 * heads * (2 * RANK + ROPE) / gpu.bf16_flop_per_s * 1e6

    def form(x: Floats) -> Floats:
        fixed, seq, seq_head, mem_eff, compute_eff, p = x
        busy = np.maximum(moved_us / mem_eff, flop_us / compute_eff)
        return np.asarray(fixed + ((batch * (seq + seq_head * heads)) ** p + busy**p) ** (1 / p))

    return form


def prefill_form(gpu: GpuSpec, rows: pd.DataFrame, _: str) -> Form:
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


def main(source: Path, target: Path) -> None:
    """Fit both phases on each GPU and KV dtype, print the errors, write the constants."""
    table = pd.read_parquet(source / "mla.parquet")
    table = table[(table.framework == "vllm") & (table.form == "module")]
    table = table[(table.gemm_dtype.astype(str) == "bfloat16") & (table.mla_dtype == "bfloat16")]
    phases = {"decode": (decode_form, DECODE), "prefill": (prefill_form, PREFILL)}
    arch = pd.read_csv(source / "gpus.csv").set_index("gpu").sm_arch.to_dict()
    for phase, (build, bounds) in phases.items():
        lines = []
        part = table[(table.phase == phase) & ((table.new_tokens >= 16) | (phase == "decode"))]
        for (name, kv_dtype), rows in part.groupby(["gpu", "kv_dtype"], observed=True):
            if rows["q_heads"].nunique() >= LEAST_HEADS:
                gpu = load_gpu(str(name))
                values = _one(f"{name} {phase} {kv_dtype}", gpu, rows, str(kv_dtype), build, bounds)
                lines.append([name, arch[str(name)], kv_dtype, *values])
        out = pd.DataFrame(lines, columns=["gpu", "sm_arch", "kv_dtype", *bounds])
        out.round(5).to_csv(target / f"fit_mla_{phase}.csv", index=False)


def _one(
    title: str,
    gpu: GpuSpec,
    rows: pd.DataFrame,
    kv_dtype: str,
    build: Callable[[GpuSpec, pd.DataFrame, str], Form],
    bounds: dict[str, tuple[float, float]],
) -> Any:
    """Print the errors on rows that were left out; return the constants of all rows."""
    rest, measured = products_us(gpu, rows), rows.latency_us.to_numpy(float)
    splits: dict[str, Any] = {
        "a fifth of the rows": np.random.default_rng(1).random(len(rows)) < 0.2,
        f"{LEFT_OUT_HEADS} heads": (rows.q_heads == LEFT_OUT_HEADS).to_numpy(),
    }
    for what, out in splits.items():
        values = fitted(build(gpu, rows[~out], kv_dtype), rest[~out], bounds, measured[~out])
        error = np.abs((rest[out] + build(gpu, rows[out], kv_dtype)(values)) / measured[out] - 1)
        figures = f"{100 * np.median(error):5.1f} % ({100 * np.quantile(error, 0.9):.0f})"
        print(f"{title:38} without {what:20} {figures}")
    return fitted(build(gpu, rows, kv_dtype), rest, bounds, measured)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else here / "kvsim/data/kernels")
