"""How long a large log takes with prefix caching, in how much memory: `prefix_cache.py [LOG]`.

LOG is a request log of Mooncake, such as the published conversation trace: 12,031 requests, 9.3
million blocks of 16 tokens. Without it a log of the same size is drawn, of conversations whose
turns repeat all that was said. The pool is never short, so what the engine finds in its cache can
be told from the log alone.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.rng import stream
from kvsim.scenario.load import load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all
from kvsim.simulate import simulate
from kvsim.tables import REQUESTS

REQUESTS_OF_LOG = 12_031
HASHED_TOKENS = 512  # of each of the log's hashes
BLOCK_TOKENS = 16
SCENARIO = """
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine:
  max_model_len: 131072
  num_gpu_blocks_override: 12000000
  block_size: {block_size}
  enable_prefix_caching: true
cost: {{kind: affine, fixed_ns: 5.0e6, per_token_ns: 1000.0}}
workload:
  arrivals: {{kind: trace, file: {log}}}
  lengths: {{kind: trace}}
"""

Figures = dict[str, float | int]


def measure(log: str = "") -> Figures:
    """Return the figures of one run in a fresh process, whose peak of memory is its own."""
    command = [sys.executable, __file__, "--once", *([log] if log else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def run_once(log: Path) -> Figures:
    """Return processor time of the loop (s), peak memory, and what was found in the cache."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "prefix_cache.yaml"
        scenario.write_text(SCENARIO.format(block_size=BLOCK_TOKENS, log=log.resolve()))
        file = load_scenario(scenario)
        variants = resolve_all(file)
        requests = draw_requests(file, variants)
    cached_tokens = 0
    place = [column.name for column in REQUESTS].index("cached_tokens")

    def sink(table: str, rows: NDArray[np.int64]) -> None:
        nonlocal cached_tokens
        if table == "requests":
            cached_tokens += int(rows[:, place].sum())

    start_s = time.process_time()
    totals = simulate(variants["base"], requests, sink).totals
    spent_s = time.process_time() - start_s
    expected_tokens = findable_tokens(log)
    if cached_tokens != expected_tokens:
        raise SystemExit(f"{cached_tokens} tokens were found, {expected_tokens} can be")
    # Linux counts in KiB, macOS in bytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "loop_cpu_s": round(spent_s, 2),
        "peak_rss_mib": peak // (2**20 if sys.platform == "darwin" else 2**10),
        "steps": totals.steps,
        "cached_tokens": cached_tokens,
        "hit_rate": round(cached_tokens / int(requests.prompt_tokens.sum()), 4),
    }


def findable_tokens(log: Path) -> int:
    """Return the tokens in full blocks whose hashes were seen before; the last never counts."""
    seen: set[int] = set()
    total = 0
    for line in log.read_text().splitlines():
        request = json.loads(line)
        prompt_tokens, hashes = request["input_length"], request["hash_ids"]
        known = next((n for n, each in enumerate(hashes) if each not in seen), len(hashes))
        seen.update(hashes)
        common_tokens = min(known * HASHED_TOKENS, prompt_tokens)
        total += min(common_tokens, prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    return total


def conversations() -> Iterator[dict[str, Any]]:
    """Yield the lines of a drawn log: a new conversation, or the next turn of a recent one."""
    rng = stream(0, "benchmark")
    time_ms = last_hash = 0
    open_: list[tuple[int, list[int]]] = []  # tokens and hashes of recent conversations
    for _ in range(REQUESTS_OF_LOG):
        time_ms += int(rng.integers(0, 590))
        tokens, hashes = 0, [0]  # all begin with the same system prompt
        if open_ and rng.random() < 0.36:
            tokens, hashes = open_.pop(int(rng.integers(0, len(open_))))
        tokens += HASHED_TOKENS + int(rng.lognormal(8.3, 1.1))
        tokens = min(tokens, 120_000)
        # What follows the last full piece is hashed anew with what is said now.
        new = -(-tokens // HASHED_TOKENS) - len(hashes)
        prompt_hashes = hashes + list(range(last_hash + 1, last_hash + 1 + new))
        last_hash += max(0, new)
        open_ = [*open_[-300:], (tokens, prompt_hashes[: tokens // HASHED_TOKENS])]
        yield {
            "timestamp": time_ms,
            "input_length": tokens,
            "output_length": 1 + int(rng.exponential(342)),
            "hash_ids": prompt_hashes,
        }


def main() -> None:
    """Measure once, of the log given or of a drawn one."""
    arguments = [each for each in sys.argv[1:] if each != "--once"]
    if "--once" not in sys.argv:
        print("prefix_cache", measure(*arguments))
        return
    with tempfile.TemporaryDirectory() as folder:
        log = Path(arguments[0] if arguments else Path(folder) / "drawn.jsonl")
        if not arguments:
            log.write_text("".join(json.dumps(line) + "\n" for line in conversations()))
        print(json.dumps(run_once(log)))


if __name__ == "__main__":
    main()
