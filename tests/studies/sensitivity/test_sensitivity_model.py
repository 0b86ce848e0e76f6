"""Factors of a scenario, and the sensitivity of simulations of it."""

import pytest

from kvsim.errors import InputError
from kvsim.scenario.change import changed
from kvsim.studies.sensitivity.answer import tornado_dict, tornado_sentences, tornado_table
from kvsim.studies.sensitivity.factors import factor_of, usual_factors
from kvsim.studies.sensitivity.model import Ask, simulated
from kvsim.studies.sensitivity.page import build_page
from kvsim.studies.sensitivity.tornado import tornado
from kvsim.study.here import Here
from kvsim.study.local import crew_of
from kvsim.study.point import Point, run_point
from tests.studies.plan.deployments import scenario_file


@pytest.fixture
def file(tmp_path):
    return scenario_file(tmp_path)


def test_usual_factors_are_what_a_scenario_has(file):
    factors = {factor.name: (factor.low, factor.high) for factor in usual_factors(file)}
    assert factors == {
        "load": (0.8, 1.2),
        "prompt length": (0.8, 1.2),
        "answer length": (0.8, 1.2),
        "engine.gpu_memory_utilization": (0.87, 0.97),
        "engine.max_num_seqs": (8, 32),
        "engine.max_num_batched_tokens": (256, 1024),
    }


def test_a_batch_at_once_has_no_load(tmp_path):
    workload = (
        "{arrivals: {kind: all_at_once}, num_requests: 5, lengths: {kind: uniform, "
        "prompt_min_tokens: 10, prompt_max_tokens: 20, output_min_tokens: 5, output_max_tokens: 9}}"
    )
    file = scenario_file(tmp_path, workload=workload)
    names = [factor.name for factor in usual_factors(file)]
    assert "load" not in names
    changes = factor_of(file, "prompt length", 0.5, 2.0).changes(2.0)
    assert changes == {
        "workload.lengths.prompt_min_tokens": 20,
        "workload.lengths.prompt_max_tokens": 40,
    }


def test_factors_change_what_they_name(file):
    load = changed(file, factor_of(file, "load", 0.5, 2).changes(2)).base
    assert load.workload.arrivals.rate_per_s == 24
    answers = changed(file, factor_of(file, "answer length", 0.5, 2).changes(0.5)).base
    assert answers.workload.lengths.output_mean_tokens == 20
    seqs = factor_of(file, "engine.max_num_seqs", 4, 64)
    assert (seqs.base, seqs.whole, seqs.changes(5.4)) == (16, True, {"engine.max_num_seqs": 5})


@pytest.mark.parametrize(
    ("name", "low", "high", "message"),
    [
        ("load", 2, 1, "holds nothing"),
        ("load", 0, 1, "load: is multiplied: 0 is no factor"),
        ("load", 1, 1e9, "rate_per_s: should be less than or equal to 1000000"),
        ("prompt length", -1, 1, "prompt length: is multiplied: -1 is no factor"),
        ("engine.scheduling_policy", 1, 2, "is no number"),
        ("engine.enable_chunked_prefill", 1, 2, "is no number"),
        ("engine.max_num_seq", 1, 2, "did you mean max_num_seqs"),
        ("engine.gpu_memory_utilization", 0.5, 1.5, "engine.gpu_memory_utilization: "),
    ],
)
def test_mistakes_in_factors_are_told(file, name, low, high, message):
    with pytest.raises(InputError, match=message):
        factor_of(file, name, low, high)


def test_a_metric_must_exist(file):
    with pytest.raises(InputError, match="did you mean ttft_p99_s"):
        simulated(file, [], "ttft_p99", Here())


def test_model_gives_the_figures_of_runs(file):
    factors = [factor_of(file, "load", 0.5, 2.0), factor_of(file, "engine.max_num_seqs", 4, 64)]
    model = simulated(file, factors, "e2e_p99_s", Here())
    asks = [Ask((None, None)), Ask((2.0, 4.0), 1), Ask((None, None))]
    changes = {"workload.arrivals.rate_per_s": 24.0, "engine.max_num_seqs": 4}
    known = [
        run_point(file, point).summary()["figures"]["e2e_p99_s"]
        for point in (Point(), Point(changes, replication=1), Point())
    ]
    assert [answer.value for answer in model(asks)] == known


def test_what_would_not_start_has_no_figure(file):
    factors = [factor_of(file, "engine.gpu_memory_utilization", 0.05, 0.9)]
    (answer,) = simulated(file, factors, "e2e_p99_s", Here())([Ask((0.05,))])
    assert answer.value is None
    assert "memory" in answer.why


def test_tornado_is_the_same_with_two_processes_and_is_told_in_full(file):
    factors = [
        factor_of(file, "load", 0.2, 6.0),
        factor_of(file, "engine.gpu_memory_utilization", 0.05, 0.9),
    ]
    one, two = (
        tornado(factors, simulated(file, factors, "e2e_p99_s", crew), 3)
        for crew in (Here(), crew_of(2))
    )
    assert tornado_dict(one, "e2e_p99_s") == tornado_dict(two, "e2e_p99_s")
    said = tornado_sentences(one, "e2e_p99_s")
    assert said[0].startswith("e2e_p99_s moves most with load")
    assert any(
        sentence.startswith("gpu_memory_utilization 0.05 has no figure") for sentence in said
    )
    assert len(tornado_table(one, "e2e_p99_s").rows) == 2
    page = build_page(file, one, "e2e_p99_s", "kvsim sensitivity x")
    assert page == build_page(file, two, "e2e_p99_s", "kvsim sensitivity x")
    assert "moves most with load" in page
