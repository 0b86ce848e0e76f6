import pytest

from kvsim.errors import InputError
from kvsim.metrics.slo import check_targets, judge_replications, request_bounds_s
from kvsim.metrics.summary import summarize

SECOND = 1_000_000_000


def finished(arrival_s=0, tokens=3, first_s=1, finish_s=2):
    return {
        "arrival_ns": arrival_s * SECOND,
        "admitted_ns": arrival_s * SECOND,
        "first_token_ns": (arrival_s + first_s) * SECOND,
        "finish_ns": (arrival_s + finish_s) * SECOND,
        "output_tokens": tokens,
    }


def failed(outcome, arrival_s=0):
    never = dict.fromkeys(("admitted_ns", "first_token_ns", "finish_ns"), -1)
    return {"arrival_ns": arrival_s * SECOND, "outcome": outcome, **never}


@pytest.fixture
def verdict(table, context):
    def of(rows, slo, **changes):
        run = context(slo=slo, horizon_ns=100 * SECOND, **changes)
        summary = summarize(table("requests", rows), table("steps", []), table("events", []), run)
        return summary["verdict"]

    return of


def test_met_with_the_tightest_margin(verdict):
    found = verdict(
        [finished()] * 4, {"ttft_p99_s": 4.0, "e2e_p95_s": 2.5, "max_failed_fraction": 0.001}
    )
    assert found["met"] is True
    assert found["sentence"] == (
        "Meets its SLO: E2E p95 is 2 s, 20 % below the bound of 2.5 s, the tightest of 3 targets."
    )
    unknown = dict.fromkeys(("low", "high", "count", "certain"))  # of four requests
    assert found["certain"] is None
    assert found["targets"] == [
        unknown
        | {
            "name": "ttft_p99_s",
            "figure": "ttft_p99_s",
            "value": 1.0,
            "bound": 4.0,
            "margin": 0.75,
            "met": True,
        },
        unknown
        | {
            "name": "e2e_p95_s",
            "figure": "e2e_p95_s",
            "value": 2.0,
            "bound": 2.5,
            "margin": 0.2,
            "met": True,
        },
        unknown
        | {
            "name": "max_failed_fraction",
            "figure": "failed_fraction",
            "value": 0.0,
            "bound": 0.001,
            "margin": 1.0,
            "met": True,
        },
    ]


def test_missed_with_the_worst_target_first(verdict):
    rows = [finished(first_s=10, finish_s=11)] * 9 + [failed("timed_out")]
    found = verdict(rows, {"ttft_p99_s": 2.0, "e2e_p50_s": 20.0, "max_failed_fraction": 0.05})
    assert found["met"] is False
    assert [target["met"] for target in found["targets"]] == [False, True, False]
    assert found["targets"][0]["margin"] == -4.0
    assert found["sentence"] == (
        "Misses its SLO: TTFT p99 is 10 s, 5 times the bound of 2 s; 2 of 3 targets missed."
    )


def test_a_bound_that_is_reached_is_met(verdict):
    found = verdict([finished()], {"ttft_p99_s": 1})
    assert found["met"] is True
    assert found["sentence"] == "Meets its SLO: TTFT p99 is 1 s, at the bound of 1 s."


def test_a_bound_of_zero_has_no_relative_margin(verdict):
    missed = verdict([finished(), failed("rejected")], {"max_failed_fraction": 0})
    assert missed["targets"][0]["margin"] is None
    assert missed["sentence"] == (
        "Misses its SLO: failed fraction is 50 %, above the bound of 0 %."
    )
    met = verdict([finished()], {"max_failed_fraction": 0})
    assert (met["met"], met["targets"][0]["margin"]) == (True, 0.0)


def test_any_percentile_can_be_a_target(verdict):
    rows = [finished(first_s=1)] * 99 + [finished(first_s=101, finish_s=102)]
    found = verdict(rows, {"ttft_p99.5_s": 60.0, "ttft_mean_s": 2.0})
    assert found["targets"][0]["value"] == pytest.approx(1 + 100 * (99 * 0.995 - 98))
    assert found["targets"][1]["value"] == 2.0


@pytest.mark.parametrize(
    ("rows", "slo", "met", "sentence"),
    [
        ([], None, None, "No request arrived: there is nothing to judge."),
        ([], {"ttft_p99_s": 1.0}, None, "No request arrived: there is nothing to judge."),
        ([finished()], None, None, "No SLO is set. The only request finished."),
        ([finished()] * 3, {}, None, "No SLO is set. All 3 requests finished."),
        (
            [finished(), failed("rejected"), failed("timed_out")],
            None,
            None,
            "No SLO is set. 1 of 3 requests finished (1 rejected, 1 timed out).",
        ),
        (
            [failed("rejected")] * 2,
            {"ttft_p99_s": 1.0},
            False,
            "No request finished: all 2 were rejected, too long for max_model_len or the KV cache.",
        ),
        (
            [failed("rejected"), failed("timed_out")],
            None,
            None,
            "No request finished: 1 rejected, 1 timed out.",
        ),
        (
            [failed("timed_out")] * 3,
            None,
            None,
            "No request finished: all 3 were given up by their clients.",
        ),
        (
            [failed("unfinished")],
            {"max_failed_fraction": 1.0},
            False,
            "No request finished: the only one was still under way when the run was cut off.",
        ),
        (
            [finished(tokens=1)],
            {"tpot_p99_s": 1.0},
            None,
            "The SLO can't be judged: no request has a value of TPOT p99.",
        ),
        (
            [finished(tokens=1)],
            {"tpot_p99_s": 1.0, "ttft_p99_s": 2.0},
            None,
            "The SLO can't be judged: no request has a value of TPOT p99; 1 of 2 targets is met.",
        ),
        (
            [finished(tokens=1)],
            {"tpot_p99_s": 1.0, "ttft_p99_s": 0.5, "e2e_p99_s": 5.0},
            False,
            "Misses its SLO: TTFT p99 is 1 s, 2 times the bound of 500 ms; 1 of 3 targets missed.",
        ),
        (
            [finished()],
            {"ttft_p99_s": 1e-310},
            False,
            "Misses its SLO: TTFT p99 is 1 s, above the bound of 1e-304 µs.",
        ),
    ],
)
def test_edge_cases_in_words(verdict, rows, slo, met, sentence):
    found = verdict(rows, slo)
    assert (found["met"], found["sentence"]) == (met, sentence)


def test_only_a_warm_up(verdict):
    slo = {"ttft_p99_s": 1.0, "max_failed_fraction": 0.1}
    found = verdict([finished()], slo, warmup_ns=50 * SECOND)
    assert found["met"] is None
    assert "warm-up" in found["sentence"]
    assert verdict([finished()], {"max_failed_fraction": 0.1}, warmup_ns=50 * SECOND)["met"] is True
    failing = verdict([finished(), failed("rejected")], slo, warmup_ns=50 * SECOND)
    assert failing["met"] is False


def test_bounds_of_a_request_are_those_of_the_highest_percentile():
    slo = {
        "ttft_p99_s": 2.0,
        "ttft_p50_s": 0.5,
        "tpot_p99.9_s": 0.2,
        "tpot_p9_s": 0.3,
        "e2e_max_s": 9.0,
        "e2e_p99_s": 8.0,
        "queue_mean_s": 0.1,
        "itl_p99_s": 0.05,
        "max_failed_fraction": 0.001,
    }
    assert request_bounds_s(slo) == {"ttft": 2.0, "tpot": 0.2, "e2e": 9.0}


def test_all_unknown_targets_are_named():
    check_targets({"ttft_p99_s": 1.0, "queue_p100_s": 1.0, "max_failed_fraction": 0.1})
    unknown = ["ttft_p101_s", "ttft_p99", "tfft_p99_s", "failed_fraction", "mfu"]
    with pytest.raises(InputError) as caught:
        check_targets({"e2e_mean_s": 1.0, **dict.fromkeys(unknown, 1.0)})
    assert [problem.path for problem in caught.value.problems] == [f"slo.{n}" for n in unknown]


# How sure a verdict is

GRID = [finished(arrival_s=row, first_s=1 + row % 10, finish_s=20) for row in range(99)]


@pytest.mark.parametrize(
    ("bound_s", "met", "certain", "opening"),
    [
        (50.0, True, True, "Meets its SLO: "),
        (5.9, True, False, "Too close to call: TTFT p50 is 5 s ("),
        (4.9, False, False, "Too close to call: TTFT p50 is 5 s ("),
        (1.0, False, True, "Misses its SLO: "),
    ],
)
def test_a_bound_within_the_interval_is_too_close_to_call(verdict, bound_s, met, certain, opening):
    """The waits are 1 to 10 s over and over: batches differ a little, and so may the median."""
    found = verdict(GRID, {"ttft_p50_s": bound_s})
    (target,) = found["targets"]
    assert (found["met"], found["certain"]) == (target["met"], target["certain"]) == (met, certain)
    assert found["sentence"].startswith(opening), found["sentence"]
    assert target["low"] < 5 < target["high"]
    assert certain == (not target["low"] <= bound_s < target["high"])


def test_a_percentile_that_so_few_requests_do_not_bound_says_so(verdict):
    rows = [*GRID, finished(arrival_s=99, first_s=15)]  # alone beyond its percentile
    found = verdict(rows, {"ttft_p99_s": 60.0, "ttft_p50_s": 60.0})
    assert (found["met"], found["certain"]) == (True, False)
    assert found["sentence"] == (
        "Meets its SLO, as far as 99 independent requests can tell: TTFT p99 is 10.1 s (10 s or "
        "more), 83.2 % below the bound of 60 s; 1 of 2 targets is uncertain."
    )


def test_one_target_that_is_missed_for_sure_is_enough(verdict):
    found = verdict(GRID, {"ttft_p50_s": 4.9, "ttft_mean_s": 0.1})
    assert (found["met"], found["certain"]) == (False, True)
    assert found["sentence"].startswith("Misses its SLO: TTFT mean is 5.")


def test_replications_are_judged_by_their_mean():
    def of(value):
        return {"targets": [{"name": "ttft_p99_s", "bound": 2.0, "value": value}]}

    figures = {"requests_total": 9, "requests_finished": 9, "requests_measured": 9}
    found = judge_replications([of(1.7), of(1.9), of(2.1)], figures)
    half = 4.302653 * 0.2 / 3**0.5  # Student's t of two degrees of freedom, from a table
    (target,) = found["targets"]
    assert (target["low"], target["high"]) == pytest.approx((1.9 - half, 1.9 + half), rel=1e-6)
    assert (found["met"], found["certain"], target["count"]) == (True, False, 3)
    assert judge_replications([of(1.7), of(None)], figures)["met"] is None
