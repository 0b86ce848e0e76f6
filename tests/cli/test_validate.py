"""`kvsim validate`: exit codes, what it prints, JSON for machines, the page."""

import json

import pytest
from typer.testing import CliRunner

from kvsim.cli.main import app_with
from kvsim.errors import InputError
from tests.validate.measured import KV_SIZES, record, records

RUNNER = CliRunner()


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine"
    path.write_text(records(record(), record(id="refused", gpu="MI300X")))
    return path


def test_text_names_errors_and_what_is_missing(mine):
    result = RUNNER.invoke(app_with(), ["validate", str(mine), "--jobs", "1"])
    assert result.exit_code == 0
    assert "mine " in result.stdout
    assert "Not predicted: refused\n    GPU 'MI300X' is not in the catalog" in result.stdout


def test_json_has_rows_and_summary(mine):
    result = RUNNER.invoke(app_with(), ["validate", str(mine), "--json", "--jobs", "1"])
    document = json.loads(result.stdout)
    row = document["rows"][0]
    assert list(row) == ["id", "metric", "stage", "predicted", "actual", "ape", "basis"]
    assert row["ape"] == pytest.approx(100 * abs(row["predicted"] / row["actual"] - 1))
    assert {r["id"] for r in document["rows"] if r["predicted"] is None} == {"refused"}
    assert set(document["summary"]["e2e_mean"]) == {"n", "median", "mean", "p90"}
    assert "refused" in document["summary"]["not_predicted"]


def test_a_page_is_written_and_only_a_page_overwritten(tmp_path):
    sizes, out = tmp_path / "sizes.csv", tmp_path / "new" / "page.html"
    sizes.write_text(KV_SIZES)
    asked = ["validate", str(sizes), "--out", str(out)]
    assert RUNNER.invoke(app_with(), asked).exit_code == 0
    page = out.read_text()
    assert "chart-kv_cache_tokens" in page
    assert RUNNER.invoke(app_with(), asked).exit_code == 0
    assert out.read_text() == page
    out.write_text("my notes")
    assert isinstance(RUNNER.invoke(app_with(), asked).exception, InputError)
    assert out.read_text() == "my notes"
    assert RUNNER.invoke(app_with(), [*asked, "--force"]).exit_code == 0
    assert out.read_text() == page


def test_a_file_that_is_no_measurement_is_a_mistake(tmp_path):
    path = tmp_path / "x"
    path.write_text("a,b\n")
    result = RUNNER.invoke(app_with(), ["validate", str(path)])
    assert isinstance(result.exception, InputError)
    assert "experiment records" in str(result.exception)


def test_an_input_is_never_overwritten(mine):
    before = mine.read_bytes()
    result = RUNNER.invoke(app_with(), ["validate", str(mine), "--out", str(mine), "--force"])
    assert isinstance(result.exception, InputError)
    assert "is read" in str(result.exception)
    assert mine.read_bytes() == before
