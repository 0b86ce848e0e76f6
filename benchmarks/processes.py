"""Wall time, processor time and memory of whole processes: `processes.py [ARGUMENT ...]` of kvsim.

Without arguments: `kvsim run scenarios/chat.yaml`.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A process of its own: a child's peak of memory is at least what its parent held when it began.
LAUNCH = """
import json, resource, subprocess, sys, time
start_s = time.perf_counter()
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
wall_s = time.perf_counter() - start_s
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
unit = 2**20 if sys.platform == "darwin" else 2**10  # Linux counts in KiB, macOS in bytes
print(json.dumps([code, wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss // unit]))
"""

Figures = dict[str, float | int]


def measure(*arguments: str, rounds: int = 1) -> Figures:
    """Return the median times and the peak memory of `kvsim` with these arguments."""
    walls_s, cpus_s, peaks_mib = zip(*(_process(arguments) for _ in range(rounds)), strict=True)
    return {
        "wall_s": round(statistics.median(walls_s), 2),
        "wall_lowest_s": round(min(walls_s), 2),
        "cpu_s": round(statistics.median(cpus_s), 2),
        "peak_rss_mib": max(peaks_mib),
    }


def measure_run(scenario: str, *options: str, rounds: int = 1) -> Figures:
    """Return the same of `kvsim run`; what it writes vanishes."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        return measure("run", scenario, "--out", out, *options, rounds=rounds)


def _process(arguments: Sequence[str]) -> tuple[float, float, int]:
    command = [str(Path(sys.executable).with_name("kvsim")), *arguments]
    launch = [sys.executable, "-c", LAUNCH, *command]
    done = subprocess.run(launch, cwd=ROOT, check=True, capture_output=True, text=True)
    code, wall_s, cpu_s, peak_mib = json.loads(done.stdout)
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}\n{done.stderr}")
    return wall_s, cpu_s, peak_mib


if __name__ == "__main__":
    print(measure(*sys.argv[1:]) if sys.argv[1:] else measure_run("scenarios/chat.yaml"))
