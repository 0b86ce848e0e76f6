"""Whether replications of a point differ."""

import pytest

from kvsim.scenario.load import load_scenario
from kvsim.study.point import Point
from kvsim.study.randomness import is_random

ROWS = ("2023-11-16 18:15:46.68,10,5", "2023-11-16 18:15:47.68,20,6")


@pytest.fixture
def file(tmp_path):
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    (tmp_path / "log.csv").write_text("\n".join([header, *ROWS]))
    path = tmp_path / "log.yaml"
    path.write_text(
        "model: meta-llama/Llama-3.1-70B-Instruct\n"  # needs more than one GPU
        "gpu: h100_sxm\n"
        "workload: {arrivals: {kind: trace, file: log.csv}, lengths: {kind: trace}}\n"
    )
    return load_scenario(path)


@pytest.mark.parametrize(
    ("changes", "random"),
    [
        ({}, False),
        ({"workload.arrivals.resample": True}, True),
        ({"workload.lengths": {"kind": "fixed", "prompt_tokens": 5, "output_tokens": 5}}, False),
        ({"workload.arrivals": {"kind": "poisson", "rate_per_s": 1.0},
          "workload.lengths": {"kind": "fixed", "prompt_tokens": 5, "output_tokens": 5},
          "workload.num_requests": 5}, True),
        ({"routing": "random"}, False),
        ({"routing": "random", "replicas": 2}, True),
        ({"routing": "power_of_two", "engine.data_parallel_size": 2}, True),
        ({"routing": "round_robin", "replicas": 2}, False),
    ],
)  # fmt: skip
def test_replications_differ_if_something_is_drawn(file, changes, random):
    assert is_random(file, Point(changes)) is random
