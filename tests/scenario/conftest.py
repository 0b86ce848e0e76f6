from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """\
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
workload:
  arrivals: {kind: poisson, rate_per_s: 2.0}
  lengths: {kind: fixed, prompt_tokens: 100, output_tokens: 20}
  num_requests: 10
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a scenario: the good one with further lines, or another text."""

    def write_scenario(more: str = "", text: str = GOOD, name: str = "test.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text + more, encoding="utf-8")
        return path

    return write_scenario
