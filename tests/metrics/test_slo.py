import pytest

from kvsim.errors import InputError
from kvsim.metrics.slo import check_targets, request_bounds_s
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
    assert found["targets"] == [
        {
            "name": "ttft_p99_s",
            "figure": "ttft_p99_s",
            "value": 1.0,
            "bound": 4.0,
            "margin": 0.75,
            "met": True,
        },
        {
            "name": "e2e_p95_s",
            "figure": "e2e_p95_s",
            "value": 2.0,
            "bound": 2.5,
            "margin": 0.2,
            "met": True,
        },
        {
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
        ([failed("rejected")] * 2, {"ttft_p99_s": 1.0}, False, "No request finished: 2 rejected."),
        ([failed("rejected")] * 2, None, None, "No request finished: 2 rejected."),
        (
            [failed("unfinished")],
            {"max_failed_fraction": 1.0},
            False,
            "No request finished: 1 unfinished.",
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
