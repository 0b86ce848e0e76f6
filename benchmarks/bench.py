"""Runs the benchmarks and prints one table beside the recorded figures: `bench.py [NAME ...]`.

`--huge` adds those that take minutes: a million requests, and a fleet of 64 replicas for an hour;
so does their name. `--record` renews the record of what was measured.

Counts are deterministic: where one differs from the record, the results of the engine have
changed. Times and memory depend on the machine; ratios depend on it least.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import batches
import prefix_cache
import processes
import step_loop

HERE = Path(__file__).parent
RECORD = HERE / "results.json"
Figures = dict[str, float | int]
Results = dict[str, Figures]

ROUNDS = {
    "common_1000": 11,
    "common_10000": 5,
    "common_100000": 1,
    "quiet": 5,
    "overload": 5,
    "long_answers": 5,
}
HUGE = ("common_1000000", "fleet")
OPTIONS = {"--huge", "--record"}
COUNTS = {"steps", "events", "cached_tokens"}
# Benchmark, figure → least or greatest value.
AT_LEAST = {
    ("common_1000", "ratio"): 0.6,
    ("common_10000", "ratio"): 0.6,
    ("common_100000", "ratio"): 0.6,
    ("quiet", "ratio"): 1.0,
    ("overload", "ratio"): 0.08,
}
AT_MOST = {
    ("common_1000", "wall_s"): 0.8,
    ("common_10000", "wall_s"): 1.2,
    ("common_10000", "loop_cpu_s"): 0.3,
    ("common_100000", "wall_s"): 4.0,
    ("growth", "exponent"): 1.05,
    ("growth", "bytes_per_request"): 300,
    ("long_answers", "times_common_1000"): 6.0,
    ("batches", "large_over_small"): 1.0,
    ("fleet", "wall_s"): 90.0,
    ("fleet", "peak_rss_mib"): 2000,
    ("prefix_cache", "loop_cpu_s"): 30.0,
    ("chat_with_report", "wall_s"): 15.0,
    ("help", "wall_s"): 0.4,
}


def main() -> int:
    """Measure; return 1 if a target is missed."""
    options = {each for each in sys.argv[1:] if each.startswith("--")}
    wanted = set(sys.argv[1:]) - options
    recorded: Results = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found: Results = {}
    known = [name for name, _ in benchmarks(found, huge=True)]
    if unknown := (wanted - set(known)) | (options - OPTIONS):
        names = ", ".join(known)
        print(f"{__doc__}\nNot known: {', '.join(sorted(unknown))}. Benchmarks: {names}")
        return 2
    missed = False
    print(f"{'benchmark':<17}{'figure':<18}{'now':>12}{'recorded':>12}  target")
    for name, measure in benchmarks(found, "--huge" in options or not wanted.isdisjoint(HUGE)):
        if wanted and name not in wanted:
            continue
        found[name] = measure()
        for figure, value in found[name].items():
            missed |= _show(name, figure, value, recorded.get(name, {}).get(figure))
    if "--record" in options:
        kept = {name: figures for name in known if (figures := (recorded | found).get(name))}
        RECORD.write_text(json.dumps(kept, indent=2) + "\n")
    return int(missed)


def benchmarks(found: Results, huge: bool) -> Iterator[tuple[str, Callable[[], Figures]]]:
    """Yield names and what measures them; some compare what was `found` before."""
    for name, rounds in ROUNDS.items():
        yield name, lambda name=name, rounds=rounds: _scenario(name, rounds, found)
    if huge:
        for name in HUGE:
            yield name, lambda name=name: _whole(name)
    yield "growth", lambda: _growth(found)
    yield "batches", batches.measure
    yield "prefix_cache", prefix_cache.measure
    for name, options in (("chat_with_report", ()), ("chat_without", ("--no-report",))):
        yield (
            name,
            lambda options=options: processes.measure_run(
                "scenarios/chat.yaml", *options, rounds=3
            ),
        )
    yield "help", lambda: processes.measure("--help", rounds=11)


def _whole(name: str, rounds: int = 1) -> Figures:
    return processes.measure_run(str(HERE / f"{name}.yaml"), "--no-report", rounds=rounds)


def _scenario(name: str, rounds: int, found: Results) -> Figures:
    """Measure the loop of a scenario, the whole process, and it beside what it is compared with."""
    figures = step_loop.measure(name, rounds) | _whole(name, min(rounds, 3))
    if name == "long_answers" and "common_1000" in found:
        times = figures["loop_cpu_s"] / found["common_1000"]["loop_cpu_s"]
        figures["times_common_1000"] = round(times, 2)
    return figures


def _growth(found: Results) -> Figures:
    """Return how the time of the loop, and memory, grow with the requests of the common workload.

    Memory is compared where buffers of a fixed size are full.
    """
    figures: Figures = {}
    few, many, most = (found.get(f"common_{size}") for size in (1_000, 100_000, 1_000_000))
    if few and many:
        times = many["loop_cpu_s"] / few["loop_cpu_s"]
        figures["exponent"] = round(math.log(times) / math.log(100), 3)
    if many and most:
        grown = (most["peak_rss_mib"] - many["peak_rss_mib"]) * 2**20
        figures["bytes_per_request"] = round(grown / 900_000)
    return figures


def _show(benchmark: str, figure: str, now: float, recorded: float | None) -> bool:
    """Print a line; return whether its target is missed."""
    key = benchmark, figure
    missed, target = False, ""
    if key in AT_LEAST:
        missed, target = now < AT_LEAST[key], f">= {AT_LEAST[key]}"
    elif key in AT_MOST:
        missed, target = now > AT_MOST[key], f"<= {AT_MOST[key]}"
    elif figure in COUNTS and recorded not in {None, now}:
        target = "the engine's results have changed"
    before = "" if recorded is None else f"{recorded:,}"
    verdict = f"{target} {'MISSED' if missed else 'met'}" if key in AT_LEAST | AT_MOST else target
    print(f"{benchmark:<17}{figure:<18}{now:>12,}{before:>12}  {verdict}".rstrip(), flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
