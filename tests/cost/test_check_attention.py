"""The tool that compares forms of attention with measured calls."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from kvsim.cost.attention import Heads, price_decode
from kvsim.cost.prefill import FA2_PREFIX_SLOWDOWN
from kvsim.gpu import load_gpu

GPU = load_gpu("rtx_pro_6000_server")
HEADS = Heads(32, 8, 128, 4.0 * 32 * 128, 4.0 * 32 * 128, 4.0 * 8 * 128, "bfloat16")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "check_attention.py"
    spec = importlib.util.spec_from_file_location("check_attention", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_published_form_is_what_it_says(tool: ModuleType) -> None:
    one_tile, many = tool.ON_RTX_PRO.chunk_ns(
        GPU, HEADS, np.array([100, 2048]), np.array([5000, 8192])
    )
    ns_per_pair = 4 * 32 * 128 / (0.49 * GPU.bf16_flop_per_s) * 1e9
    by_flops = ns_per_pair * 128 * (5000 + 50)
    assert one_tile == pytest.approx(7000 + max(by_flops, 21.0 * 5100))  # 32 heads, 188 SMs
    by_flops = ns_per_pair * 2048 * (8192 + 1024)
    assert many == pytest.approx(7000 + max(by_flops, 21.0 * 10_240 * 3))  # 512 tiles, 3 waves


def test_calls_as_kvsim_prices_them_have_no_error(tool: ModuleType) -> None:
    new, prefix = np.array([16, 512]), np.array([1024, 4096])
    decode = price_decode(GPU, HEADS, 2000)
    chunk_ns = tool._kvsim_ns(GPU, HEADS, new, prefix, FA2_PREFIX_SLOWDOWN)
    decode_ns = 1.6 * (decode.fixed_ns + 4 * decode.seq_ns[1000])
    rows = pd.DataFrame(
        {
            "gpu": GPU.name, "q_heads": 32, "kv_heads": 8, "prefill_chunk": new,
            "kv_prefill": prefix, "n_decode": [0, 4], "kv_decode": [0, 1000],
            "latency_us": (chunk_ns + np.array([0, decode_ns])) / 1e3,
        }
    )  # fmt: skip
    ratios = tool._chunks(rows)
    assert ratios["kvsim"].to_numpy() == pytest.approx([1.0, 1.0])
    assert (ratios["kvsim without slower prefixes"] < 1).all()
