"""What a sweep takes with one and with two workers, and its driver: `sweep.py [POINTS]`.

Points are picked evenly from `sweep.yaml`, 60 unless told otherwise; all 1,000 take minutes. Both
crews are processes beside the driver, so that the ratio compares like with like.
"""

import itertools
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from kvsim.studies.sweep.load import SweepFile, load_sweep
from kvsim.studies.sweep.run import run_sweep
from kvsim.study.local import Local

HERE = Path(__file__).parent
POINTS = 60
ROUNDS = 5


def main() -> None:
    """Measure, and print one row for each round."""
    points = int(sys.argv[1]) if len(sys.argv) > 1 else POINTS
    rounds = 1 if points >= 500 else ROUNDS
    sweep = _thinned(load_sweep(HERE / "sweep.yaml"), points)
    ratios, best = [], {1: float("inf"), 2: float("inf")}
    print(f"{sweep.largest_size} points   one worker  two workers  ratio  driver's CPU")
    for _ in range(rounds):
        times = {workers: _measured(sweep, workers) for workers in (1, 2)}
        (one_s, _), (two_s, driver_s) = times[1], times[2]
        ratios.append(one_s / two_s)
        best = {1: min(best[1], one_s), 2: min(best[2], two_s)}
        per_point_ms = 1e3 * driver_s / sweep.largest_size
        print(f"{one_s:20.1f} s {two_s:10.1f} s {ratios[-1]:6.2f} {per_point_ms:8.2f} ms a point")
    print(f"ratio of the best {best[1] / best[2]:.2f}, median {statistics.median(ratios):.2f}")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"driver's peak memory {peak_mb:.0f} MB")


def _measured(sweep: SweepFile, workers: int) -> tuple[float, float]:
    """Return wall time and the driver's own CPU time of a whole sweep, page and table included."""
    with tempfile.TemporaryDirectory() as folder:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        run_sweep(sweep, Path(folder), Local(workers))
        return time.perf_counter() - wall_s, time.process_time() - cpu_s


def _thinned(file: SweepFile, points: int) -> SweepFile:
    """Return the sweep with fewer values on both axes, about so many points together."""
    (rates, seqs), shapes = file.sweep.axes.items(), itertools.product(range(2, 26), range(2, 41))
    shape = min(shapes, key=lambda s: (abs(s[0] * s[1] - points), abs(s[0] / s[1] - 25 / 40)))
    axes = {
        path: axis.model_copy(update={"count": count})
        for (path, axis), count in zip((rates, seqs), shape, strict=True)
    }
    return replace(file, sweep=file.sweep.model_copy(update={"axes": axes}))


if __name__ == "__main__":
    main()
