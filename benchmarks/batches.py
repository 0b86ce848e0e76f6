"""What a decode step costs in which nothing changes, for a small and for a large batch.

To take a block is a change, of which a large batch has more: here one block holds half an answer.
"""

import math
import tempfile
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import step_loop

from kvsim.engine import compiled
from kvsim.scenario.load import load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all
from kvsim.simulate import simulate

# For so many long answers there must be room.
SCENARIO = """
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine: {{max_model_len: 131072, enable_prefix_caching: false, block_size: 65536,
         num_gpu_blocks_override: 1000}}
workload:
  arrivals: {{kind: all_at_once}}
  lengths: {{kind: fixed, prompt_tokens: 16, output_tokens: {answer_tokens}}}
  num_requests: {seqs}
"""
SHORT_TOKENS, LONG_TOKENS = 1_000, 120_000
SMALL, LARGE = 8, 256
ROUNDS = 25


def measure() -> dict[str, float | int]:
    """Return the time of a step for each batch, without that of its beginning and its end."""
    compiled.pays(compiled.LEAST_REQUESTS)  # both alike, as in a process that simulates more
    runs = {case: _run_of(*case) for case in product((SMALL, LARGE), (SHORT_TOKENS, LONG_TOKENS))}
    loop_s = dict.fromkeys(runs, math.inf)
    for _, (case, run) in product(range(ROUNDS), runs.items()):  # in turns, as the machine changes
        loop_s[case] = min(loop_s[case], step_loop.timed(run)[0])  # others only add to it
    small_us, large_us = (_step_us(loop_s, seqs) for seqs in (SMALL, LARGE))
    return {
        "small_step_us": round(small_us, 2),
        "large_step_us": round(large_us, 2),
        "large_over_small": round(large_us / small_us, 2),
    }


def _step_us(loop_s: Mapping[tuple[int, int], float], seqs: int) -> float:
    more_s = loop_s[seqs, LONG_TOKENS] - loop_s[seqs, SHORT_TOKENS]
    return more_s / (LONG_TOKENS - SHORT_TOKENS) * 1e6


def _run_of(seqs: int, answer_tokens: int) -> Callable[[], object]:
    """Return what simulates so many answers; rows are made, and not written."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "batch.yaml"
        scenario.write_text(SCENARIO.format(seqs=seqs, answer_tokens=answer_tokens))
        file = load_scenario(scenario)
    variants = resolve_all(file)
    requests = draw_requests(file, variants)
    return lambda: simulate(variants["base"], requests, lambda table, rows: None)


if __name__ == "__main__":
    print(measure())
