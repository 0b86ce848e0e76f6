"""Tell the error of experts that were not measured: whole models are withheld from the tables.

Usage: python tools/check_experts.py [GPU ...]

For each GPU and dtype every model of the packed tables is priced from the other ones, at its
measured numbers of tokens, on up to 8 GPUs. Model means here: hidden size, width, number and top-k
of the experts. The figures in docs/model.md are this tool's.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from kvsim.cost import moe
from kvsim.cost.formats import WeightFormat, sixteen_bit
from kvsim.cost.moe import MoeShape
from kvsim.cost.tables import Floats, load_arrays
from kvsim.gpu import GpuSpec, load_gpu

GPUS = ("h100_sxm", "h200_sxm", "b200_sxm", "l40s", "rtx_pro_6000_server")
MOST_GPUS = 8
TABLE = "moe/{}/power_law_1.2/us"
# Bytes of a weight, scales included, and whether it is multiplied in 16 bit.
DTYPES = {
    "bfloat16": (2.0, True),
    "fp8": (1.0, False),
    "fp8_block": (1.0, False),
    "nvfp4": (0.5625, False),
    "w4a16_mxfp4": (0.53125, True),
}


ROUTING = (
    "power_law_1.2"  # measured at every shape; the others are checked by what they are made of
)


def main(gpus: tuple[str, ...]) -> None:
    """Print a row for each GPU and dtype."""
    print(f"{'gpu':22}{'dtype':14}{'points':>8}{'median %':>10}{'p90 %':>8}{'bias %':>8}")
    for name in gpus:
        for dtype in DTYPES:
            ratios = withheld(load_gpu(name), dtype)
            if len(ratios):
                errors = 100 * np.abs(ratios - 1)
                bias = 100 * (np.median(ratios) - 1)
                middle, most = np.percentile(errors, [50, 90])
                print(f"{name:22}{dtype:14}{len(ratios):8}{middle:10.1f}{most:8.1f}{bias:8.1f}")


def withheld(gpu: GpuSpec, dtype: str) -> Floats:
    """Return predicted over measured times of all models, each priced without its own rows."""
    arrays = load_arrays(gpu)
    if TABLE.format(dtype) not in arrays:
        return np.empty(0)
    shapes = [MoeShape(*row) for row in arrays[f"moe/{dtype}/shapes"].tolist()]
    return np.concatenate([*_ratios(gpu, dtype, arrays, shapes), np.empty(0)])


def _ratios(
    gpu: GpuSpec, dtype: str, arrays: Mapping[str, Any], shapes: list[MoeShape]
) -> Iterator[Floats]:
    weights = _format(gpu, dtype)
    tokens, measured = arrays[f"moe/{dtype}/tokens"], arrays[TABLE.format(dtype)]
    for model in dict.fromkeys(shape[:4] for shape in shapes):
        own = np.array([shape[:4] == model for shape in shapes])
        others = np.where(own[:, None], np.nan, measured)
        if np.isnan(others).all():
            continue
        without = dict(arrays) | {TABLE.format(dtype): others}
        with patch.object(moe, "load_arrays", return_value=without):
            for index in np.flatnonzero(own):
                if max(shapes[index].tp, shapes[index].ep) <= MOST_GPUS:
                    curves = moe.moe_curves(gpu, weights, tokens, shapes[index], 3, ROUTING)
                    predicted_us = np.sum([curve.ns for curve in curves], axis=0) / 1e3
                    ratio = predicted_us / measured[index]
                    yield ratio[np.isfinite(ratio)]


def _format(gpu: GpuSpec, dtype: str) -> WeightFormat:
    bytes_per_weight, wide = DTYPES[dtype]
    small = gpu.fp4_flop_per_s if dtype == "nvfp4" else gpu.fp8_flop_per_s
    rate = gpu.bf16_flop_per_s if wide or small is None else small
    one = replace(sixteen_bit(gpu), bytes_per_weight=bytes_per_weight, flop_per_s=rate)
    return replace(one, moe_table=dtype)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or GPUS)
