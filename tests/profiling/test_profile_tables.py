"""Rows and files in the published format; a folder that is whole or not there."""

import re
from pathlib import Path

import pandas as pd
import pytest

from kvsim.errors import InputError
from kvsim.profiling.shapes import AllReduce, AttentionCall, Copy, Gemm
from kvsim.profiling.tables import TABLES, new_folder, row_of, table_of, write_tables
from tests.profiling.stubs import fake_device

ROOT = Path(__file__).parents[2]
# As the published tables have them, in their order.
WHO = "gpu framework version"
HEAD_COLUMNS = "attn_dtype kv_dtype head_dim window q_heads kv_heads batch"
PUBLISHED = {
    "gemm": f"{WHO} dtype kernel m n k latency_us",
    "attention_prefill": f"{WHO} {HEAD_COLUMNS} new_tokens prefix_tokens kernel latency_us source",
    "attention_decode": f"{WHO} {HEAD_COLUMNS} kv_len kernel latency_us source",
    "comm": f"{WHO} impl launch op dtype world_size bytes topology source latency_us",
}
HEADS = 32, 8, 128
SHAPES = {
    "gemm": Gemm(16, 6144, 4096, "fp8"),
    "attention_prefill": AttentionCall("prefill", *HEADS, 2, 512, 1536),
    "attention_decode": AttentionCall("decode", *HEADS, 8, 1, 1000),
    "attention_layouts": AttentionCall("decode", *HEADS, 8, 1, 1000, 16, True, True),
    "comm": AllReduce(4, 65536),
    "copies": Copy("device_to_host", 4096, 16),
}
EXPECTED = {
    "gemm": {"m": 16, "n": 6144, "k": 4096, "dtype": "fp8"},
    "attention_prefill": {"batch": 2, "new_tokens": 512, "prefix_tokens": 1024, "window": 0},
    "attention_decode": {"batch": 8, "kv_len": 1000, "q_heads": 32, "kv_heads": 8},
    "attention_layouts": {"phase": "decode", "block_size": 16, "prefix_tokens": 999},
    "comm": {"op": "all_reduce", "launch": "graph", "world_size": 4, "bytes": 65536, "impl": "run"},
    "copies": {"op": "device_to_host", "piece_bytes": 4096, "pieces": 16},
}


def rows():
    return {
        table: [row_of(shape, "run", 12.34567, fake_device())] for table, shape in SHAPES.items()
    }


@pytest.mark.parametrize("table", list(SHAPES))
def test_a_shape_goes_to_its_table_with_all_that_identifies_it(table):
    assert table_of(SHAPES[table]) == table
    row = row_of(SHAPES[table], "run", 12.34567, fake_device())
    assert EXPECTED[table].items() <= row.items()
    assert (row["gpu"], row["framework"], row["version"]) == ("my_gpu", "torch", "2.13.0")
    assert row["latency_us"] == 12.35  # four digits


@pytest.mark.parametrize("table", list(PUBLISHED))
def test_columns_are_those_of_the_published_tables(table):
    assert [column.name for column in TABLES[table]] == PUBLISHED[table].split()


def test_every_column_says_what_it_holds():
    assert all(column.description and column.unit for t in TABLES.values() for column in t)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_tables_are_read_back_as_they_were(tmp_path, form):
    written = write_tables(tmp_path, rows(), form, {"gpu": "my_gpu"})
    assert {path.name for path in written} == {f"{table}.{form}" for table in SHAPES}
    read = pd.read_parquet if form == "parquet" else pd.read_csv
    for table, of_table in rows().items():
        frame = read(tmp_path / f"{table}.{form}")
        assert list(frame) == [column.name for column in TABLES[table]]
        back = frame.astype({"latency_us": float}).round(2).to_dict("records")
        assert back == [{**row, "latency_us": 12.35} for row in of_table]
        for column in TABLES[table]:
            if column.unit not in {"text", "us"}:
                assert frame[column.name].dtype == "int64"
    assert (tmp_path / "profile.json").read_text() == '{\n "gpu": "my_gpu"\n}\n'


def test_parquet_has_categories_as_the_published_tables_do(tmp_path):
    write_tables(tmp_path, rows(), "parquet", {})
    frame = pd.read_parquet(tmp_path / "gemm.parquet")
    assert frame["dtype"].dtype == "category"
    assert frame["latency_us"].dtype == "float32"


def test_a_folder_appears_when_all_is_in_it(tmp_path):
    target = tmp_path / "deep" / "mine"
    with new_folder(target) as folder:
        (folder / "a").write_text("x")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["a"]
    assert [path.name for path in target.parent.iterdir()] == ["mine"]


def test_nothing_stays_after_an_error(tmp_path):
    def interrupted():
        with new_folder(tmp_path / "mine") as folder:
            (folder / "a").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_never_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    with new_folder(tmp_path / "mine") as folder:  # an empty folder may become the new one
        (folder / "a").write_text("x")
    for taken in (tmp_path / "mine", tmp_path / "mine" / "a"):
        with pytest.raises(InputError, match="is there already"), new_folder(taken):
            pytest.fail("unreachable")
    assert (tmp_path / "mine" / "a").read_text() == "x"


def test_the_documents_name_every_table_column_and_kernel():
    page = (ROOT / "docs/kernel-tables.md").read_text(encoding="utf-8")
    for table, columns in TABLES.items():
        section = page.partition(f"\n### {table}\n")[2].partition("\n### ")[0]
        rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", section, flags=re.MULTILINE)
        assert rows == [(c.name, c.unit, c.description) for c in columns]
    code = "".join(path.read_text("utf-8") for path in (ROOT / "kvsim/profiling").glob("*.py"))
    kernels = set(re.findall(r'"(torch_[a-z_]+)"', code)) - {"torch_distributed_gloo"}
    assert set(re.findall(r"^\| `(torch_\w+)` \|", page, flags=re.MULTILINE)) == kernels
