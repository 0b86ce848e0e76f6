"""Runs all benchmarks, prints one table beside the recorded figures; `--record` renews these.

Counts are deterministic: where one differs from the record, the results of the engine have
changed. Times and memory depend on the machine; the ratio depends on it least.
"""

import json
import sys
from pathlib import Path

import prefix_cache
import run_chat
import step_loop

RECORD = Path(__file__).with_name("results.json")
Results = dict[str, dict[str, float | int]]
# Benchmark, figure → least or greatest value.
AT_LEAST = {(name, "ratio"): step_loop.TARGET_RATIO for name in step_loop.ROUNDS}
AT_MOST = {
    ("prefix_cache", "loop_cpu_s"): prefix_cache.LOOP_TARGET_S,
    ("run_chat", "wall_s"): run_chat.CHAT_TARGET_S,
    ("help", "wall_s"): run_chat.HELP_TARGET_S,
}


def main() -> int:
    """Measure; return 1 if a target is missed."""
    found: Results = {name: step_loop.measure(name) for name in step_loop.ROUNDS}
    found["prefix_cache"] = prefix_cache.measure()
    found["run_chat"] = run_chat.measure_chat()
    found["help"] = run_chat.measure_help()
    recorded: Results = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    print(f"{'benchmark':<14}{'figure':<16}{'now':>10}{'recorded':>10}  target")
    missed = [
        _show(benchmark, figure, value, recorded.get(benchmark, {}).get(figure))
        for benchmark, figures in found.items()
        for figure, value in figures.items()
    ]
    if "--record" in sys.argv:
        RECORD.write_text(json.dumps(found, indent=2) + "\n")
    return int(any(missed))


def _show(benchmark: str, figure: str, now: float, recorded: float | None) -> bool:
    """Print a line; return whether its target is missed."""
    key = benchmark, figure
    missed, target = False, ""
    if key in AT_LEAST:
        missed, target = now < AT_LEAST[key], f">= {AT_LEAST[key]}"
    elif key in AT_MOST:
        missed, target = now > AT_MOST[key], f"<= {AT_MOST[key]}"
    elif figure in {"steps", "events", "cached_tokens"} and recorded not in {None, now}:
        target = "the engine's results have changed"
    before = "" if recorded is None else f"{recorded:,}"
    verdict = f"{target} {'MISSED' if missed else 'met'}" if key in AT_LEAST | AT_MOST else target
    print(f"{benchmark:<14}{figure:<16}{now:>10,}{before:>10}  {verdict}".rstrip())
    return missed


if __name__ == "__main__":
    sys.exit(main())
