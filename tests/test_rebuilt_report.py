"""`kvsim report` builds the page of a run from what is on disk, and from nothing else."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kvsim.cli.main import app_with
from kvsim.errors import InputError
from kvsim.rundir.read import open_run

EXAMPLE = Path(__file__).parents[1] / "reports" / "example"
GAP = "is damaged, or of another version of kvsim: it doesn't tell"


@pytest.fixture
def run(tmp_path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "run"))


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_run(folder)
    return str(caught.value).replace(str(folder), "RUN")


def in_json(name, change):
    """Damage that changes what a JSON file holds."""

    def damage(run):
        told = json.loads((run / name).read_text())
        change(told)
        (run / name).write_text(json.dumps(told))

    return damage


def in_table(name, changed):
    """Damage that writes a table anew."""

    def damage(run):
        path = run / f"{name}.parquet"
        pq.write_table(changed(pq.read_table(path)), path)

    return damage


def test_the_page_is_built_again_to_the_byte(run):
    before = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    done = CliRunner().invoke(app_with(), ["report", str(run)])
    assert (done.exit_code, done.stdout) == (0, f"Report: {run / 'report.html'}\n")
    assert (run / "report.html").read_bytes() == before


def test_the_page_tells_what_the_files_tell(run):
    """Nothing on it is remembered from the simulation."""
    summary = json.loads((run / "summary.json").read_text())
    summary["base"]["verdict"]["sentence"] = "A sentence of the file."
    (run / "summary.json").write_text(json.dumps(summary))
    CliRunner().invoke(app_with(), ["report", str(run)])
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
            "RUN/steps.parquet: is damaged: Parquet file size is 4 bytes, smaller than the minimum "
            "file footer (8 bytes)",
        ),
        (
            in_json("manifest.json", lambda told: told.pop("notes")),
            f"RUN/manifest.json: {GAP} 'notes'",
        ),
        (
            in_json("manifest.json", lambda told: told.update(class_names=7)),
            f"RUN/manifest.json: {GAP} 'class_names'",
        ),
        (
            in_json("summary.json", lambda told: told.update(ghost=told["base"])),
            f"RUN/manifest.json: {GAP} 'ghost'",
        ),
        (
            in_json("summary.json", lambda told: told.pop("base")),
            f"RUN/summary.json: {GAP} 'base'",
        ),
        (
            in_json("summary.json", lambda told: told["base"].update(verdict="met")),
            f"RUN/summary.json: {GAP} 'verdict'",
        ),
        (
            in_table("steps", lambda table: table.drop(["start_ns"])),
            "RUN/steps.parquet: is damaged: it has no column 'start_ns' as kvsim writes it",
        ),
        (
            in_table("requests", lambda table: table.set_column(1, "request", table["outcome"])),
            "RUN/requests.parquet: is damaged: it has no column 'request' as kvsim writes it",
        ),
    ],
)
def test_what_is_no_run_is_refused(run, damage, said):
    damage(run)
    assert refusal(run) == said


def test_damage_inside_a_table_is_found_where_it_is_read(run):
    """The file that is told is the one that is damaged, not the one that was to be written."""
    path, page = run / "steps.parquet", (run / "report.html").read_bytes()
    content = bytearray(path.read_bytes())
    content[100:-4000] = bytes(len(content) - 4100)
    path.write_bytes(content)
    for asked in (["report"], ["export", "--openmetrics", str(run.parent / "metrics.txt")]):
        done = CliRunner().invoke(app_with(), [*asked, str(run)])
        assert isinstance(done.exception, InputError)
        assert str(done.exception).startswith(f"{path}: is damaged: ")
    assert (run / "report.html").read_bytes() == page
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_half_a_memory_map_is_none(run):
    (run / "memory_map.parquet").unlink(missing_ok=True)
    (run / "memory_looks.parquet").write_bytes(b"")
    assert CliRunner().invoke(app_with(), ["report", str(run)]).exit_code == 0
