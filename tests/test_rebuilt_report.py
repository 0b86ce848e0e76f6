"""`kvsim report` builds the page of a run from what is on disk, and from nothing else."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvsim.cli.main import app
from kvsim.errors import InputError
from kvsim.rundir.read import open_run

EXAMPLE = Path(__file__).parents[1] / "reports" / "example"


@pytest.fixture
def run(tmp_path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "run"))


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_run(folder)
    return str(caught.value).replace(str(folder), "RUN")


def test_the_page_is_built_again_to_the_byte(run):
    before = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    done = CliRunner().invoke(app, ["report", str(run)])
    assert (done.exit_code, done.stdout) == (0, f"Report: {run / 'report.html'}\n")
    assert (run / "report.html").read_bytes() == before


def test_the_page_tells_what_the_files_tell(run):
    """Nothing on it is remembered from the simulation."""
    summary = json.loads((run / "summary.json").read_text())
    summary["base"]["verdict"]["sentence"] = "A sentence of the file."
    (run / "summary.json").write_text(json.dumps(summary))
    CliRunner().invoke(app, ["report", str(run)])
    assert "A sentence of the file." in (run / "report.html").read_text()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: shutil.rmtree(run), "RUN: is no run of kvsim: it is no folder"),
        (
            lambda run: (run / "summary.json").unlink(),
            "RUN: is no run of kvsim: it holds no summary.json",
        ),
        (
            lambda run: (run / "manifest.json").write_text("{}"),
            "RUN: is a run of another version of kvsim; simulate its scenario again",
        ),
        (
            lambda run: (run / "summary.json").write_text("[1"),
            "RUN/summary.json: is damaged: it holds no JSON",
        ),
        (
            lambda run: (run / "steps.parquet").write_bytes(b"PAR1"),
            "RUN/steps.parquet: is damaged: it is no Parquet file",
        ),
    ],
)
def test_what_is_no_run_is_refused(run, damage, said):
    damage(run)
    assert refusal(run) == said
