"""Classes of traffic, conversations and clients' habits, as they come into the request table."""

import numpy as np
import pytest
from pydantic import ValidationError

from kvsim.workload.build import build_requests
from kvsim.workload.parameters import Workload
from kvsim.workload.requests import NO_LIMIT, PATIENT

POISSON = {"kind": "poisson", "rate_per_s": 10.0}
FIXED = {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 20}
SHORT = {"kind": "fixed", "prompt_tokens": 7, "output_tokens": 3}
TALKS = {"kind": "sessions", "turns_mean": 3.0, "think_mean_s": 2.0}


def workload(**fields):
    return Workload.model_validate({"arrivals": POISSON, "lengths": FIXED, **fields})


def table_of(seed=1, **fields):
    return build_requests(workload(**fields), seed)


def rows_of(table, code):
    return np.flatnonzero(table.traffic_class == code)


def test_one_class_that_says_nothing_draws_what_no_class_does():
    """The only difference is its streams' names."""
    plain = table_of(num_requests=500)
    named = table_of(num_requests=500, classes={"all": {}})
    assert named.arrival_ns.tolist() == plain.arrival_ns.tolist()
    assert named.prompt_tokens.tolist() == plain.prompt_tokens.tolist()
    assert named.class_names == ("all",)
    assert set(named.traffic_class) == {0}


def test_weights_share_the_sessions():
    table = table_of(
        num_requests=8_000, classes={"a": {"weight": 3}, "b": {}, "c": {"weight": 4.0}}
    )
    shares = np.bincount(table.traffic_class) / len(table)
    assert shares == pytest.approx([3 / 8, 1 / 8, 4 / 8], abs=4 * np.sqrt(0.25 / 8_000))
    gaps = np.diff(table.arrival_ns[rows_of(table, 0)]) / 1e9
    assert gaps.mean() == pytest.approx(1 / (10 * 3 / 8), rel=0.08)  # a thinned Poisson process
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.08)


def test_a_class_says_what_is_different_and_takes_the_rest():
    table = table_of(
        num_requests=200,
        max_tokens="output",
        timeout_s=5.0,
        classes={
            "a": {},
            "b": {"lengths": SHORT, "max_tokens": 50, "timeout_s": 1.5, "priority": -2},
        },
    )
    a, b = rows_of(table, 0), rows_of(table, 1)
    assert set(table.prompt_tokens[a]) == {100}
    assert set(table.max_tokens[a]) == {20}
    assert set(table.timeout_ns[a]) == {5_000_000_000}
    assert set(table.prompt_tokens[b]) == {7}
    assert set(table.max_tokens[b]) == {50}
    assert set(table.timeout_ns[b]) == {1_500_000_000}
    assert (set(table.priority[a]), set(table.priority[b])) == ({0}, {-2})


def test_null_is_something_that_a_class_says():
    table = table_of(num_requests=50, timeout_s=5.0, classes={"a": {}, "b": {"timeout_s": None}})
    assert set(table.timeout_ns[rows_of(table, 0)]) == {5_000_000_000}
    assert set(table.timeout_ns[rows_of(table, 1)]) == {PATIENT}


def test_a_class_has_arrivals_of_its_own_beside_the_others():
    own = {"arrivals": {"kind": "constant", "rate_per_s": 2.0}, "lengths": SHORT}
    alone = table_of(duration_s=60.0)
    table = table_of(duration_s=60.0, classes={"web": {}, "cron": own})
    assert table.arrival_ns[rows_of(table, 1)].tolist() == [i * 500_000_000 for i in range(120)]
    assert table.arrival_ns[rows_of(table, 0)].tolist() == alone.arrival_ns.tolist()
    assert (np.diff(table.arrival_ns) >= 0).all()
    assert table.group.tolist() == list(range(len(table)))


def test_a_change_in_one_class_leaves_the_draws_of_the_others_alone():
    law = {"kind": "lognormal", "prompt_mean_tokens": 50.0, "prompt_cv": 1.0,
           "output_mean_tokens": 50.0, "output_cv": 1.0}  # fmt: skip
    one = table_of(lengths=law, num_requests=400, classes={"a": {}, "b": {}})
    two = table_of(lengths=law, num_requests=400, classes={"a": {}, "b": {"lengths": SHORT}})
    a = rows_of(one, 0)
    assert a.tolist() == rows_of(two, 0).tolist()
    assert one.prompt_tokens[a].tolist() == two.prompt_tokens[a].tolist()


def test_conversations_are_neighbours_and_count_as_requests():
    table = table_of(num_requests=1_000, prompts=TALKS)
    assert len(table) == 1_000
    first = np.flatnonzero(np.diff(table.session, prepend=-1))
    assert (table.delay_ns[first] == 0).all()
    assert (np.diff(table.session) >= 0).all()
    further = np.setdiff1d(np.arange(1_000), first)
    assert table.delay_ns[further].mean() / 1e9 == pytest.approx(2.0, rel=0.2)
    for row in further:
        assert table.prompt_tokens[row] == table.prompt_tokens[row - 1] + 20 + 100
    assert table.arrival_ns.tolist() == np.sort(table.arrival_ns).tolist()


def test_classes_share_no_contents():
    classes = {
        "a": {"prompts": {"kind": "shared_prefix", "prefix_tokens": 64}},
        "b": {"prompts": {"kind": "shared_prefix", "prefix_tokens": 64}},
        "c": {},
    }
    table = table_of(num_requests=300, n=2, classes=classes)
    seeds = [set(), set(), set()]
    answers = {}  # by seed: the group that it belongs to
    for row in range(len(table)):
        segments, answer = table.segments.of(row)
        assert sum(tokens for _, tokens in segments) == table.prompt_tokens[row]
        seeds[table.traffic_class[row]] |= {seed for seed, _ in segments}
        assert answer not in answers  # also the samples of one request differ
        answers[answer] = table.group[row]
    assert not seeds[0] & seeds[1] | seeds[0] & seeds[2] | seeds[1] & seeds[2]
    for row in range(len(table)):  # an answer may go on as its prompt does, but no other prompt
        segments, _ = table.segments.of(row)
        assert {answers.get(seed, table.group[row]) for seed, _ in segments} == {table.group[row]}
    first_seed = {table.segments.of(row)[0][0] for row in rows_of(table, 0)}
    assert len(first_seed) == 1


def test_a_closed_loop_holds_its_users_permits_for_a_conversation():
    loop = {"kind": "closed_loop", "users": 5, "think_mean_s": 1.0, "ramp_up_s": 10.0}
    table = table_of(arrivals=loop, num_requests=100, prompts=TALKS, duration_s=60.0)
    (gate,) = table.gates
    assert gate.holds_session
    assert len(gate.opens_ns) == 5
    assert set(table.gate) == {0}
    assert set(table.think_ns) == {1_000_000_000}
    assert table.stop_ns == 60_000_000_000
    assert set(table.arrival_ns) == {0}


def test_a_cap_on_concurrency_is_one_gate_for_all():
    table = table_of(num_requests=50, max_concurrency=4, classes={"a": {}, "b": {}})
    (gate,) = table.gates
    assert (gate.opens_ns.tolist(), gate.holds_session) == ([0] * 4, False)
    assert set(table.gate) == {0}


def test_waits_before_retries_grow_and_are_random_in_part():
    retries = {"max_retries": 4, "backoff_s": 1.0, "multiplier": 3.0, "max_backoff_s": 9.0}
    table = table_of(num_requests=10, timeout_s=2.0, retries=retries)
    assert table.retry_delays_ns.tolist() == [[10**9, 3 * 10**9, 9 * 10**9, 9 * 10**9]] * 10
    table = table_of(num_requests=4_000, timeout_s=2.0, retries={**retries, "jitter": 0.5})
    shares = table.retry_delays_ns / np.array([1, 3, 9, 9]) / 1e9
    assert shares.min() >= 0.5
    assert shares.max() <= 1
    assert shares.mean(axis=0) == pytest.approx([0.75] * 4, abs=0.01)


def test_a_class_without_retries_has_none_beside_one_with():
    classes = {"a": {"retries": {"max_retries": 2}}, "b": {}}
    table = table_of(num_requests=60, timeout_s=2.0, classes=classes)
    assert set(table.retry_delays_ns[rows_of(table, 0)].reshape(-1)) == {10**9, 2 * 10**9}
    assert set(table.retry_delays_ns[rows_of(table, 1)].reshape(-1)) == {-1}


def test_columns_that_nobody_needs_are_not_there():
    table = table_of(num_requests=10)
    for name in ("segments", "traffic_class", "priority", "session", "delay_ns", "timeout_ns",
                 "retry_delays_ns", "gate", "think_ns", "stop_ns"):  # fmt: skip
        assert getattr(table, name) is None, name
    assert set(table.max_tokens) == {NO_LIMIT}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arrivals": None}, "arrivals are missing"),
        ({"lengths": None}, "lengths are missing"),
        ({"lengths": None, "classes": {"a": {"lengths": SHORT}, "b": {}}}, "class b: lengths are"),
        ({"classes": {"a": {"weight": 1, "arrivals": POISSON}}}, "a weight would mean nothing"),
        ({"classes": {"a": {"num_requests": 5}}}, "num_requests needs arrivals of its own"),
        (
            {"classes": {"a": {"arrivals": POISSON, "num_requests": 5}}},
            "all classes have arrivals of their own",
        ),
        ({"retries": {"max_retries": 1}}, "retries follow a timeout"),
        (
            {"arrivals": {"kind": "closed_loop", "users": 3}, "max_concurrency": 2},
            "leave out max_concurrency",
        ),
        ({"classes": {"a": {"lengths": {"kind": "trace"}}}}, "class a: lengths of kind trace need"),
    ],
)
def test_what_does_not_fit_together_is_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        workload(**fields)
