"""Engine iterations a second, over bare SimPy timeouts a second, on one workload.

The machine may be busy with other things and its clock may change, so that a time alone says
little. Each round measures bare timeouts, the engine, and bare timeouts again, in one process, in
processor time; the ratio of a round is the engine's rate over the mean rate around it, and the
median over the rounds is what counts. The engine runs as in `kvsim run`: recorder on, laws checked,
tables written to Parquet.
"""

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import simpy

from kvsim.engine.fleet import RunTotals
from kvsim.rundir.write import write_tables
from kvsim.scenario.load import load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all

HERE = Path(__file__).parent
TIMEOUTS = 100_000

Figures = dict[str, float | int]
Result = TypeVar("Result")


def measure(name: str, rounds: int) -> Figures:
    """Return ratio, counts, and the time of the loop over some rounds for one scenario."""
    run = prepare(HERE / f"{name}.yaml")
    ratios, engine_s = [], []
    for _ in range(rounds):
        before_s, _ = timed(bare)
        spent_s, totals = timed(run)
        after_s, _ = timed(bare)
        timeouts_per_s = TIMEOUTS / ((before_s + after_s) / 2)
        ratios.append(totals.steps / spent_s / timeouts_per_s)
        engine_s.append(spent_s)
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_lowest": round(min(ratios), 3),
        "ratio_highest": round(max(ratios), 3),
        "loop_cpu_s": round(statistics.median(engine_s), 4),
        "steps_per_s": round(totals.steps / statistics.median(engine_s)),
        "steps": totals.steps,
        "events": totals.events,
    }


def prepare(scenario: Path) -> Callable[[], RunTotals]:
    """Return what simulates a scenario once and writes its tables to a folder that vanishes."""
    file = load_scenario(scenario)
    variants = resolve_all(file)
    requests = draw_requests(file, variants)

    def run() -> RunTotals:
        with tempfile.TemporaryDirectory() as folder:
            return write_tables(Path(folder), variants, requests)["base"].totals

    return run


def bare() -> None:
    """Let one SimPy process wait `TIMEOUTS` times and do nothing else."""

    def process(environment: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        for _ in range(TIMEOUTS):
            yield environment.timeout(1)

    environment = simpy.Environment()
    environment.process(process(environment))
    environment.run()


def timed(action: Callable[[], Result]) -> tuple[float, Result]:
    """Return the processor time that an action takes in this process, and what it returns."""
    gc.collect()
    start_s = time.process_time()
    result = action()
    return time.process_time() - start_s, result


if __name__ == "__main__":
    for scenario in sys.argv[1:] or ["common_1000"]:
        print(scenario, measure(scenario, rounds=5))
