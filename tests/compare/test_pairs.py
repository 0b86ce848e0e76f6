"""Which requests of two runs belong together, and what is told of them."""

import numpy as np

from kvsim.compare.answer import remarks
from kvsim.compare.pairs import WORST, pairs_of, shares, worst
from kvsim.compare.sides import open_sides
from kvsim.compare.tables import class_table, share_table, slo_table, worst_table
from kvsim.tables import OUTCOMES

TIMED_OUT = OUTCOMES.index("timed_out")


def rows(requests, order):
    return {name: column[order] for name, column in requests.items()}


def with_retries(requests, retried, group_of=None):
    """Add a second attempt of some requests, numbered in the order in which they are told."""
    again = rows(requests, np.array(retried, dtype=np.int64))
    count = len(requests["request"])
    again["request"] = count + np.arange(len(retried))
    again["attempt"] = np.ones(len(retried), np.int64)
    for name in ("arrival_ns", "queued_ns", "admitted_ns", "first_token_ns", "finish_ns"):
        again[name] = again[name] + 10**9
    return {name: np.concatenate([requests[name], again[name]]) for name in requests}


def pairs_between(bench, a, b, **made):
    sides = open_sides([bench.run("a", a, **made), bench.run("b", b, **made)])
    return pairs_of(*sides)


def test_rows_in_another_order_are_the_same_requests(bench):
    requests = bench.requests_table(count=200)
    shuffled = rows(requests, np.random.default_rng(3).permutation(200))
    pairs = pairs_between(bench, requests, shuffled)
    assert len(pairs) == 200
    for name in pairs.base:
        np.testing.assert_array_equal(pairs.base[name], pairs.other[name])
    assert (np.diff(pairs.base["arrival_ns"]) >= 0).all()


def test_a_retry_is_known_by_its_client(bench):
    """Retries are numbered as they come, which differs from run to run."""
    requests = bench.requests_table(count=50)
    pairs = pairs_between(bench, with_retries(requests, [7, 3, 20]), with_retries(requests, [3, 7]))
    assert (len(pairs), pairs.base_only, pairs.other_only) == (52, 1, 0)
    np.testing.assert_array_equal(pairs.base["prompt_tokens"], pairs.other["prompt_tokens"])
    second = pairs.base["attempt"] == 1
    assert set(pairs.base["request"][second]) == {50, 51}
    assert set(pairs.other["request"][second]) == {50, 51}
    np.testing.assert_array_equal(pairs.base["attempt"], pairs.other["attempt"])


def test_samples_of_a_retry_keep_their_order(bench):
    requests = bench.requests_table(count=6)
    requests["group"] = np.arange(6) // 2
    pairs = pairs_between(
        bench, with_retries(requests, [0, 1, 4, 5]), with_retries(requests, [4, 5, 0, 1])
    )
    assert len(pairs) == 10
    np.testing.assert_array_equal(pairs.base["prompt_tokens"], pairs.other["prompt_tokens"])


def test_what_was_sent_in_one_run_only_is_counted_apart(bench):
    requests = bench.requests_table(count=300)
    one = bench.against(
        bench.run("a", rows(requests, slice(0, 290))),
        bench.run("b", bench.failed(requests, [4, 5], "timed_out")),
    )
    assert (one.pairs.base_only, one.pairs.other_only, len(one.pairs)) == (0, 10, 290)
    assert one.pairs.finished() == (288, 2, 0)
    told = " ".join(remarks(one))
    assert "2 finished only in a" in told
    assert "10 were sent only in b" in told
    assert (one.pairs.other["outcome"] == TIMED_OUT).sum() == 2


def test_requests_of_the_warm_up_do_not_count(bench):
    requests = bench.requests_table(count=300)
    pairs = pairs_between(bench, requests, requests, warmup_s=20.0)
    assert len(pairs) == (requests["arrival_ns"] >= 20 * bench.S).sum()


def test_shares_of_faster_and_slower(bench):
    requests = bench.requests_table(count=200)
    moved = np.where(np.arange(200) < 50, 5, np.where(np.arange(200) < 150, -5, 0)) * bench.MS
    pairs = pairs_between(bench, requests, bench.later(requests, moved))
    found = shares(pairs, "e2e")
    assert (found.count, found.slower, found.faster, found.same) == (200, 0.25, 0.5, 0.25)


def test_the_worst_requests_are_listed_worst_first(bench):
    requests = bench.requests_table(count=200)
    moved = np.zeros(200, np.int64)
    moved[[150, 3, 77]] = np.array([3, 2, 1]) * bench.S
    one = bench.against(bench.run("a", requests), bench.run("b", bench.later(requests, moved)))
    assert worst(one.pairs).tolist() == [150, 3, 77]
    table = worst_table(one, ("a", "b"))
    assert [row[0] for row in table.rows] == ["150", "3", "77"]
    assert [row[6] for row in table.rows] == ["+3 s", "+2 s", "+1 s"]


def test_no_more_than_ten_are_listed_and_none_that_got_faster(bench):
    requests = bench.requests_table(count=200)
    a = bench.run("a", requests)
    slower = bench.against(a, bench.run("b", bench.later(requests, bench.S)))
    assert len(worst_table(slower, ("a", "b")).rows) == WORST
    faster = bench.against(a, bench.run("c", bench.later(requests, -bench.MS)))
    assert worst_table(faster, ("a", "c")) is None


def test_the_sum_of_shares_is_one(bench):
    requests = bench.requests_table(count=200)
    one = bench.against(bench.run("a", requests), bench.run("b", bench.later(requests, 0)))
    assert {row[-1] for row in share_table(one).rows} == {"100 %"}


def test_classes_are_compared_each_on_its_own(bench):
    requests = bench.requests_table(count=2200)
    requests["class"] = np.arange(2200) % 2
    moved = np.where(requests["class"] == 1, 250, 0) * bench.MS
    made = {"class_names": ("chat", "code"), "slo": {"ttft_p99_s": 1.0}}
    runs = bench.run("a", requests, **made), bench.run("b", bench.later(requests, moved), **made)
    table = class_table(bench.against(*runs), ("a", "b"))
    found = {(row[0], row[1]): row for row in table.rows}
    header = table.header.index("difference")
    assert found["code", "TTFT p99"][header] == "+250 ms"
    assert found["chat", "TTFT p99"][header] == "0 s"
    assert found["code", "TTFT p99"][header + 1] == "250 ms"


def test_targets_stand_side_by_side(bench):
    requests = bench.requests_table(count=400)
    slow = bench.later(requests, 3 * bench.S)
    runs = [
        bench.run("a", requests, slo={"ttft_p99_s": 2.0}),
        bench.run("b", slow, slo={"ttft_p99_s": 4.0, "e2e_p50_s": 60.0}),
        bench.run("c", slow),
    ]
    sides = open_sides(runs)
    table = slo_table(sides, ["a", "b", "c"])
    found = {row[0]: row[1:] for row in table.rows}
    assert found["TTFT p99"][0] == "its own"
    assert "of 2 s" in found["TTFT p99"][1]
    assert "of 4 s" in found["TTFT p99"][2]
    assert found["TTFT p99"][3] == found["E2E p50"][1] == "no such target"
    assert found["E2E p50"][0] == "60 s"
    assert slo_table(sides[2:], ["c"]) is None
