"""Wall time and memory of whole processes: `kvsim run scenarios/chat.yaml`, and `kvsim --help`."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
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
        return _median("run", "scenarios/chat.yaml", "--out", out, rounds=CHAT_ROUNDS)


def measure_help() -> Figures:
    """Return the wall time of `kvsim --help`."""
    return _median("--help", rounds=HELP_ROUNDS)


def _median(*arguments: str, rounds: int) -> Figures:
    walls_s, peaks_bytes = zip(*(_process(arguments) for _ in range(rounds)), strict=True)
    return {
        "wall_s": round(statistics.median(walls_s), 2),
        "wall_lowest_s": round(min(walls_s), 2),
        "peak_rss_mib": round(max(peaks_bytes) / 2**20),
    }


def _process(arguments: tuple[str, ...]) -> tuple[float, int]:
    """Run kvsim once; return wall time in seconds and peak resident memory in bytes."""
    command = [str(Path(sys.executable).with_name("kvsim")), *arguments]
    start_s = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - start_s
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    # Linux counts in KiB, macOS in bytes.
    return wall_s, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    print("kvsim run scenarios/chat.yaml", measure_chat(), f"target: {CHAT_TARGET_S} s")
    print("kvsim --help", measure_help(), f"target: {HELP_TARGET_S} s")
