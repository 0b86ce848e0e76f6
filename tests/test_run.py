"""`kvsim run` from end to end: exit codes, what is printed where, what is left on the disk."""

import contextlib
import io
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kvsim.simulate
from kvsim.cli.main import main
from kvsim.errors import InputError
from kvsim.table_files import StoredTable
from kvsim.tables import MAP_TABLES, TABLES
from tests.disk import contents

SCENARIO = """\
# Does a small server answer in time?
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine: {max_model_len: 4096, max_num_seqs: 16}
workload:
  arrivals: {kind: poisson, rate_per_s: 8.0}
  lengths: {kind: fixed, prompt_tokens: 550, output_tokens: 50}
  num_requests: 30
variants:
  contiguous:
    kv_cache: {kind: contiguous}
"""
MET = SCENARIO + "slo: {ttft_p99_s: 5.0}\n"
MISSED = SCENARIO + "slo: {ttft_p99_s: 0.001}\n"
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
OF_REPORT = {"report.html", *(f"{table}.parquet" for table in MAP_TABLES)}
FILES = {
    *("manifest.json", "summary.json", "replications.parquet"),
    *(f"{table}.parquet" for table in TABLES),
    *OF_REPORT,
}
KVSIM = [sys.executable, "-c", "from kvsim.cli.main import main; main()"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The handlers of the command line are not for the process that runs the tests.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return tmp_path


def kvsim_run(text, *options, name="small.yaml"):
    """Run a scenario in this process; return exit code, stdout and stderr."""
    Path(name).write_text(text, encoding="utf-8")
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["kvsim", "run", name, *options])
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
    return ended.value.code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(("text", "code"), [(SCENARIO, 0), (MET, 0), (MISSED, 1)])
def test_the_exit_code_is_the_verdict_on_the_base(folder, text, code):
    found, out, err = kvsim_run(text, "--no-report")
    assert found == code
    assert err == ""
    first = out.splitlines()[0]
    assert first.startswith({0: ("Meets", "No"), 1: ("Misses",)}[code]), first
    assert contents(folder / "reports" / "small").keys() == FILES - OF_REPORT


def test_the_exit_code_does_not_belong_to_a_variant(folder):
    slow = "  slow: {cost: {kind: affine, fixed_ns: 1000000000}}\n"
    code, out, _ = kvsim_run(MET.replace("variants:\n", "variants:\n" + slow), "--json")
    met = {name: summary["verdict"]["met"] for name, summary in json.loads(out).items()}
    assert met == {"base": True, "slow": False, "contiguous": True}
    assert code == 0


def test_the_text_tells_of_each_variant_whether_it_meets_the_slo(folder):
    slow = "  slow: {cost: {kind: affine, fixed_ns: 1000000000}}\n"
    _, out, _ = kvsim_run(MET.replace("variants:\n", "variants:\n" + slow), "--no-report")
    assert ["SLO", "met?", "MISSED", "met?"] in [line.split() for line in out.splitlines()]
    assert "\nslow: Misses its SLO: TTFT p99 is " in out
    assert "\ncontiguous: Meets its SLO, as far as " in out
    _, out, _ = kvsim_run(SCENARIO, "--no-report")
    assert not any(line.startswith("SLO") for line in out.splitlines())


def test_the_targets_of_classes_are_told_with_their_names(folder):
    classes = "  classes: {chat: {weight: 1}}\nclass_slos: {chat: {ttft_p99_s: 5.0}}\n"
    _, out, _ = kvsim_run(SCENARIO.replace("variants:\n", classes + "variants:\n"), "--no-report")
    (target,) = (line for line in out.splitlines() if line.startswith("chat: ttft_p99_s "))
    assert target.endswith(" met?")  # by 30 requests, which do not bound a p99
    assert "\ncontiguous: Class chat meets its SLO, as far as " in out


def test_a_target_that_is_missed_many_times_over_says_how_many(folder):
    _, out, _ = kvsim_run(MISSED, "--no-report")
    row = next(line.split() for line in out.splitlines() if line.startswith("ttft_p99_s"))
    assert row[-2] == "x"
    assert float(row[-3]) > 2
    assert row[-1] == "MISSED"


def test_json_is_all_that_stdout_gets_and_the_same_as_the_file(folder):
    code, out, err = kvsim_run(MISSED, "--json", "--no-report", "--out", "here")
    assert (code, err) == (1, "")
    assert list(json.loads(out)) == ["base", "contiguous"]
    assert out == (folder / "here" / "summary.json").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["here", "small.yaml"]


def test_the_answer_says_where_things_are(folder):
    _, out, _ = kvsim_run(SCENARIO, "--out", "a b/c")
    assert contents(folder / "a b" / "c").keys() == FILES
    last = out.splitlines()[-1]
    assert last == "Report: a b/c/report.html"
    page = (folder / "a b" / "c" / "report.html").read_text()
    assert "kvsim run small.yaml" in page


def test_the_command_in_the_report_can_be_pasted(folder):
    kvsim_run(SCENARIO, "--out", "run", name="my chat.yaml")
    assert "kvsim run &#39;my chat.yaml&#39;" in (folder / "run" / "report.html").read_text()


def test_progress_goes_to_a_terminal_on_stderr_and_nowhere_else(tmp_path):
    (tmp_path / "small.yaml").write_text(SCENARIO)
    terminal, end = pty.openpty()
    command = [*KVSIM, "run", "small.yaml", "--json", "--no-report"]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=end, check=True)
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):  # what Linux says once the other end is closed
        while chunk := os.read(terminal, 65536):
            shown += chunk
    os.close(terminal)
    assert list(json.loads(done.stdout)) == ["base", "contiguous"]
    assert b"30/30 requests" in shown
    assert b"contiguous" in shown


def test_an_older_run_is_replaced_as_a_whole(folder):
    kvsim_run(MET)
    before = contents(folder / "reports" / "small")
    kvsim_run(SCENARIO.replace("30", "20"), "--no-report")
    after = contents(folder / "reports" / "small")
    assert before.keys() == FILES
    assert after.keys() == FILES - OF_REPORT
    assert all(before[name] != after[name] for name in ("manifest.json", "steps.parquet"))
    assert [path.name for path in (folder / "reports").iterdir()] == ["small"]


@pytest.mark.parametrize("extra", [{"notes.txt": "mine"}, {"manifest.json": "{}"}])
def test_a_folder_that_is_no_run_is_refused_and_stays(folder, extra):
    (folder / "taken").mkdir()
    for name, text in extra.items():
        (folder / "taken" / name).write_text(text)
    before = contents(folder)
    code, out, err = kvsim_run(SCENARIO, "--out", "taken")
    assert (code, out) == (2, "")
    assert err.startswith("taken: is there already")
    assert len(err.splitlines()) == 1
    assert contents(folder) == before | {"small.yaml": SCENARIO.encode()}


def test_a_run_with_something_of_the_users_in_it_is_refused_and_stays(folder):
    kvsim_run(SCENARIO, "--no-report")
    (folder / "reports" / "small" / "notes.txt").write_text("mine")
    before = contents(folder)
    code, _, err = kvsim_run(SCENARIO, "--no-report")
    assert code == 2
    assert "notes.txt" in err
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (("rate_per_s: 8.0", "rate_per_s: -8.0"), ["small.yaml:6: workload.arrivals.rate_per_s: "]),
        (
            ("prompt_tokens: 550", "prompt_tokens: 5000"),
            ["request 0 can never be served: its prompt of 5000 tokens"],
        ),
        (
            (
                "{kind: contiguous}",
                "{kind: contiguous, placement: buddy}\n"
                "    engine: {max_model_len: 3000, num_gpu_blocks_override: 189}",
            ),  # the least chunk for 3000 tokens is one of 4096
            ["variants.contiguous: request 0 can never be served", "fit the KV cache of 3024"],
        ),
        (
            ("{kind: poisson, rate_per_s: 8.0}", "{kind: trace, file: t.csv}"),
            ["t.csv:4: bad row '2023-11-16 18:15:47,x,44'"],
        ),
        (("{kind: poisson, rate_per_s: 8.0}", "{kind: trace, file: none.csv}"), ["none.csv"]),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_place_and_leave_nothing(folder, change, messages):
    (folder / "t.csv").write_text(TRACE + TRACE.splitlines()[1] + "\n2023-11-16 18:15:47,x,44\n")
    assert SCENARIO.count(change[0]) == 1
    code, out, err = kvsim_run(SCENARIO.replace(*change))
    assert (code, out) == (2, "")
    for message in messages:
        assert message in err
    assert "Traceback" not in err
    assert {path.name for path in folder.iterdir()} == {"small.yaml", "t.csv"}


def test_a_model_that_does_not_fit_says_by_how_much_and_what_would(folder):
    too_big = SCENARIO.replace("Llama-3.1-8B", "Llama-3.1-70B")
    code, _, err = kvsim_run(too_big)
    assert code == 2
    assert "GiB" in err
    assert "tensor_parallel_size" in err
    assert "fp8" in err


def test_of_many_that_never_fit_ten_are_listed_and_no_variant_repeats_them(folder):
    code, _, err = kvsim_run(SCENARIO.replace("prompt_tokens: 550", "prompt_tokens: 4096"))
    assert code == 2
    assert err.count("can never be served") == 10
    assert err.count("and 20 more") == 1


def fails_in(variant, error):
    """Return a `simulate` that fails in one variant, once its rows have been written."""

    def simulate(resolved, *arguments):
        done = kvsim.simulate.simulate(resolved, *arguments)
        if resolved.name == variant:
            raise error
        return done

    return simulate


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("the model has a part that is not priced"), 2, "not priced"),
        (OSError(28, "No space left on device", "/disk/steps.parquet"), 2, "steps.parquet: No"),
        (SystemExit(130), 130, ""),
    ],
)
def test_a_failure_in_the_middle_leaves_the_disk_as_it_was(folder, monkeypatch, error, code, said):
    kvsim_run(MET, "--no-report")
    before = contents(folder)
    monkeypatch.setattr("kvsim.rundir.write.simulate", fails_in("contiguous", error))
    found, out, err = kvsim_run(MET, "--no-report")
    assert (found, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == (1 if said else 0)
    assert contents(folder) == before


def test_a_failing_report_leaves_the_disk_as_it_was(folder, monkeypatch):
    kvsim_run(MET, "--no-report")
    before = contents(folder)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvsim.report.run.write_report", fail)
    code, out, err = kvsim_run(MET)
    assert (code, out, err) == (2, "", "No space left on device\n")
    assert contents(folder) == before


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
@pytest.mark.parametrize("limit_bytes", [2_000, 1_000_000], ids=["tables", "report"])
def test_a_disk_that_is_full_is_one_line_and_leaves_nothing(tmp_path, limit_bytes):
    """No file may grow beyond a limit: the system refuses as it does when a disk is full."""
    (tmp_path / "s.yaml").write_text(SCENARIO)
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes},) * 2)"
    command = [sys.executable, "-B", "-c", f"{limit}; from kvsim.cli.main import main; main()"]
    done = subprocess.run(
        [*command, "run", "s.yaml", "--out", "run"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


@pytest.mark.skipif(os.name != "posix", reason="closes a file of a shell")
def test_a_terminal_that_knows_few_characters_shows_an_answer(tmp_path):
    (tmp_path / "small.yaml").write_text(SCENARIO, encoding="utf-8")
    command = [*KVSIM, "run", "small.yaml", "--no-report"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, env=environment)
    assert b"Goodput" in done.stdout
    assert done.stdout.isascii()


def test_a_run_needs_no_stdout(tmp_path):
    (tmp_path / "s.yaml").write_text(SCENARIO)
    kvsim = f"{shlex.quote(sys.executable)} -c 'from kvsim.cli.main import main; main()'"
    done = subprocess.run(
        ["sh", "-c", f"{kvsim} run s.yaml --no-report --out run >&-"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.stderr
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL")
def test_a_killed_run_leaves_the_older_one_and_a_hidden_folder(folder):
    kvsim_run(MET, "--no-report", "--out", "runs/run")
    before = contents(folder / "runs")
    Path("small.yaml").write_text(MET.replace("num_requests: 30", "num_requests: 200000"))
    process = subprocess.Popen([*KVSIM, "run", "small.yaml", "--out", "runs/run"])
    deadline = time.monotonic() + 60
    while not list(folder.glob("runs/.run-*/new/steps.parquet")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL
    after = contents(folder / "runs")
    assert {name: after[name] for name in before} == before
    assert all(name.startswith(".run-") for name in after.keys() - before.keys())
    assert after.keys() - before.keys()
    code, _, _ = kvsim_run(SCENARIO, "--no-report", "--out", "runs/run")
    assert code == 0


def test_all_requests_of_all_variants_are_in_the_tables(folder):
    kvsim_run(SCENARIO, "--no-report", "--out", "run")
    for variant in ("base", "contiguous"):
        rows = StoredTable(folder / "run" / "requests.parquet", TABLES["requests"], variant)
        assert sorted(rows["request"].tolist()) == list(range(30))


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (".", "is no file"),
        ("folder", "is no file"),
        ("pipe", "is no file"),
        ("reports/small/sent.parquet", "will hold the run and nothing else"),
        ("missing/sent.parquet", "its folder is not there"),
        ("small.yaml", "this run reads it"),
        ("log.csv", "this run reads it"),
    ],
)
def test_a_trace_never_takes_the_place_of_something_else(folder, place, reason):
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")  # as a device: what is written there is for someone else
    (folder / "log.csv").write_text(TRACE)
    replay = SCENARIO.replace("poisson, rate_per_s: 8.0", "trace, file: log.csv")
    replay = replay.replace("  num_requests: 30\n", "")
    before = sorted(path.name for path in folder.iterdir())
    code, out, err = kvsim_run(replay, "--no-report", "--save-trace", place)
    assert (code, out) == (2, "")
    assert f"--save-trace {place}: " in err
    assert reason in err
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, "small.yaml"])
    assert (folder / "log.csv").read_text() == TRACE


def test_a_trace_replaces_an_older_one(folder):
    for _ in range(2):
        code, _, err = kvsim_run(SCENARIO, "--no-report", "--save-trace", "sent.parquet")
        assert (code, err) == (0, "")
