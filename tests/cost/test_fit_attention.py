"""The tool that fits forms of attention."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from kvsim.gpu import load_gpu

GPU = load_gpu("h100_sxm")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "fit_attention.py"
    spec = importlib.util.spec_from_file_location("fit_attention", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Return calls of 1 to 512 sequences, 1 to 16,384 keys each, 4 to 128 query heads."""
    random = np.random.default_rng(5)
    batch, new = 2 ** random.integers(0, 10, 400), 2 ** random.integers(4, 13, 400)
    heads, keys = 2 ** random.integers(2, 8, 400), batch * 2 ** random.integers(0, 15, 400)
    return pd.DataFrame(
        {
            "batch": batch, "new_tokens": new, "q_heads": heads, "kv_bytes": keys * 1152.0,
            "flops": keys * heads * 2176.0,
        }
    )  # fmt: skip


def test_constants_that_made_the_times_are_found_again(
    tool: ModuleType, rows: pd.DataFrame
) -> None:
    rest = np.full(len(rows), 25.0)
    for build, bounds, truth in (
        (tool.decode_form, tool.DECODE, (60.0, 0.07, 0.003, 0.9, 0.7, 1.3)),
        (tool.prefill_form, tool.PREFILL, (80.0, 0.02, 0.001, 0.8, 40.0)),
    ):
        form = build(GPU, rows)
        measured = rest + form(np.array(truth))
        found = tool.fitted(form, rest, bounds, measured)
        assert rest + form(found) == pytest.approx(measured, rel=0.02)
        assert found[0] == pytest.approx(truth[0], rel=0.05)


def test_constants_stay_within_their_bounds(tool: ModuleType, rows: pd.DataFrame) -> None:
    form = tool.decode_form(GPU, rows)
    impossible = form(np.array([60.0, 0.07, 0.003, 3.0, 4.0, 1.3]))  # three times the bandwidth
    found = tool.fitted(form, np.zeros(len(rows)), tool.DECODE, impossible)
    low, high = np.array(list(tool.DECODE.values())).T
    assert np.all((found >= low * 0.999) & (found <= high * 1.001))
