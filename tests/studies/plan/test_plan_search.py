"""The plan is the cheapest fleet: by brute force, for any number of processes; and its answers."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

from kvsim.errors import InputError
from kvsim.scenario.load import load_scenario
from kvsim.studies.plan.answer import as_dict, candidate_table, sentences, skipped_groups
from kvsim.studies.plan.candidates import Options, candidates_of
from kvsim.studies.plan.fleet import least_of
from kvsim.studies.plan.page import build_page
from kvsim.studies.plan.search import WAVE, find_plan
from kvsim.studies.plan.trial import Load, judged
from kvsim.studies.plan.winner import winner_text, write_winner
from kvsim.study.here import Here
from kvsim.study.local import crew_of
from kvsim.study.point import Point, run_point
from tests.studies.plan.deployments import scenario_file

WORKLOAD = (
    "{arrivals: {kind: poisson, rate_per_s: 60}, num_requests: 100, lengths: {kind: lognormal, "
    "prompt_mean_tokens: 500, prompt_cv: 0.5, prompt_max_tokens: 2000, output_mean_tokens: 40, "
    "output_cv: 0.5, output_max_tokens: 200}}"
)
BUSY = {"workload": WORKLOAD, "slo": "{ttft_p90_s: 0.4, tpot_p90_s: 0.02}", "cost": "kernels"}
SMALL = Options(
    gpus=["h100_sxm", "a100_sxm"],
    tensor_parallel_sizes=[1, 2],
    kv_cache_dtypes=["auto"],
    replications=2,
    also=1,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return scenario_file(tmp_path_factory.mktemp("busy"), **BUSY)


@pytest.fixture(scope="module")
def plan(file):
    return find_plan(file, SMALL, Here(), True)


@pytest.mark.parametrize("wave", [1, WAVE])
@pytest.mark.parametrize("prices", [{"h100_sxm": 9.0}, {"a100_sxm": 0.9, "h100_sxm": 3.4}])
def test_plan_is_the_cheapest_of_all_fleets(file, prices, wave, monkeypatch):
    monkeypatch.setattr("kvsim.studies.plan.search.WAVE", wave)
    options = replace(SMALL, prices=prices, spare=len(prices) - 1)
    load = Load(file, 1.0, options.replications)
    cheapest = []
    for candidate in candidates_of(file, options):
        least = least_of(load, candidate)
        fewest = next(n for n in range(1, 20) if judged(load, candidate, n).met)
        cheapest.append((least.usd_per_hour(fewest + options.spare), candidate.label, fewest))
    found = find_plan(file, options, Here())
    usd = found.usd_per_hour(found.winner, found.winner.smallest)
    assert usd == pytest.approx(min(cheapest)[0])
    named = (found.winner.least.candidate.label, found.winner.smallest)
    assert named in {(label, count) for cost, label, count in cheapest if cost == usd}
    every = {label: cost for cost, label, _ in cheapest}
    for skipped in found.skipped:
        assert usd <= skipped.usd_per_hour <= every[skipped.candidate.label]
    assert len(found.fleets) + len(found.skipped) == len(cheapest)


def test_judgement_is_that_of_shares_by_hand(file, tmp_path):
    """A target's share of late requests in each draw, and Student's interval of their mean."""
    candidate = candidates_of(file, SMALL)[0]
    ttft_s = []
    for number in range(3):
        point = Load(file, 1.0, 3).point(candidate, 1, number)
        requests = run_point(file, point).tables["requests"]
        ttft_s.append((requests["first_token_ns"] - requests["arrival_ns"]) / 1e9)
    bound_s = float(np.quantile(ttft_s[0], 0.7))
    shares = [float((draw > bound_s).mean()) for draw in ttft_s]
    assert len(set(shares)) > 1
    assert max(shares) < 0.9
    slo = f"{{ttft_p10_s: {bound_s!r}}}"  # nine in ten may be late
    trial = judged(Load(scenario_file(tmp_path, **BUSY | {"slo": slo}), 1.0, 3), candidate, 1)
    target = trial.target("ttft_p10_s")
    mean, error = np.mean(shares), stats.sem(shares)
    assert target.excess == pytest.approx(mean / 0.9)
    assert target.worse == pytest.approx((mean + stats.t.ppf(0.975, 2) * error) / 0.9)
    assert trial.met == all(each.worse <= 1 for each in trial.targets)
    assert trial.replications == 3


def test_two_processes_find_the_same(file):
    few = replace(SMALL, gpus=["h100_sxm"], tensor_parallel_sizes=[1])
    one, two = (find_plan(file, few, crew) for crew in (Here(), crew_of(2)))
    assert as_dict(one) == as_dict(two)
    assert build_page(one, "x") == build_page(two, "x")


def test_answer_says_what_was_found_and_what_was_left_out(plan):
    said = " ".join(sentences(plan))
    winner = plan.winner
    assert f"{winner.smallest} × {winner.least.candidate.label}" in said
    assert "No other candidate can be cheaper" in said
    table = candidate_table(plan)
    assert table.rows[0][0] == winner.least.candidate.gpu
    assert {len(row) for row in table.rows} == {len(table.header)}
    labels = " ".join(label for _, labels in skipped_groups(plan) for label in labels)
    assert all(skipped.candidate.label in labels for skipped in plan.skipped)
    assert json.dumps(as_dict(plan), allow_nan=False)
    assert [factor for factor, _ in plan.demands] == [0.5, 1.0, 1.5, 2.0]
    counts = [fleet.smallest for _, fleet in plan.demands]
    assert counts == sorted(counts)


def test_more_demand_takes_more(file, plan):
    one = replace(SMALL, gpus=["h100_sxm"], tensor_parallel_sizes=[1], weights=["auto"])
    usual, grown = (
        find_plan(file, replace(one, growth=growth, headroom=headroom), Here()).winner.smallest
        for growth, headroom in ((1.0, 0.0), (1.5, 1.0))
    )
    assert grown > usual


def test_winner_runs_as_planned(tmp_path):
    file = scenario_file(tmp_path, **BUSY | {"slo": "{ttft_p99_s: 0.6, tpot_p90_s: 0.02}"})
    options = replace(SMALL, replications=1, growth=1.2)
    found = find_plan(file, options, Here())
    out = tmp_path / "elsewhere" / "winner.yaml"
    out.parent.mkdir()
    write_winner(found, out)
    written = load_scenario(out)
    figures = run_point(written, Point()).summary()["figures"]
    trial = found.winner.chosen
    assert figures["ttft_p99_s"] == trial.target("ttft_p99_s").value
    usd = found.usd_per_hour(found.winner, found.winner.smallest)
    assert figures["usd_per_hour"] == pytest.approx(usd)


def test_winner_names_files_from_its_own_folder(tmp_path):
    (tmp_path / "log.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,10,5\n"
        "2023-11-16 18:15:47.6805900,20,6\n2023-11-16 18:15:48.6805900,9,9\n"
    )
    file = scenario_file(
        tmp_path,
        workload="{arrivals: {kind: trace, file: log.csv}, lengths: {kind: trace}}",
        slo="{e2e_p90_s: 5}",
    )
    found = find_plan(file, replace(SMALL, also=0), Here())
    assert not found.random
    assert found.winner.chosen.replications == 1
    assert "file: ../log.csv" in winner_text(found, tmp_path / "plans")


def test_no_fleet_meets_what_no_engine_can(tmp_path):
    file = scenario_file(tmp_path, **BUSY | {"slo": "{tpot_p90_s: 0.0001}"})
    found = find_plan(file, replace(SMALL, gpus=["h100_sxm"], weights=["auto"]), Here())
    assert found.winner is None
    assert {fleet.why for fleet in found.fleets} == {"no use"}
    assert sentences(found)[0].startswith("No fleet of 2 candidates meets the SLO")
    assert build_page(found, "x")


def test_without_time_nothing_is_claimed(file):
    found = find_plan(file, replace(SMALL, budget_s=0.0), Here())
    assert found.winner is None
    assert not found.proven
    assert {skipped.why for skipped in found.skipped} == {"budget"}


def test_what_does_not_start_is_told(tmp_path):
    file = scenario_file(
        tmp_path,
        **BUSY | {"model": "meta-llama/Llama-3.1-70B-Instruct"},
    )
    found = find_plan(file, replace(SMALL, budget_s=0.0, gpus=["h100_sxm"]), Here())
    refused = {one.candidate.label: one.message for one in found.skipped if one.why == "refused"}
    assert "h100_sxm, TP 1" in refused
    assert "memory" in refused["h100_sxm, TP 1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": ["h100"]}, "did you mean h100"),
        ({"gpus": ["l40s"]}, "no price of l40s is known"),
        ({"prices": {"nothing": 1.0}}, "'nothing' is not in the catalog"),
        ({"growth": 0.0}, "--growth"),
        ({"headroom": -0.1}, "--headroom"),
        ({"weights": ["int3"]}, "must be auto or fp8"),
        ({"growth": float("nan")}, "--growth"),
        ({"vary": {"replicas": [1]}}, "is not a setting"),
        ({"vary": {"engine.max_num_seq": [1]}}, "did you mean max_num_seqs"),
        ({"vary": {"engine.max_num_seqs": [0]}}, "engine.max_num_seqs: "),
    ],
)
def test_mistakes_are_told(file, options, message):
    with pytest.raises(InputError, match=message):
        find_plan(file, replace(SMALL, **options), Here())


def test_a_plan_needs_targets(tmp_path):
    with pytest.raises(InputError, match=r"fleet\.yaml: slo: say what the fleet has to meet"):
        find_plan(scenario_file(tmp_path, slo=None), SMALL, Here())


def test_candidates_have_what_differs_and_a_price(tmp_path):
    engine = "{max_model_len: 4096, num_gpu_blocks_override: 900, kv_cache_dtype: fp8}"
    file = scenario_file(tmp_path, engine=engine, price_usd_per_gpu_hour=3.0)
    options = Options(vary={"engine.max_num_seqs": [8, 16]}, tensor_parallel_sizes=[1, 2])
    found = candidates_of(file, options)
    assert len(found) == len({one.label for one in found})
    own = [one for one in found if one.label.startswith("h100_sxm, TP 1, max_num_seqs 8")]
    assert own[0].changes == {"engine.max_num_seqs": 8, "price_usd_per_gpu_hour": 3.0}
    other = next(one for one in found if one.gpu == "a100_sxm")
    assert other.changes["gpu"] == "a100_sxm"
    assert other.changes["engine.num_gpu_blocks_override"] is None
    assert not any(one.gpu == "a100_sxm" and one.weights == "fp8" for one in found)
    assert {one.kv_cache_dtype for one in found} == {"auto"}
    seen = {(one.gpu, one.weights, one.settings) for one in found}
    for gpu, value in product(("h100_sxm", "a100_sxm"), (8, 16)):
        assert (gpu, "auto", (("engine.max_num_seqs", value),)) in seen


def test_a_gpu_of_ones_own_can_be_planned_with(tmp_path):
    gpu = "{name: mine, hbm_bytes: 8.0e+10, hbm_bytes_per_s: 2.0e+12, bf16_flop_per_s: 4.0e+14}"
    file = scenario_file(tmp_path, gpu=gpu, price_usd_per_gpu_hour=1.0)
    assert {one.gpu for one in candidates_of(file, Options(gpus=["mine"]))} == {"mine"}


def test_a_log_that_is_not_there_is_no_answer(tmp_path):
    workload = "{arrivals: {kind: trace, file: gone.csv}, lengths: {kind: trace}}"
    with pytest.raises(InputError, match="gone"):
        find_plan(scenario_file(tmp_path, workload=workload), SMALL, Here())


def test_a_full_batch_is_no_floor(tmp_path):
    """Where all replicas are full, TPOT is the same with one more: that is not the end of it."""
    workload = (
        "{arrivals: {kind: poisson, rate_per_s: 400}, num_requests: 300, lengths: {kind: fixed, "
        "prompt_tokens: 20, output_tokens: 60}}"
    )
    cost = "{kind: affine, fixed_ns: 1000000, per_seq_ns: 1000000}"
    file = scenario_file(tmp_path, workload=workload, cost=cost, slo="{tpot_p90_s: 0.004}")
    one = replace(SMALL, gpus=["h100_sxm"], tensor_parallel_sizes=[1], weights=["auto"], also=0)
    found = find_plan(file, one, Here())
    values = [trial.target("tpot_p90_s").value for trial in found.fleets[0].trials]
    assert values[0] == pytest.approx(values[1], rel=0.01)
    assert found.winner.smallest > 4


def test_no_failure_allowed_is_a_target_too(tmp_path):
    slo = "{e2e_p90_s: 9, max_failed_fraction: 0}"
    workload = WORKLOAD.replace("num_requests: 100", "num_requests: 100, timeout_s: 0.3")
    file = scenario_file(tmp_path, workload=workload, slo=slo)
    one = replace(SMALL, gpus=["h100_sxm"], tensor_parallel_sizes=[1], weights=["auto"], also=0)
    found = find_plan(file, one, Here())
    assert json.dumps(as_dict(found), allow_nan=False)


def test_growth_leaves_a_run_as_long_as_it_was(file):
    """Else a demand that has grown is gone before a fleet that is too small has a queue."""
    changes = Load(file, 5.0, 1).times(2.0)
    assert changes["workload.arrivals.rate_per_s"] == 600
    assert changes["workload.num_requests"] == 1000
    assert Load(file, 1.0, 1).times(1.0) == {}
