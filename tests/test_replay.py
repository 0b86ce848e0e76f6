"""A trace that was written from a run, read back, gives the identical run."""

import numpy as np
import pytest

from kvsim.engine.config import EngineConfig
from kvsim.engine.routers.least_requests import LeastRequests
from kvsim.errors import InputError
from kvsim.workload.build import build_requests
from kvsim.workload.parameters import Workload
from kvsim.workload.replay import as_sent
from kvsim.workload.traces.own import write_trace
from tests.engine.harness import LinearCost, run

CONFIG = EngineConfig(
    max_num_seqs=16,
    max_num_batched_tokens=512,
    max_model_len=4096,
    num_gpu_blocks=600,
    enable_prefix_caching=True,
)
COST = LinearCost(3_000_000, 20_000, 30)
LENGTHS = {"kind": "uniform", "prompt_min_tokens": 20, "prompt_max_tokens": 300,
           "output_min_tokens": 5, "output_max_tokens": 90}  # fmt: skip
TALKS = {"kind": "sessions", "turns_mean": 3.0, "think_mean_s": 0.5, "prefix_tokens": 64}
POISSON = {"kind": "poisson", "rate_per_s": 12.0}
LOOP = {"kind": "closed_loop", "users": 9, "think_mean_s": 0.2}

TRAFFIC = {
    "open": {},
    "samples": {"n": 3},
    "limits": {"max_tokens": 30},
    "prefixes": {"prompts": {"kind": "shared_prefix", "prefix_tokens": 80, "groups": 3}},
    "talks": {"prompts": TALKS},
    "closed": {"arrivals": LOOP},
    "users talk": {"arrivals": LOOP, "prompts": TALKS},
    "capped": {"max_concurrency": 4},
    "impatient": {
        "arrivals": {"kind": "poisson", "rate_per_s": 80.0},
        "timeout_s": 0.3,
        "retries": {"max_retries": 2, "jitter": 0.9},
    },
}


def simulate(requests):
    return run(requests, CONFIG, COST, replicas=2, routing=LeastRequests())


@pytest.mark.parametrize("traffic", TRAFFIC)
def test_a_written_trace_gives_the_identical_run(traffic, tmp_path):
    asked = {"arrivals": POISSON, "lengths": LENGTHS, "num_requests": 300, **TRAFFIC[traffic]}
    requests = build_requests(Workload.model_validate(asked), seed=4)
    first = simulate(requests)
    rows = first.tables["requests"]
    retried = np.array(first.totals.retried_rows, dtype=np.int64)
    assert (len(retried) > 20) == (traffic == "impatient")
    sent = as_sent(requests, rows["request"], rows["arrival_ns"], retried)
    write_trace(tmp_path / "sent.parquet", sent)
    replayed = Workload.model_validate(
        {
            "arrivals": {"kind": "trace", "file": "sent.parquet"},
            "lengths": {"kind": "trace"},
            "timeout_s": asked.get("timeout_s"),
        },
        context={"base_dir": tmp_path},
    )
    second = simulate(build_requests(replayed, seed=99))
    for column, values in first.tables["steps"].items():
        np.testing.assert_array_equal(second.tables["steps"][column], values, column)
    for column in ("arrival_ns", "admitted_ns", "first_token_ns", "finish_ns", "output_tokens",
                   "outcome", "replica", "cached_tokens", "preemptions"):  # fmt: skip
        np.testing.assert_array_equal(second.tables["requests"][column], rows[column], column)
    if traffic in {"open", "samples", "limits"}:  # nobody waited for anybody: the same rows
        for table, columns in first.tables.items():
            for column, values in columns.items():
                np.testing.assert_array_equal(second.tables[table][column], values, column)


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"num_requests": 10},
        {"lengths": LENGTHS},
        {"prompts": {"kind": "fixed_set", "distinct_prompts": 3}},
        {"classes": {"a": {}, "b": {}}},
        {"classes": {"a": {}, "b": {"arrivals": POISSON, "num_requests": 5, "lengths": LENGTHS}}},
    ],
)
def test_samples_of_a_trace_stay_together_or_are_refused(more, tmp_path):
    asked = {"arrivals": POISSON, "lengths": LENGTHS, "num_requests": 20, "n": 3}
    write_trace(tmp_path / "sent.parquet", build_requests(Workload.model_validate(asked), seed=4))
    trace = {
        "arrivals": {"kind": "trace", "file": "sent.parquet"},
        "lengths": {"kind": "trace"},
    }

    def replayed(**fields):
        workload = Workload.model_validate({**trace, **fields}, context={"base_dir": tmp_path})
        return build_requests(workload, seed=1)

    assert replayed(classes={"a": {}}).group.tolist() == np.repeat(np.arange(20), 3).tolist()
    with pytest.raises(InputError, match=r"holds the samples of each request|end within a request"):
        replayed(**more)
