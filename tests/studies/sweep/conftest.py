"""A tiny scenario whose points take milliseconds, and sweeps of it."""

import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvsim.studies.sweep.load import load_sweep
from kvsim.studies.sweep.run import run_sweep
from kvsim.study.here import Here

SCENARIO = """
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine: {max_model_len: 4096, num_gpu_blocks_override: 1000, enable_prefix_caching: false}
cost: {kind: affine, fixed_ns: 1.0e+7, per_token_ns: 1.0e+5}
workload:
  arrivals: {kind: poisson, rate_per_s: 4}
  lengths: {kind: fixed, prompt_tokens: 50, output_tokens: 4}
  num_requests: 12
slo: {ttft_p99_s: 0.1}
variants:
  contiguous: {kv_cache: contiguous}
"""


class CountingCrew(Here):
    """This process; it remembers which points it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ran = []

    def submit(self, item):
        self.ran.append(item)
        return super().submit(item)


@dataclass
class Folder:
    """A folder with the scenario, to which sweeps are written."""

    path: Path

    def write(self, text: str, name: str = "mine") -> Path:
        file = self.path / f"{name}.yaml"
        file.write_text("scenario: scenario.yaml\n" + textwrap.dedent(text))
        return file

    def load(self, text: str, name: str = "mine"):
        return load_sweep(self.write(text, name))

    def run(self, text: str, name: str = "mine", out: str = "out", crew=None, **options):
        crew = crew or CountingCrew()
        result = run_sweep(self.load(text, name), self.path / out, crew, **options)
        return result, getattr(crew, "ran", None)


@pytest.fixture
def folder(tmp_path) -> Folder:
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    return Folder(tmp_path)
