"""The search for advice: known ratios, the time budget, odd scenarios."""

import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.scenario.load import load_scenario
from kvsim.studies.advice import candidates, search
from kvsim.studies.advice.answer import ratio_of, rows_of
from kvsim.studies.advice.candidates import Change
from kvsim.studies.advice.search import find_advice, refuse_unanswerable
from kvsim.study.here import Here
from kvsim.study.local import crew_of
from kvsim.study.point import Point, run_point
from tests.studies.plan.deployments import scenario_file

SERVICE_NS = 100_000_000  # of a request: one step, ten a second
SERVER = """
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
routing: {routing}
engine: {{max_model_len: 2048, max_num_seqs: 1, async_scheduling: false,
  enable_prefix_caching: false}}
cost: {{kind: affine, fixed_ns: 100000000}}
workload:
  arrivals: {arrivals}
  lengths: {{kind: fixed, prompt_tokens: 100, output_tokens: 1}}
  num_requests: 400
slo: {{{slo}}}
"""


def one_server(folder, arrivals, slo, routing="round_robin"):
    path = folder / "server.yaml"
    path.write_text(SERVER.format(arrivals=arrivals, slo=slo, routing=routing))
    return load_scenario(path)


def only(monkeypatch, *changes):
    """Let these be all changes there are, the first the most promising."""
    rules = tuple(lambda _, change=change: change for change in changes)
    monkeypatch.setattr(candidates, "RULES", rules)


REPLICA = Change("replica", "2 replicas", {"replicas": 2})
SLOT = Change("slots", "max_num_seqs 2", {"engine.max_num_seqs": 2})


def advised(file, budget_s=600.0, crew=None, tell=None):
    summary = run_point(file, Point()).summary()
    return rows_of(find_advice(file, summary, crew or Here(), budget_s, tell))


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    """A server that a steady stream reaches: a request each sixth of a second."""
    arrivals, slo = "{kind: constant, rate_per_s: 6}", "queue_p90_s: 0.05"
    return one_server(tmp_path_factory.mktemp("steady"), arrivals, slo)


@pytest.fixture(scope="module")
def doubled(steady):
    """What is found for that server, and for two of it: both searches take their time."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        only(monkeypatch, REPLICA)
        return advised(steady)


# What is known beforehand


def test_two_servers_take_twice_the_constant_load_of_one(doubled):
    """Ten requests a second, and no queue until then: the limit is where gaps equal services."""
    base, replica = doubled
    assert (base["unit"], base["confidence"]) == ("requests/s", None)
    for row, exact in ((base, 10.0), (replica, 20.0)):
        assert row["capacity_low"] <= exact * 1.001
        assert row["capacity_high"] >= exact
        assert row["capacity"] == pytest.approx(exact, rel=0.06)
    assert replica["ratio_low"] <= 2.001
    assert replica["ratio_high"] >= 2
    assert replica["gpus"] == 2 * base["gpus"]


def test_servers_that_are_drawn_at_random_take_as_much_each(tmp_path, monkeypatch):
    """A Poisson stream split at random is two Poisson streams: the capacity doubles exactly."""
    only(monkeypatch, REPLICA)
    arrivals, slo = "{kind: poisson, rate_per_s: 5}", "queue_p90_s: 0.3, max_failed_fraction: 0.5"
    base, replica = advised(one_server(tmp_path, arrivals, slo, "random"))
    assert base["confidence"] == 0.95
    assert replica["ratio"] == pytest.approx(2, rel=0.1)
    assert replica["ratio_low"] <= 2 <= replica["ratio_high"]
    assert (base["ratio_low"], base["ratio"], base["ratio_high"]) == (1, 1, 1)


def test_costs_are_those_of_the_gpus_at_capacity(doubled):
    base, replica = doubled
    assert replica["usd_per_hour"] == pytest.approx(2 * base["usd_per_hour"])
    per_hour = base["capacity"] * 3600  # an output token each
    assert base["usd_per_million_output_tokens"] == pytest.approx(
        base["usd_per_hour"] / per_hour * 1e6, rel=0.02
    )


# The time


def test_the_time_decides_only_how_many_changes_are_looked_at(steady, doubled, monkeypatch):
    only(monkeypatch, REPLICA, SLOT)
    now = [0.0]
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def tell(done, of, words):
        now[0] = 100.0 if words == SLOT.words else 1.0

    part = advised(steady, 50.0, tell=tell)
    assert [row["key"] for row in part] == ["base", "replica", "slots"]
    assert part[:2] == doubled
    assert part[2]["outcome"] == "late"
    assert part[2]["why"] == "the time (50 s) was up"


def test_without_time_all_changes_are_named(steady, monkeypatch):
    only(monkeypatch, REPLICA, SLOT)
    begun = time.monotonic()
    rows = advised(steady, 0.0)
    assert time.monotonic() - begun < 5
    assert [(row["key"], row["outcome"]) for row in rows] == [
        ("base", "late"),
        ("replica", "late"),
        ("slots", "late"),
    ]


def test_what_is_found_does_not_depend_on_who_works(steady, doubled, monkeypatch):
    only(monkeypatch, REPLICA)
    crew = crew_of(2)
    try:
        assert advised(steady, crew=crew) == doubled
    finally:
        crew.stop()


# Odd scenarios


def test_users_of_a_closed_loop(tmp_path, monkeypatch):
    """A user who doesn't think keeps a server busy; each further one waits one service longer."""
    only(monkeypatch, REPLICA)
    arrivals = "{kind: closed_loop, users: 1}"
    base, replica = advised(one_server(tmp_path, arrivals, "ttft_p90_s: 0.45"))
    assert (base["unit"], base["capacity"], replica["capacity"]) == ("users", 4, 8)
    assert replica["ratio"] == 2


def test_a_cut_at_a_time(tmp_path, monkeypatch):
    only(monkeypatch, REPLICA)
    one_server(tmp_path, "{kind: constant, rate_per_s: 6}", "max_failed_fraction: 0.02")
    path = tmp_path / "server.yaml"
    path.write_text(path.read_text() + "max_simulated_s: 10\n")
    base, replica = advised(load_scenario(path))
    assert base["outcome"] == replica["outcome"] == "found"
    assert replica["ratio"] == pytest.approx(2, rel=0.1)


def test_classes_with_targets_of_their_own(tmp_path, monkeypatch):
    only(monkeypatch, REPLICA)
    part = "{{lengths: {{kind: fixed, prompt_tokens: 100, output_tokens: 3}}, num_requests: {n}, "
    part += "arrivals: {{kind: constant, rate_per_s: {rate}}}}}"
    parts = ", ".join(
        f"{name}: {part.format(n=n, rate=r)}" for name, n, r in (("a", 40, 2), ("b", 80, 4))
    )
    file = scenario_file(
        tmp_path,
        workload=f"{{classes: {{{parts}}}}}",
        slo=None,
        class_slos="{a: {ttft_p90_s: 0.5}, b: {tpot_p90_s: 0.03}}",
    )
    base, replica = advised(file)
    assert base["unit"] == "requests/s"
    assert base["limited_by"].partition(": ")[0] in {"a", "b", "steady queue"}
    assert replica["ratio"] > 1


def test_a_scenario_that_no_load_keeps_within_its_targets(tmp_path, monkeypatch):
    quick = Change("quick", "a quick step", {"cost.fixed_ns": 1_000_000})
    only(monkeypatch, REPLICA, quick)
    base, *others = advised(
        one_server(tmp_path, "{kind: constant, rate_per_s: 6}", "ttft_p90_s: 0.05")
    )
    assert (base["outcome"], base["capacity"], base["ratio"]) == ("never", None, None)
    found = {row["key"]: row for row in others}
    assert found["replica"]["outcome"] == "never"
    assert found["quick"]["outcome"] == "found"
    assert found["quick"]["ratio"] is None
    assert others[0]["key"] == "quick"


def test_a_trace_of_one_request_misses_nothing(tmp_path, monkeypatch):
    only(monkeypatch, REPLICA)
    (tmp_path / "one.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,100,1\n"
    )
    path = tmp_path / "server.yaml"
    text = SERVER.format(
        arrivals="{kind: trace, file: one.csv}", slo="ttft_p90_s: 5", routing="random"
    )
    path.write_text(text.replace("  num_requests: 400\n", ""))
    base, replica = advised(load_scenario(path))
    assert base["outcome"] == "at_least"
    assert replica["outcome"] == "declined"
    assert "no load that was tried misses" in replica["why"]


def test_a_change_that_no_server_starts_with_has_its_reason(steady, monkeypatch):
    wide = Change("wide", "tensor parallelism 3", {"engine.tensor_parallel_size": 3})
    none = Change("none", "max_num_seqs -1", {"engine.max_num_seqs": -1})
    only(monkeypatch, wide, none)
    rows = advised(steady)
    assert [row["outcome"] for row in rows] == ["found", "declined", "declined"]
    assert "divi" in rows[1]["why"]
    assert "\n" not in rows[1]["why"] + rows[2]["why"]


@pytest.mark.parametrize(
    ("arrivals", "slo", "said"),
    [
        ("{kind: poisson, rate_per_s: 5}", None, "slo: --advise: say what a feasible load"),
        ("{kind: all_at_once}", "ttft_p90_s: 5", "no rate that can be scaled"),
        ("{kind: poisson, rate_per_s: 5}", "ttft_max_s: 5", "name a percentile"),
    ],
)
def test_what_has_no_capacity_is_refused_at_once(tmp_path, arrivals, slo, said):
    path = tmp_path / "server.yaml"
    text = SERVER.format(arrivals=arrivals, slo=slo or "", routing="random")
    path.write_text(text if slo else text.replace("slo: {}\n", ""))
    with pytest.raises(InputError, match=said):
        refuse_unanswerable(load_scenario(path))


# Ratios

ends = st.tuples(*[st.floats(0.01, 1.0)] * 2)


def answer(value, low, high, confidence=0.95):
    return SimpleNamespace(value=value, low=low, high=high, feasible=low, confidence=confidence)


@given(st.floats(0.1, 100), ends, st.floats(0.1, 100), ends, st.sampled_from([0.95, None]))
def test_an_interval_of_a_ratio_holds_it_and_is_wider_than_each(mine, off, other, off_base, sure):
    one = answer(mine, mine * off[0], mine / off[1], sure)
    base = answer(other, other * off_base[0], other / off_base[1], sure)
    low, ratio, high = ratio_of(one, base)
    assert low <= ratio <= high
    width = math.log(high / low)
    assert width >= max(math.log(a.high / a.low) for a in (one, base)) / math.sqrt(2) - 1e-9
    assert width <= math.log(one.high / one.low) + math.log(base.high / base.low) + 1e-9


def test_an_interval_of_a_ratio_covers_as_often_as_it_says():
    """Two independent estimates, normal in logarithms, each with its own exact interval."""
    rng = np.random.default_rng(5)
    spreads, hits, count = (0.03, 0.08), 0, 4000
    for errors in rng.normal(size=(count, 2)) * spreads:
        one, base = (
            answer(v, v * math.exp(-1.96 * s), v * math.exp(1.96 * s))
            for v, s in zip((3 * math.exp(errors[0]), math.exp(errors[1])), spreads, strict=True)
        )
        low, _, high = ratio_of(one, base)
        hits += low <= 3 <= high
    assert hits / count == pytest.approx(0.95, abs=0.012)


def test_an_end_that_is_unknown_stays_so():
    assert ratio_of(answer(2.0, None, 3.0), answer(1.0, 0.9, 1.1))[0] is None
    assert ratio_of(answer(2.0, 1.5, 3.0), answer(1.0, None, 1.1))[2] is None
    assert ratio_of(answer(None, 2.0, None), answer(1.0, 0.9, 1.1))[1] == 2.0
    assert ratio_of(answer(2.0, 1.5, 3.0), answer(None, None, None)) == (None, None, None)
