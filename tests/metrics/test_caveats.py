import pytest

from kvsim.metrics.caveats import caveats
from kvsim.metrics.throughput import request_figures

SECOND = 1_000_000_000
MANY = 40


def one(arrival_s, wait_s=0.0, outcome="finished", **more):
    """A request that is admitted after its wait, and leaves a second later."""
    arrival, admitted = round(arrival_s * SECOND), round((arrival_s + wait_s) * SECOND)
    row = {"arrival_ns": arrival, "admitted_ns": admitted, "finish_ns": admitted + SECOND}
    if outcome == "unfinished":
        row |= {"finish_ns": -1}
    return row | {"outcome": outcome, **more}


def steady(count=MANY):
    return [one(place * 100 / count) for place in range(count)]


def growing(count=200):
    """Each request waits as long as those before it took: served at half the rate of arrival."""
    return [one(place * 100 / count, wait_s=place * 100 / count) for place in range(count)]


@pytest.fixture
def found(table, context):
    def build(rows, **changes):
        requests = table("requests", rows)
        run = context(**{"horizon_ns": 100 * SECOND, **changes})
        figures = request_figures(requests, run.warmup_ns)
        return caveats(requests, figures, run)

    return build


@pytest.mark.parametrize(
    ("rows", "changes", "said"),
    [
        ([], {}, []),
        (steady(), {}, []),
        ([one(1)], {}, ["Only one request was measured: its latencies stand for no other."]),
        (
            steady(19),
            {},
            ["Only 19 requests were measured: high percentiles are in effect the slowest."],
        ),
        (steady(), {"warmup_ns": 200 * SECOND}, []),  # the verdict says it
        (
            [*steady(), *[one(99, outcome="unfinished")] * 8],
            {"end_ns": 200 * SECOND},
            [
                "Of 48 requests 8 were unfinished when the run was cut off: TPOT and E2E are of "
                "the 40 that finished, which flatters them."
            ],
        ),
        (
            [*steady(), *[one(50, outcome="timed_out")] * 8],
            {},
            [
                "Of 48 requests the clients of 8 gave up: TPOT and E2E are of the 40 that "
                "finished, which flatters them."
            ],
        ),
        ([one(1, outcome="timed_out")] * MANY, {}, []),  # the verdict says it
        (
            growing(),
            {},
            [
                "The queue was still growing when arrivals stopped: 50 requests waited halfway, 99 "
                "at the end. Latencies depend on how long the run is; in a longer one they are "
                "worse."
            ],
        ),
        (
            [*steady(), *[one(99.5)] * 10],
            {},
            [
                "The run is short: when it ended, 10 requests were being served for 40 that had "
                "finished. Throughput and cost per token count only the finished ones; a longer "
                "run shows better ones."
            ],
        ),
        ([*steady(), *[one(99.5)] * 9], {}, []),
        ([*steady(), *[one(99.5, wait_s=1)] * 50], {}, []),  # they wait: the server is no better
        ([one(0, wait_s=wait) for wait in range(MANY)], {"horizon_ns": 0}, []),  # all at once
        (
            [one(place, preemptions=1, recomputed_tokens=25) for place in range(MANY)],
            {},
            [
                "Every request that ran lost its KV cache to others at least once; 1,000 tokens "
                "were computed again."
            ],
        ),
        (
            [one(place, preemptions=place % 2) for place in range(MANY)],
            {},
            ["50 % of the requests that ran lost their KV cache to others at least once."],
        ),
        ([*steady(), one(1, preemptions=3)], {}, []),
    ],
)
def test_caveats_are_told_where_there_is_reason(found, rows, changes, said):
    assert found(rows, **changes) == said


def test_a_run_cut_before_arrivals_stop_is_said_to_be_cut(found):
    (said,) = found(growing(), end_ns=60 * SECOND)
    assert said.startswith("The queue was still growing when the run was cut off: ")


def test_a_queue_that_comes_and_goes_is_no_overload(found):
    crowd = [one(40 + place / 10, wait_s=place / 10) for place in range(200)]
    assert found([*steady(), *crowd]) == []


def test_a_longer_run_of_an_overload_has_a_longer_queue(found):
    short, long = growing(100), growing(400)
    waiting = [
        int(said.split(" requests waited")[0].rsplit(" ", 1)[1])
        for said in (found(short)[0], found(long)[0])
    ]
    assert waiting[1] == 4 * waiting[0]
