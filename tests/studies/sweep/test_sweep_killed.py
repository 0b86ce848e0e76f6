"""Killed at any moment, and several at once in one directory: nothing is lost, nothing corrupt."""

import multiprocessing
import os
import random
import signal
import time

import pytest

from kvsim.studies.sweep.load import load_sweep
from kvsim.studies.sweep.outcome import Outcome
from kvsim.studies.sweep.run import run_sweep
from kvsim.studies.sweep.store import STORE, opened
from kvsim.study.here import Here

RATE = "workload.arrivals.rate_per_s"
LONG = f"axes: {{{RATE}: {{from: 1.0, to: 12.0, count: 12}}, engine.max_num_seqs: [1, 4]}}\n"
KILLS = 20

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")


def started(file, out):
    """Run a sweep in a process of its own, which has all imports already."""
    process = multiprocessing.get_context("fork").Process(
        target=lambda: run_sweep(load_sweep(file), out, Here())
    )
    process.start()
    return process


def test_killed_twenty_times_the_table_is_that_of_an_undisturbed_run(folder):
    file = folder.write(LONG)
    begin = time.monotonic()
    undisturbed, _ = folder.run(LONG, out="undisturbed")
    whole_s = time.monotonic() - begin
    expected = undisturbed.table_path.read_bytes(), undisturbed.page_path.read_bytes()

    chance = random.Random(20)
    kills = finished = 0
    while kills < KILLS or not finished:
        out = folder.path / f"killed-{finished}"
        process = started(file, out)
        if kills < KILLS:
            process.join(chance.uniform(0, whole_s / 2))
            process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            kills += 1
            continue
        assert process.exitcode == 0
        finished += 1
        assert ((out / "mine.parquet").read_bytes(), (out / "mine.html").read_bytes()) == expected


def test_sweeps_share_a_directory_at_the_same_time(folder):
    texts = {
        "first": LONG,
        "second": LONG.replace("[1, 4]", "[4, 8]"),
        "third": LONG.replace("[1, 4]", "[8, 1]"),
    }
    files = {name: folder.write(text, name) for name, text in texts.items()}
    shared = folder.path / "shared"
    running = [started(file, shared) for file in (*files.values(), files["first"])]
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0] * len(running)
    for name, text in texts.items():
        alone, ran = folder.run(text, name, out=f"alone-{name}")
        again, none = folder.run(text, name, out="shared")
        assert (len(ran), len(none)) == (24, 0)
        assert (shared / f"{name}.parquet").read_bytes() == alone.table_path.read_bytes()
        assert again.page_path.read_bytes() == alone.page_path.read_bytes()


def test_results_are_there_as_soon_as_they_are_put(folder):
    folder.run(LONG.replace("12}", "2}"))
    with opened(folder.path / "out" / STORE) as store, opened(folder.path / "out" / STORE) as other:
        result = Outcome(None, "Nothing.", {"ttft_p99_s": 0.1 + 0.2})
        store.put("k", result)
        assert other.status("k") == "done"
        assert other.get("k") == result
