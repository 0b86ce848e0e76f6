"""`kvsim export`: what it writes, what it says, and what it refuses."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvsim.cli.export import _date, _since_1970_ns
from kvsim.cli.main import app_with
from kvsim.errors import InputError

EXAMPLE = Path(__file__).parents[2] / "reports" / "example"


def export(*arguments, run=EXAMPLE):
    return CliRunner().invoke(app_with(), ["export", str(run), *map(str, arguments)])


def refusal(*arguments, run=EXAMPLE):
    done = export(*arguments, run=run)
    assert isinstance(done.exception, InputError)
    return str(done.exception).replace(str(run), "RUN")


def test_a_timeline_is_cut_out_and_told(tmp_path):
    out = tmp_path / "t.json"
    done = export("--chrome-trace", out, "--variant", "base", "--from-s", 10, "--to-s", 20)
    assert done.exit_code == 0, done.exception
    events = json.loads(out.read_text())["traceEvents"]
    assert done.stdout.splitlines()[0] == f"{len(events):,} events of 10 s in {out}"
    assert "https://ui.perfetto.dev" in done.stdout
    assert list(tmp_path.iterdir()) == [out]


def test_compressed_bytes_are_the_same_each_time(tmp_path):
    names = [tmp_path / "a.json.gz", tmp_path / "b.json.gz", tmp_path / "c.json"]
    for name in names:
        assert export("--chrome-trace", name, "--to-s", 3).exit_code == 0
    one, other, plain = (name.read_bytes() for name in names)
    assert one == other
    assert gzip.decompress(one) == plain
    assert len(one) < len(plain) / 4


def test_metrics_are_printed_alone():
    done = export("--openmetrics", "-")
    assert done.stdout.endswith("# EOF\n")
    assert done.stdout.startswith("# HELP vllm:")
    assert done.stderr == ""


def test_metrics_are_printed_alone_beside_a_timeline(tmp_path):
    done = export("--openmetrics", "-", "--chrome-trace", tmp_path / "t.json", "--to-s", 3)
    assert done.stdout == export("--openmetrics", "-").stdout
    assert "https://ui.perfetto.dev" in done.stderr


def test_samples_are_dated(tmp_path):
    out = tmp_path / "m.txt"
    done = export("--openmetrics", out, "--step-s", 60, "--start", "2026-01-31T09:00:00+01:00")
    assert done.exit_code == 0, done.exception
    assert "The run begins at 2026-01-31 08:00:00 UTC." in done.stdout
    assert f"promtool tsdb create-blocks-from openmetrics {out}" in done.stdout
    assert out.read_text().count('num_requests_running{model_name="meta') == 4 + 5
    assert " 1769846400\n" in out.read_text()
    export("--openmetrics", out, "--step-s", 60, "--force")
    assert " 60\n" in out.read_text()


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("1700000000.25", 1_700_000_000_250_000_000),
        ("2026-01-31T08:00:00Z", 1_769_846_400_000_000_000),
        ("2026-01-31T08:00:00.5+00:00", 1_769_846_400_500_000_000),
    ],
)
def test_a_start_is_a_date_or_seconds(text, ns):
    assert _since_1970_ns(text) == ns
    assert _date(0) == "1970-01-01 00:00:00 UTC"


@pytest.mark.parametrize("text", ["soon", "2026-01-31", "2026-01-31T08:00:00", "-1", "1e12", "nan"])
def test_another_start_is_refused(text):
    with pytest.raises(InputError, match="--start"):
        _since_1970_ns(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to write: --chrome-trace FILE or --openmetrics FILE"),
        (["--chrome-trace", "-"], "--chrome-trace -: name a file; only --openmetrics prints"),
        (["--openmetrics", "-", "--to-s", "1"], "--from-s and --to-s cut a timeline"),
        (["--chrome-trace", "x", "--from-s", "2", "--to-s", "1"], "must come after --from-s 2"),
        (["--chrome-trace", "x", "--from-s", "1e6"], "--from-s: the run ends after"),
        (["--chrome-trace", "x", "--step-s", "1"], "--step-s samples metrics"),
        (["--chrome-trace", "x", "--to-s", "inf"], "--to-s inf: must be at most 1e9"),
        (["--chrome-trace", "x", "--max-mb", "1e10"], "--max-mb 1e+10: must be at most 1e9"),
        (["--openmetrics", "-", "--step-s", "0"], "from 0.001 to 1e9"),
        (["--openmetrics", "-", "--step-s", "nan"], "from 0.001 to 1e9"),
        (["--openmetrics", "-", "--start", "0"], "--start dates samples; --step-s is missing"),
        (["--openmetrics", "-", "--variant", "contigous"], "did you mean contiguous?"),
        (["--chrome-trace", "x", "--openmetrics", "x"], "need a file each"),
        (["--chrome-trace", EXAMPLE / "t.json"], "RUN/t.json: a run's folder holds the run"),
        (["--chrome-trace", EXAMPLE.parent], "is no file that could be replaced"),
        (["--openmetrics", "-", "--max-mb", "0.01"], "more than 0.01 MB: choose a larger --step-s"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refusal(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_overwritten(tmp_path):
    out = tmp_path / "t.json"
    out.write_text("mine")
    assert refusal("--chrome-trace", out) == f"{out}: exists; --force overwrites it"
    assert out.read_text() == "mine"


def test_a_large_timeline_is_refused_with_a_span_that_fits(tmp_path):
    out = tmp_path / "t.json"
    message = refusal("--chrome-trace", out, "--max-mb", 1)
    assert "would become about 5 MB, more than 1 MB: cut out a part, as with --to-s " in message
    until_s = message.split("--to-s ")[1].split(",")[0]
    assert export("--chrome-trace", out, "--max-mb", 1.5, "--to-s", until_s).exit_code == 0
    assert out.stat().st_size < 1.5e6


def test_what_is_no_run_is_refused(tmp_path):
    assert "is no run of kvsim" in refusal("--openmetrics", "-", run=tmp_path)
