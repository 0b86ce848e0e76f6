"""What is asked: the load of each kind of arrivals, bounds of an SLO, series of a run."""

from dataclasses import replace

import numpy as np
import pytest

from kvsim.errors import InputError
from kvsim.metrics.summary import summarize
from kvsim.scenario.load import load_scenario
from kvsim.studies.capacity.bounds import GROWTH, bounds_of
from kvsim.studies.capacity.knob import is_steady, knob_at, load_of, with_requests
from kvsim.studies.capacity.observe import observe
from kvsim.studies.capacity.search import Options, ask, find_capacity, replications_differ
from kvsim.studies.capacity.simulation import Ask
from kvsim.study.here import Here
from kvsim.study.local import Local
from kvsim.study.point import make_ready, run_point

HEAD = """
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine: {max_model_len: 8192, max_num_seqs: 16}
cost: {kind: affine, fixed_ns: 5000000, per_token_ns: 5000}
"""
LENGTHS = "lengths: {kind: fixed, prompt_tokens: 300, output_tokens: 20}"
SLO = "slo: {ttft_p90_s: 0.2, tpot_mean_s: 0.01, itl_p95_s: 0.01, max_failed_fraction: 0.02}"


def scenario_of(folder, workload, more=""):
    path = folder / "asked.yaml"
    path.write_text(f"{HEAD}\nworkload: {{{LENGTHS}, num_requests: 60, {workload}}}\n{SLO}\n{more}")
    return load_scenario(path)


ARRIVALS = {  # arrivals, where their load stands, the load, twice as much
    "poisson": ("{kind: poisson, rate_per_s: 3}", "workload.arrivals.rate_per_s", 3.0),
    "gamma": (
        "{kind: gamma, rate_per_s: 3, burstiness: 0.5}",
        "workload.arrivals.rate_per_s",
        3.0,
    ),
    "closed": ("{kind: closed_loop, users: 4}", "workload.arrivals.users", 4.0),
    "day": (
        "{kind: day_curve, points: [{hour: 0, rate_per_s: 2}, {hour: 12, rate_per_s: 4}]}",
        "workload.arrivals.rate_scale",
        1.0,
    ),
    "bursts": (
        "{kind: bursts, base_rate_per_s: 1, burst_rate_per_s: 9, mean_burst_s: 5, mean_gap_s: 15}",
        "load",
        1.0,
    ),
}


@pytest.mark.parametrize("kind", ARRIVALS)
def test_the_load_of_each_kind_is_found_and_doubled(tmp_path, kind):
    arrivals, path, value = ARRIVALS[kind]
    file = scenario_of(tmp_path, f"arrivals: {arrivals}")
    knob = load_of(file.base)
    assert (knob.path, knob.first) == (path, value)
    question = ask(file, Options())
    rates = []
    for factor in (1, 2):
        point = question.point(Ask(factor * value, 0, 2_000 if question.steady else None))
        arrivals_of = make_ready(file, point).variant.scenario.workload.arrivals
        rates.append(getattr(arrivals_of, "rate_per_s", None) or arrivals_of.users)
    assert rates[1] == pytest.approx(2 * rates[0])


def test_classes_with_arrivals_of_their_own_are_scaled_together(tmp_path):
    classes = (
        "classes: {a.b: {arrivals: {kind: poisson, rate_per_s: 1}, num_requests: 9}, "
        "c: {arrivals: {kind: gamma, rate_per_s: 3, burstiness: 2}, num_requests: 9}}"
    )
    path = tmp_path / "classes.yaml"
    path.write_text(f"{HEAD}\nworkload: {{{LENGTHS}, {classes}}}\n{SLO}\n")
    file = load_scenario(path)
    question = ask(file, Options())
    assert question.knob.path == "load"
    ready = make_ready(file, question.point(Ask(2.0, 0, 400)))
    found = ready.variant.scenario.workload.classes
    assert [found[name].arrivals.rate_per_s for name in ("a.b", "c")] == [2, 6]
    assert [found[name].num_requests for name in ("a.b", "c")] == [100, 300]


@pytest.mark.parametrize("kind", ["poisson", "gamma"])
def test_equal_replications_are_paired(tmp_path, kind):
    file = scenario_of(tmp_path, f"arrivals: {ARRIVALS[kind][0]}")
    question = ask(file, Options())
    slow, fast = (
        make_ready(file, question.point(Ask(rate, 5, 500))).requests for rate in (2.0, 4.0)
    )
    assert np.abs(slow.arrival_ns - 2 * fast.arrival_ns).max() < 1_000  # rounded gaps
    assert np.array_equal(slow.prompt_tokens, fast.prompt_tokens)


@pytest.mark.parametrize(
    ("arrivals", "more", "steady", "random"),
    [
        ("{kind: poisson, rate_per_s: 3}", "", True, True),
        ("{kind: constant, rate_per_s: 3}", "", True, False),
        ("{kind: poisson, rate_per_s: 3}", "max_simulated_s: 5", False, True),
        (ARRIVALS["day"][0], "", False, True),
        ("{kind: constant, rate_per_s: 3}", "replicas: 2\nrouting: random", True, True),
    ],
)
def test_steady_and_random_are_told(tmp_path, arrivals, more, steady, random):
    file = scenario_of(tmp_path, f"arrivals: {arrivals}", more)
    assert is_steady(file.base) is steady
    assert replications_differ(ask(file, Options())) is random


@pytest.mark.parametrize(
    ("routing", "ranks", "vary", "random"),
    [
        ("random", 2, None, True),
        ("random", 1, None, False),
        ("random", 1, "replicas", True),
        ("power_of_two", 1, "engine.data_parallel_size", True),
        ("round_robin", 2, "replicas", False),
    ],
)
def test_routers_draw_where_there_are_several_engines(tmp_path, routing, ranks, vary, random):
    more = f"routing: {routing}\nvariants: {{r: {{engine: {{data_parallel_size: {ranks}}}}}}}"
    file = scenario_of(tmp_path, EVEN, more)
    options = Options(variant="r", vary=vary, start=1, end=4) if vary else Options(variant="r")
    assert replications_differ(ask(file, options)) is random


def test_bounds_are_means_and_goodput_replaces_what_binds_single_requests(tmp_path):
    base = scenario_of(tmp_path, f"arrivals: {ARRIVALS['poisson'][0]}").base
    found = {bound.name: (bound.kind, bound.allowed) for bound in bounds_of(base)}
    assert found == {
        "ttft_p90_s": ("beyond", 0.1),
        "tpot_mean_s": ("mean", 0.01),
        "itl_p95_s": ("beyond", 0.05),
        "max_failed_fraction": ("failed", 0.02),
        GROWTH: ("growth", 0.01),
    }
    goodput = {bound.name: bound.kind for bound in bounds_of(base, 0.99, steady=False)}
    assert "ttft_p90_s" not in goodput
    assert goodput["goodput"] == "not_good"
    assert goodput["tpot_mean_s"] == "mean"


def test_a_mean_is_within_its_bound_if_the_figure_is(tmp_path):
    """Bounds set at the figures of the run itself: each share is just what may be."""
    file = scenario_of(tmp_path, f"arrivals: {ARRIVALS['poisson'][0]}")
    question = ask(file, Options())
    finished = run_point(file, question.point(Ask(12.0, 0, 900)))
    tables, context = finished.tables, finished.context
    figures = summarize(tables["requests"], tables["steps"], tables["events"], context)["figures"]
    for bound in bounds_of(file.base, steady=False):
        figure = bound.name.removeprefix("max_")
        if bound.kind == "beyond":
            percentile = figures[f"{bound.latency}_p95_s"]
            bound = replace(bound, limit_s=percentile)
        one = observe(tables, [bound], context, steady=False)
        mean = one.mean(bound, 0)
        if bound.kind == "beyond":
            assert mean <= 0.05 + 1e-9
            below = replace(bound, limit_s=percentile * 0.999)
            assert observe(tables, [below], context, False).mean(below, 0) >= 0.05 - 2 / 900
        else:
            assert mean == pytest.approx(figures[figure], rel=1e-9)


def test_whole_values_are_rounded_towards_the_easier():
    users = knob_at("a.b", 4, 1, 50, False)
    assert (users.inwards(4.7), knob_at("a.b", 4, 1, 50, True).inwards(4.2)) == (4, 5)
    assert users.value(users.place(7)) == pytest.approx(7)
    with pytest.raises(InputError, match="holds nothing"):
        knob_at("a.b", 4, 5, 5, False)


EVEN = "arrivals: {kind: constant, rate_per_s: 20}"


def test_two_processes_give_the_answer_of_one(tmp_path):
    file = scenario_of(tmp_path, EVEN)
    options = Options(precision=0.2)
    assert find_capacity(file, options, Here()) == find_capacity(file, options, Local(2))


def test_as_many_times_the_requests_of_each_class_last_as_long(tmp_path):
    classes = (
        "classes: {a.b: {arrivals: {kind: poisson, rate_per_s: 1}, num_requests: 9}, "
        "c: {arrivals: {kind: gamma, rate_per_s: 3, burstiness: 2}, num_requests: 20}}"
    )
    path = tmp_path / "classes.yaml"
    path.write_text(f"{HEAD}\nworkload: {{{LENGTHS}, {classes}}}\n{SLO}\n")
    scenario = load_scenario(path).base
    found = with_requests(scenario, load_of(scenario).changes(3.0), 3.0)["workload.classes"]
    assert [found[name]["num_requests"] for name in ("a.b", "c")] == [27, 60]
    assert [found[name]["arrivals"]["rate_per_s"] for name in ("a.b", "c")] == [3, 9]
