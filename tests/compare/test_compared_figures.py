"""What differs between two runs, and how surely: against runs whose difference is known."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.compare.answer import as_dict, cautions, headline, noise, remarks
from kvsim.compare.change import Change, by_weight, independent, paired
from kvsim.compare.figures import FIGURES
from kvsim.compare.parts import mean_of, series_mean, series_percentiles
from kvsim.statistics import batch_interval, mean_interval
from tests.compare.conftest import correlated

LATENCIES = ("ttft", "e2e", "queue")


def test_a_run_does_not_differ_from_itself(bench):
    run = bench.run("a", bench.requests_table(), slo=bench.SLO)
    one = bench.against(run, run)
    assert one.basis == "requests"
    assert {change.difference for change in one.changes} == {0}
    assert {change.standing for change in one.changes} == {"alike"}
    assert len(one.changes) >= 16
    assert "don't differ: all" in headline(one)
    assert one.base.name != one.other.name
    assert noise(one.changes) == ""


def test_ten_milliseconds_later_is_ten_milliseconds(bench):
    requests = bench.requests_table()
    a, b = bench.run("a", requests), bench.run("b", bench.later(requests, 10 * bench.MS))
    one = bench.against(a, b)
    for latency in LATENCIES:
        for statistic in ("mean", "p50", "p95", "p99"):
            change = one.change(f"{latency}_{statistic}_s")
            assert change.standing == "sure"
            assert change.bounds == pytest.approx((0.01, 0.01), rel=1e-6)
            assert change.ratio_bounds[0] <= change.ratio <= change.ratio_bounds[1]
    tpot = one.change("tpot_p99_s")
    assert abs(tpot.difference) < 1e-12
    assert "100 % later" in " ".join(remarks(one))


def test_other_requests_are_independent(bench):
    a = bench.run("a", bench.requests_table(seed=1))
    b = bench.run("b", bench.requests_table(seed=2), sha="cc" * 32, seed=5)
    one = bench.against(a, b)
    assert one.basis == "independent"
    assert one.pairs is None
    assert "independent runs" in headline(one)
    bounds = one.change("ttft_mean_s").bounds
    within = [side.summary["uncertainty"]["ttft_mean_s"] for side in (one.base, one.other)]
    halves = [(found["high"] - found["low"]) / 2 for found in within]
    assert bounds[1] - bounds[0] == pytest.approx(2 * np.hypot(*halves), rel=1e-6)


def test_swapping_the_runs_turns_every_sign(bench):
    requests = bench.requests_table()
    slower = bench.later(requests, 0)
    slower["finish_ns"] = slower["finish_ns"] + slower["queued_ns"] % (300 * bench.MS)
    slower = bench.failed(slower, [3, 500])
    runs = bench.run("a", requests), bench.run("b", slower)
    one, back = bench.against(*runs), bench.against(*runs[::-1])
    assert {change.name for change in one.changes} == {change.name for change in back.changes}
    for change in one.changes:
        other = back.change(change.name)
        assert other.standing == change.standing
        assert other.difference == pytest.approx(-change.difference)
        if change.bounds:
            assert other.bounds == pytest.approx([-b for b in change.bounds[::-1]], abs=1e-12)
        if change.ratio_bounds:
            turned = [1 / bound for bound in change.ratio_bounds[::-1]]
            assert other.ratio_bounds == pytest.approx(turned)
    names = [change.name for change in one.changes if change.standing == "sure"]
    assert names == [change.name for change in back.changes if change.standing == "sure"]


def test_replications_are_paired(bench):
    tables = [bench.requests_table(count=300, seed=seed) for seed in range(5)]
    shift = [7 * bench.MS + (seed % 3) * bench.MS for seed in range(5)]
    moved = [bench.later(table, by) for table, by in zip(tables, shift, strict=True)]
    a = bench.run("a", tables[0], replications=tables[1:])
    b = bench.run("b", moved[0], replications=moved[1:])
    one = bench.against(a, b)
    assert (one.basis, one.count) == ("replications", 5)
    expected = mean_interval(np.array(shift) / bench.S)
    change = one.change("ttft_mean_s")
    assert change.difference == pytest.approx(expected.mean)
    assert change.bounds == pytest.approx((expected.low, expected.high))
    assert change.standing == "sure"
    assert "first replication" in " ".join(remarks(one))


def test_more_replications_of_one_are_left_out(bench):
    tables = [bench.requests_table(count=300, seed=seed) for seed in range(5)]
    a = bench.run("a", tables[0], replications=tables[1:3])
    b = bench.run("b", tables[0], replications=tables[1:])
    one = bench.against(a, b)
    assert (one.basis, one.count) == ("replications", 3)
    assert not any(change.difference for change in one.changes)


def test_replications_of_another_seed_are_independent(bench):
    tables = [bench.requests_table(count=300, seed=seed) for seed in range(6)]
    a = bench.run("a", tables[0], replications=tables[1:3])
    b = bench.run("b", tables[3], replications=tables[4:], seed=9, sha="cc" * 32)
    one = bench.against(a, b)
    assert one.basis == "independent"
    assert one.change("ttft_mean_s").bounds is not None
    means = [side.summary["uncertainty"]["ttft_mean_s"]["mean"] for side in (one.base, one.other)]
    assert one.change("ttft_mean_s").difference == pytest.approx(means[1] - means[0])


def test_with_replications_of_one_only_the_first_is_compared(bench):
    tables = [bench.requests_table(count=300, seed=seed) for seed in range(3)]
    a = bench.run("a", tables[0])
    b = bench.run("b", tables[0], replications=tables[1:])
    one = bench.against(a, b)
    assert one.basis == "requests"
    assert not any(change.difference for change in one.changes)
    assert "Only the first replication is compared" in " ".join(remarks(one))


def test_rates_are_those_of_the_summary(bench):
    requests = bench.requests_table()
    runs = bench.run("a", requests, slo=bench.SLO), bench.run("b", bench.failed(requests, [1, 2]))
    one = bench.against(*runs)
    for name in ("requests_per_s", "output_tokens_per_s"):
        change = one.change(name)
        assert change.base == pytest.approx(one.base.summary["figures"][name])
        assert change.other == pytest.approx(one.other.summary["figures"][name])
        assert change.bounds is not None
    assert one.change("goodput_requests_per_s").standing == "missing"  # the other has no SLO


def test_all_at_once_leaves_no_window(bench):
    requests = bench.requests_table(count=100)
    now = requests | {"arrival_ns": np.zeros(100, np.int64), "queued_ns": np.zeros(100, np.int64)}
    runs = [
        bench.run("a", now, horizon_ns=0),
        bench.run("b", bench.later(now, bench.S), horizon_ns=0),
    ]
    change = bench.against(*runs).change("requests_per_s")
    assert change.standing == "unknown"


def test_few_requests_have_no_interval(bench):
    requests = bench.requests_table(count=15)
    runs = bench.run("a", requests), bench.run("b", bench.later(requests, bench.MS))
    change = bench.against(*runs).change("ttft_mean_s")
    assert (change.bounds, change.standing) == (None, "unknown")
    assert change.difference == pytest.approx(0.001)


def test_a_percentile_needs_requests_beyond_it(bench):
    requests = bench.requests_table(count=900)
    one = bench.against(bench.run("a", requests), bench.run("b", bench.later(requests, bench.MS)))
    assert one.change("ttft_p99_s").bounds is None
    assert one.change("ttft_p95_s").bounds is not None


def test_one_run_finished_nothing(bench):
    requests = bench.requests_table(count=200)
    runs = bench.run("a", requests), bench.run("b", bench.failed(requests, slice(None)))
    for words in (runs, runs[::-1]):
        one = bench.against(*words)
        assert "b finished no request" in headline(one)
        assert one.change("ttft_p99_s") is None or one.change("ttft_p99_s").standing == "missing"
    nothing = bench.against(runs[1], runs[1])
    assert headline(nothing).startswith("Neither")


def test_no_request_at_all(bench):
    empty = bench.requests_table(count=0)
    run = bench.run("a", empty)
    assert headline(bench.against(run, run)).startswith("Neither")


def test_the_answer_says_who_meets_the_slo_if_only_one_does(bench):
    requests = bench.requests_table()
    slow = bench.later(requests, 30 * bench.MS)
    quick_s = float(np.quantile(requests["first_token_ns"] - requests["arrival_ns"], 0.5)) / 1e9
    slo = {"ttft_p50_s": quick_s + 0.01}
    runs = [bench.run(name, rows, slo=slo) for name, rows in (("a", requests), ("b", slow))]
    assert headline(bench.against(*runs)).endswith("b misses its SLO, a meets it.")
    assert headline(bench.against(*runs[::-1])).endswith("a meets its SLO, b misses it.")
    assert "SLO" not in headline(bench.against(runs[0], runs[0]))


def test_what_speaks_against_a_run_is_told_beside_the_answer(bench):
    many, few = bench.requests_table(count=200), bench.requests_table(count=10)
    runs = bench.run("a", many), bench.run("b", few)
    told = cautions([bench.against(*runs)])
    assert told
    assert all(text.startswith("Mind, of b: ") for text in told)
    assert not cautions([bench.against(runs[0], runs[0])])


def test_what_costs_twice_says_so(bench):
    requests = bench.requests_table()
    runs = [
        bench.run("a", requests, price=2.0),
        bench.run("b", bench.later(requests, 30 * bench.MS), price=4.0),
    ]
    one = bench.against(*runs)
    assert "at 2\u00a0× the cost" in headline(one)
    assert one.change("usd_per_hour").standing == "sure"


def test_json_has_every_figure(bench):
    requests = bench.requests_table(count=100)
    runs = bench.run("a", requests), bench.run("b", bench.failed(requests, slice(None)))
    document = json.loads(json.dumps(as_dict([bench.against(*runs)]), allow_nan=False))
    (other,) = document["others"]
    assert other["sentence"]
    assert set(other["figures"]) <= set(FIGURES)
    assert other["figures"]["requests_per_s"]["other"] == 0


# The method


def changes_of(seed, count, weight):
    """Two runs that share what happens, and each have something of their own."""
    random = np.random.default_rng(seed)
    shared, own = correlated(random, count, weight), correlated(random, count, weight)
    return np.exp(shared), 1.3 * np.exp(0.8 * shared + 0.6 * own)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    """Two lognormal series that hang on what came before; both medians and means are known."""
    truth = {"mean": 0.3 * np.exp(0.5), "p50": 0.3, "p95": 0.3 * np.exp(1.6448536)}
    held = dict.fromkeys(truth, 0)
    rounds = 60
    for seed in range(rounds):
        base, other = changes_of(seed, 1000, 0.7)
        taken = [
            [series_mean(series), *series_percentiles(series, [50.0, 95.0])]
            for series in (base, other)
        ]
        for name, *pair in zip(truth, *taken, strict=True):
            low, high = paired(name, *pair).bounds
            held[name] += low <= truth[name] <= high
    for count in held.values():  # 0.95 within three standard errors of so few rounds
        assert count >= 0.86 * rounds


def test_pairing_narrows_the_interval():
    base, other = changes_of(1, 4000, 0.9)
    pairs = paired("x", series_mean(base), series_mean(other)).bounds
    alone = [batch_interval(series) for series in (base, other)]
    apart = independent(
        "x",
        tuple(found.mean for found in alone),
        tuple((found.low, found.high) for found in alone),
    ).bounds
    assert pairs[1] - pairs[0] < 0.9 * (apart[1] - apart[0])


def test_a_mean_has_the_interval_of_batch_means():
    series = changes_of(3, 2000, 0.9)[0]
    estimate = series_mean(series)
    expected = batch_interval(series)
    found = estimate.bounds(estimate.value, estimate.again)
    assert (estimate.value, *found) == pytest.approx((expected.mean, expected.low, expected.high))


@pytest.mark.parametrize("count", [20, 333, 4001, 30_000])
def test_percentiles_are_those_of_numpy(count):
    series = changes_of(count, count, 0.5)[0]
    found = series_percentiles(series, [50.0, 95.0, 99.0])
    assert [one.value for one in found] == pytest.approx(np.percentile(series, [50, 95, 99]))


@pytest.mark.parametrize("count", [20, 400, 4001])
def test_a_draw_is_the_percentile_of_what_it_drew(count):
    from kvsim.compare.parts import _drawn_parts

    series = changes_of(count, count, 0.5)[1]
    batches = np.array_split(series, 20)
    found = series_percentiles(series, [50.0, 99.0])
    for draw in (0, 17, 500):
        times = _drawn_parts()[draw].astype(int)
        drawn = np.concatenate([np.tile(b, n) for b, n in zip(batches, times, strict=True)])
        expected = np.percentile(drawn, [50, 99], method="lower")
        assert [one.again[draw] for one in found] == pytest.approx(expected)


@settings(max_examples=50)
@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=30))
def test_replications_have_the_interval_by_student(values):
    estimate = mean_of(np.array(values))
    expected = mean_interval(values)
    low, high = estimate.bounds(estimate.value, estimate.again)
    assert (estimate.value, low, high) == pytest.approx(
        (expected.mean, expected.low, expected.high), abs=1e-9
    )


def test_sure_differences_come_first_then_larger_ones():
    changes = [
        Change("a", 1.0, 1.0),
        Change("b", 1.0, 5.0),
        Change("c", 1.0, 1.1, (0.05, 0.15)),
        Change("d", 1.0, 0.5, (-0.6, -0.4)),
        Change("e", 1.0, 9.0, (-1.0, 17.0)),
        Change("f", None, 1.0),
    ]
    assert [change.name for change in by_weight(changes)] == ["d", "c", "b", "f", "e", "a"]
    assert Change("g", 0.0, 1.0).size == float("inf")


# The sentence


def against_with(bench, **changes):
    """A comparison in which some main figures are as told, and all others are alike."""
    from kvsim.compare.figures import Against
    from kvsim.compare.sides import open_sides

    run = bench.run("a", bench.requests_table(count=30))
    base, other = open_sides([run, run])
    base, other = bench.replace(base, name="a"), bench.replace(other, name="b")
    alike = Change("e2e_p50_s", 1.0, 1.1, (-1.0, 1.2))
    return Against(base, other, "requests", 30, by_weight([alike, *changes.values()]), None)


SURE = {"rate": Change("requests_per_s", 1.0, 1.31, (0.2, 0.4))}
CASES = [
    (
        SURE | {"ttft": Change("ttft_p99_s", 1.0, 0.52, (-0.6, -0.4))},
        "b has 1.31 × the requests per second and 0.52 × the p99 TTFT of a",
    ),
    (
        SURE | {"cost": Change("usd_per_hour", 2.0, 2.0, (0.0, 0.0))},
        "b has 1.31 × the requests per second of a, at the same cost",
    ),
    (
        SURE | {"ttft": Change("ttft_p99_s", 1.0, 1.1, (-1.0, 1.2))},
        "b has 1.31 × the requests per second of a; it doesn't differ in p99 TTFT as far as this "
        "can tell",
    ),
    (
        {
            "rate": Change("requests_per_s", 1.0, 1.0, (0.0, 0.0)),
            "ttft": Change("ttft_p99_s", 1.0, 1.005),
            "tpot": Change("tpot_p99_s", 1.0, 3.0, (1.0, 3.0)),
        },
        "b has about the same p99 TTFT of a, and the same requests per second; TPOT p99 is 3 × "
        "that of a",
    ),
    (
        {
            "ttft": Change("ttft_p99_s", 1.0, 1.1, (-1.0, 1.2)),
            "lost": Change("preemptions_total", 0.0, 4.0),
        },
        "b doesn't differ from a in p99 TTFT as far as this can tell",
    ),
    (
        {"ttft": Change("ttft_p99_s", 0.0, 1.0, (0.5, 1.5))},
        "b has a p99 TTFT of 1 s instead of 0 s of a",
    ),
    ({}, "b and a don't differ as far as this can tell"),
]


@pytest.mark.parametrize(("changes", "said"), CASES)
def test_the_answer_in_words(bench, changes, said):
    found = headline(against_with(bench, **changes)).replace("\u00a0", " ")
    assert found == f"{said} (paired on 30 requests)."
