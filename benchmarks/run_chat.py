"""Wall time and memory of whole processes: `kvsim run scenarios/chat.yaml`, and `kvsim --help`."""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHAT_TARGET_S = 15.0
HELP_TARGET_S = 0.4
CHAT_ROUNDS = 3
HELP_ROUNDS = 11

Figures = dict[str, float | int]


def measure_chat() -> Figures:
    """Return the wall time of the main job, its report included, and its peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "chat")
        walls_s, usages = _processes("run", "scenarios/chat.yaml", "--out", out, rounds=CHAT_ROUNDS)
    return {
        **_wall(walls_s),
        "cpu_s": round(statistics.median(use.ru_utime + use.ru_stime for use in usages), 2),
        # Linux counts in KiB, macOS in bytes.
        "peak_rss_mib": max(use.ru_maxrss for use in usages)
        // (2**20 if sys.platform == "darwin" else 2**10),
    }


def measure_help() -> Figures:
    """Return the wall time of `kvsim --help`."""
    return _wall(_processes("--help", rounds=HELP_ROUNDS)[0])


def _wall(walls_s: Sequence[float]) -> Figures:
    return {
        "wall_s": round(statistics.median(walls_s), 2),
        "wall_lowest_s": round(min(walls_s), 2),
    }


def _processes(
    *arguments: str, rounds: int
) -> tuple[Sequence[float], Sequence[resource.struct_rusage]]:
    """Run kvsim some times; return the wall time in seconds and the usage of each process."""
    walls_s, usages = zip(*(_process(arguments) for _ in range(rounds)), strict=True)
    return walls_s, usages


def _process(arguments: Sequence[str]) -> tuple[float, resource.struct_rusage]:
    command = [str(Path(sys.executable).with_name("kvsim")), *arguments]
    start_s = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - start_s
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return wall_s, usage


if __name__ == "__main__":
    print("kvsim run scenarios/chat.yaml", measure_chat(), f"target: {CHAT_TARGET_S} s")
    print("kvsim --help", measure_help(), f"target: {HELP_TARGET_S} s")
