"""Tables on disk: what is read is what was written, whole, by chunks and by batches."""

import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.table_files import StoredTable, TableWriter, batches, chunks, row_count
from kvsim.tables import EVENTS, STEPS, ChosenRows

NAMES = [column.name for column in STEPS]


def random_rows(count, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-(2**62), 2**62, (count, len(STEPS)))
    for index, column in enumerate(STEPS):
        if column.codes:
            rows[:, index] = rng.integers(0, len(column.codes), count)
    return rows


@pytest.fixture(scope="module", params=["C", "F"])
def written(request, tmp_path_factory):
    """A table of two variants in chunks of several sizes, and the rows of each."""
    path = tmp_path_factory.mktemp("tables") / "steps.parquet"
    rows = {"base": random_rows(5_000), "größer": random_rows(301, seed=1)}
    writer = TableWriter(path, STEPS)
    for variant, values in rows.items():
        for chunk in np.split(values, [0, 1, 100, 297]):
            writer.write(variant, np.array(chunk, order=request.param))
    writer.close()
    return path, rows


@pytest.mark.parametrize("variant", ["base", "größer"])
def test_what_is_read_is_what_was_written(written, variant):
    path, rows = written
    table = StoredTable(path, STEPS, variant)
    assert list(table) == NAMES
    assert len(table) == len(STEPS)
    assert row_count(table) == len(rows[variant])
    for index, name in enumerate(NAMES):
        np.testing.assert_array_equal(table[name], rows[variant][:, index], name)
    columns = dict(StoredTable(path, STEPS, variant))
    np.testing.assert_array_equal(np.stack(list(columns.values()), axis=1), rows[variant])
    with pytest.raises(KeyError):
        table["variant"]


@pytest.mark.parametrize(("rows", "kept"), [(5_000, True), (4_999, False)])
def test_columns_of_a_small_table_are_read_once(written, monkeypatch, rows, kept):
    monkeypatch.setattr("kvsim.table_files.KEPT_ROWS", rows)
    table = StoredTable(written[0], STEPS, "base")
    assert (table["step"] is table["step"]) == kept
    with pytest.raises(ValueError, match="read-only"):
        table["step"][0] = 1


def test_a_chunk_that_can_not_be_written_is_told_with_the_next_or_at_the_end(tmp_path):
    writer = TableWriter(tmp_path / "steps.parquet", STEPS)
    names = np.full((3, len(STEPS)), 99)  # no column has so many
    writer.write("base", names)
    with pytest.raises(pa.ArrowException):
        writer.write("base", random_rows(3))
    writer.write("base", names)
    with pytest.raises(pa.ArrowException):
        writer.close()


def test_where_no_thread_starts_tables_are_the_same(written, tmp_path, monkeypatch):
    path, rows = written

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = TableWriter(tmp_path / "steps.parquet", STEPS)
    for variant, values in rows.items():
        for chunk in np.split(values, [0, 1, 100, 297]):
            writer.write(variant, chunk)
    writer.write("base", np.full((3, len(STEPS)), 99))
    with pytest.raises(pa.ArrowException):
        writer.close()
    assert (tmp_path / "steps.parquet").read_bytes() == path.read_bytes()
    sizes = [len(chunk["step"]) for chunk in chunks(StoredTable(path, STEPS, "base"), ["step"])]
    assert sizes == [1, 99, 197, 4_703]


def test_names_stand_for_codes_on_disk(written):
    path, rows = written
    column = pq.read_table(path, columns=["head_lacks", "variant"]).to_pydict()
    codes = next(column.codes for column in STEPS if column.name == "head_lacks")
    together = np.concatenate(list(rows.values()))[:, NAMES.index("head_lacks")]
    assert column["head_lacks"] == [codes[code] for code in together]
    assert column["variant"] == [name for name, values in rows.items() for _ in values]


@pytest.mark.parametrize("names", [["step"], ["head_lacks", "step"], NAMES])
@pytest.mark.parametrize("sizes", [[5_000], [0, 1, 98, 900, 4_001], [2_500] * 2, [500] * 10])
def test_batches_have_the_sizes_asked_for(written, names, sizes):
    path, rows = written
    stored = StoredTable(path, STEPS, "base")
    whole = dict(stored)
    for table in (stored, whole):
        found = list(batches(table, names, sizes))
        assert [len(batch[names[0]]) for batch in found] == sizes
        for name in names:
            joined = np.concatenate([batch[name] for batch in found])
            np.testing.assert_array_equal(joined, rows["base"][:, NAMES.index(name)])


def test_chunks_are_those_that_were_written(written):
    path, _ = written
    sizes = [len(chunk["step"]) for chunk in chunks(StoredTable(path, STEPS, "base"), ["step"])]
    assert sizes == [1, 99, 197, 4_703]
    in_memory = {"step": np.arange(3)}
    assert list(chunks(in_memory, ["step"])) == [in_memory]


def test_a_variant_without_rows_has_empty_columns(written):
    for table in (StoredTable(written[0], STEPS, "nobody"),):
        assert row_count(table) == 0
        assert all(len(column) == 0 for column in table.values())
        assert [len(chunk["step"]) for chunk in chunks(table, ["step"])] == [0]
        assert [len(batch["step"]) for batch in batches(table, ["step"], [0])] == [0]


def test_a_table_without_rows_can_be_read(tmp_path):
    TableWriter(tmp_path / "events.parquet", EVENTS).close()
    assert row_count(StoredTable(tmp_path / "events.parquet", EVENTS, "base")) == 0


def test_chosen_rows_are_picked_from_each_column():
    table = {"a": np.arange(4), "b": np.arange(4) * 10}
    chosen = ChosenRows(table, table["a"] % 2 == 1)
    assert list(chosen) == ["a", "b"]
    assert len(chosen) == 2
    assert chosen["b"].tolist() == [10, 30]


def test_neither_pandas_nor_plotly_is_imported_for_tables_and_figures(tmp_path):
    scenario = tmp_path / "small.yaml"
    scenario.write_text(
        "model: meta-llama/Llama-3.1-8B-Instruct\ngpu: h100_sxm\nworkload:\n"
        "  arrivals: {kind: poisson, rate_per_s: 4.0}\n  num_requests: 3\n"
        "  lengths: {kind: fixed, prompt_tokens: 20, output_tokens: 5}\n"
    )
    code = (
        "import sys\nfrom kvsim.cli.main import app_with\n"
        "app_with()(sys.argv[1:], standalone_mode=False)\n"
        "print([name for name in ('pandas', 'plotly', 'rich', 'scipy') if name in sys.modules])"
    )
    arguments = ["run", str(scenario), "--no-report", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
