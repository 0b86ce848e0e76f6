"""What every router owes the engine; each file of the package is tested unasked."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvsim.engine import routers
from kvsim.engine.config import EngineConfig
from kvsim.engine.request import Request, RequestView
from kvsim.engine.routers import ReplicaView, SeesLoads
from kvsim.engine.routers.least_requests import LeastRequests
from kvsim.engine.routers.least_tokens import LeastTokens
from kvsim.engine.routers.power_of_two import PowerOfTwo
from kvsim.engine.routers.prefix_aware import PrefixAware
from kvsim.engine.routers.random import Random
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.engine.routers.session_affinity import SessionAffinity
from kvsim.policy import policies_in
from kvsim.rng import stream
from tests.engine.harness import LinearCost, request_table, run, segments_of

ROUTERS = [kind() for kind in policies_in(routers)]
LATE = [type(router)(view_delay_s=200e-9) for router in ROUTERS if isinstance(router, SeesLoads)]
every_router = pytest.mark.parametrize(
    "policy",
    ROUTERS + LATE,
    ids=lambda policy: policy.kind + "_late" * bool(getattr(policy, "view_delay_s", 0)),
)
SMALL = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=96, num_gpu_blocks=20)
CACHING = replace(SMALL, enable_prefix_caching=True)
either_engine = st.sampled_from([SMALL, CACHING])

outputs_tokens = st.integers(1, 60)
limits_tokens = st.sampled_from([0, 0, 5, 40])


def columns_of(rows, prompts, session=None):
    """A table of (arrival ns, prompt, output, limit) whose prompts are (seed, tokens) in segments.

    Further turns of a session are sent 10 ns after the answer before them.
    """
    table = request_table(rows)
    segments = segments_of(prompts, [-1 - number for number in range(len(rows))])
    if session is None:
        return replace(table, segments=segments)
    delays_ns = np.full(len(rows), 10, dtype=np.int64)
    numbers = np.array(session, dtype=np.int64)
    return replace(table, segments=segments, session=numbers, delay_ns=delays_ns)


def after_a_system_prompt(number, seed, tokens):
    """A prompt that begins like the others of its seed."""
    return [(seed, min(tokens, 40)), (100 + number, max(0, tokens - 40))]


@st.composite
def single_requests(draw):
    prompts_tokens = st.integers(1, 110)  # some are longer than the context
    row = st.tuples(st.integers(0, 3_000), prompts_tokens, outputs_tokens, limits_tokens)
    rows = sorted(draw(st.lists(row, min_size=1, max_size=60)), key=lambda row: row[0])
    seeds = [draw(st.integers(1, 3)) for _ in rows]
    prompts = [after_a_system_prompt(i, seeds[i], row[1]) for i, row in enumerate(rows)]
    return columns_of(rows, prompts)


@st.composite
def sessions(draw):
    turn = st.tuples(st.integers(1, 90), outputs_tokens, limits_tokens)
    starts = sorted(draw(st.lists(st.integers(0, 2_000), min_size=1, max_size=20)))
    rows, prompts, numbers = [], [], []
    for number, start_ns in enumerate(starts):
        for prompt, output, limit in draw(st.lists(turn, min_size=1, max_size=4)):
            prompts.append(after_a_system_prompt(len(rows), 1 + number % 3, prompt))
            rows.append((start_ns, prompt, output, limit))
            numbers.append(number)
    return columns_of(rows, prompts, numbers)


tables = single_requests() | sessions()


def shown_by(view):
    """Names of what a view offers: properties, and methods that answer a question."""
    return [name for name in vars(view) if not name.startswith("_")]


class Guard:
    """Shows what a view offers, properties as they are now, and nothing else; can't be changed."""

    __slots__ = ("_shown",)

    def __init__(self, seen, view):
        shown = {name: getattr(seen, name) for name in shown_by(view)}
        object.__setattr__(self, "_shown", shown)

    def __getattr__(self, name):
        if name not in self._shown:
            raise AttributeError(f"a router looked at {name}")
        return self._shown[name]

    def __setattr__(self, name, value):
        raise AttributeError(f"a router changed {name}")


@dataclass
class Guarded:
    """Builds the router behind guards, and notes what it chooses for whom."""

    policy: object
    choices: dict

    def build(self, rng):
        self.router = self.policy.build(rng)
        self.shares_queue = self.router.shares_queue
        self.view_delay_ns = self.router.view_delay_ns
        return self

    def choose(self, request, replicas):
        assert not self.shares_queue, "asked although nothing is to be chosen"
        guards = [Guard(replica, ReplicaView) for replica in replicas]
        choice = self.router.choose(Guard(request, RequestView), guards)
        assert type(choice) is int
        assert choice in range(len(replicas))
        assert request.number not in self.choices
        self.choices[request.number] = choice
        return choice


def guarded_run(policy, requests, replicas, config=SMALL):
    choices = {}
    routing = Guarded(policy, choices)
    trace = run(requests, config, LinearCost(7, 1, 1), replicas=replicas, routing=routing)
    return trace.tables, choices


def test_the_package_has_these_routers_and_a_guard_hides_the_answer():
    assert [router.kind for router in ROUTERS] == [
        "least_requests",
        "least_tokens",
        "power_of_two",
        "prefix_aware",
        "random",
        "round_robin",
        "session_affinity",
        "shared_queue",
    ]
    assert shown_by(ReplicaView) == ["requests", "prompt_tokens", "cached_tokens"]
    assert "output_tokens" not in shown_by(RequestView)
    assert {"prompt_tokens", "session", "block_keys"} <= set(shown_by(RequestView))


def test_only_routers_that_compare_loads_can_see_them_late():
    late = {policy.kind: policy.build(stream(0, "late")).view_delay_ns for policy in LATE}
    assert late == dict.fromkeys(
        ["least_requests", "least_tokens", "power_of_two", "prefix_aware"], 200
    )
    assert all(policy.build(stream(0, "late")).view_delay_ns == 0 for policy in ROUTERS)


@every_router
@settings(max_examples=15)
@given(requests=tables, replicas=st.integers(1, 4), config=either_engine)
def test_it_serves_whatever_comes_under_all_laws(policy, requests, replicas, config):
    found, choices = guarded_run(policy, requests, replicas, config)
    rows = {name: column.tolist() for name, column in found["requests"].items()}
    assert sorted(rows["request"]) == list(range(len(requests)))
    for number, replica, prompt, answer in zip(
        rows["request"], rows["replica"], rows["prompt_tokens"], rows["output_tokens"], strict=True
    ):
        if prompt < config.max_model_len:
            limit = requests.max_tokens[number] or config.max_model_len
            room = min(limit, config.max_model_len - prompt)
            assert answer == min(requests.output_tokens[number], room)
            assert replica in range(replicas)
        else:
            assert (answer, replica) == (0, -1)
        assert choices.get(number, replica) == replica


@every_router
@settings(max_examples=8)
@given(requests=tables, replicas=st.integers(1, 4), config=either_engine)
def test_it_decides_alike_every_time(policy, requests, replicas, config):
    (first, choices), (second, again) = (
        guarded_run(policy, requests, replicas, config) for _ in range(2)
    )
    assert list(choices.items()) == list(again.items())
    for table, columns in first.items():
        for name, column in columns.items():
            np.testing.assert_array_equal(column, second[table][name], f"{table}.{name}")


@every_router
def test_it_uses_all_replicas_when_there_is_enough_to_do(policy):
    requests = request_table([(10 * number, 40, 20, 0) for number in range(100)])
    found, _ = guarded_run(policy, requests, 4)
    assert set(found["requests"]["replica"].tolist()) == {0, 1, 2, 3}


# What each router is for


@dataclass
class Seen:
    """A replica as a router is shown it."""

    requests: int = 0
    prompt_tokens: int = 0
    cached: int = 0

    def cached_tokens(self, request):
        return self.cached


def asked(policy, replicas, count=1, prompt=100, session=lambda number: -1):
    """What a router answers to requests that find the replicas always the same."""
    router = policy.build(stream(3, "routing"))
    return [
        router.choose(Request(number, number, 0, prompt, 10, session=session(number)), replicas)
        for number in range(count)
    ]


def assert_frequencies(choices, expected):
    counts = np.bincount(choices, minlength=len(expected))
    assert counts[np.array(expected) == 0].sum() == 0
    possible = np.array(expected) > 0
    shares = np.array(expected)[possible] / sum(expected) * len(choices)
    assert stats.chisquare(counts[possible], shares).pvalue > 1e-4, counts


def test_round_robin_takes_turns():
    _, choices = guarded_run(RoundRobin(), request_table([(0, 5, 5, 0)] * 8), 3)
    assert list(choices.values()) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_least_requests_sees_those_that_arrived_in_the_same_instant():
    """The first two go to different replicas; the third to where the shorter one has ended."""
    rows = [(0, 5, 50, 0), (0, 5, 1, 0), (500, 5, 5, 0), (500, 5, 5, 0)]
    _, choices = guarded_run(LeastRequests(), request_table(rows), 2)
    assert choices == {0: 0, 1: 1, 2: 1, 3: 0}


def test_least_tokens_weighs_prompts():
    """Three short prompts go where one long prompt is not; the fifth where fewer tokens are."""
    rows = [(0, 60, 50, 0), (0, 20, 50, 0), (0, 20, 50, 0), (0, 19, 50, 0), (0, 5, 50, 0)]
    _, choices = guarded_run(LeastTokens(), request_table(rows), 2)
    assert choices == {0: 0, 1: 1, 2: 1, 3: 1, 4: 1}
    rows[3] = (0, 21, 50, 0)
    _, choices = guarded_run(LeastTokens(), request_table(rows), 2)
    assert choices == {0: 0, 1: 1, 2: 1, 3: 1, 4: 0}


def test_random_draws_each_replica_alike_whatever_its_load():
    choices = asked(Random(), [Seen(requests=load) for load in (0, 7, 1, 0, 30)], 5_000)
    assert_frequencies(choices, [1] * 5)
    pairs = [5 * one + other for one, other in pairwise(choices)]
    assert_frequencies(pairs, [1] * 25)


def test_power_of_two_compares_two_different_replicas():
    """Of the six pairs of four replicas the least loaded wins three, the next two, and so on."""
    assert_frequencies(asked(PowerOfTwo(), [Seen(n) for n in (9, 0, 5, 1)], 6_000), [0, 3, 1, 2])
    assert_frequencies(asked(PowerOfTwo(), [Seen(4)] * 5, 5_000), [1] * 5)
    assert asked(PowerOfTwo(), [Seen(3)], 5) == [0] * 5


def test_affinity_keeps_a_session_where_it_is():
    rows = [(9 * number, 30, 10, 0) for number in range(12) for _ in range(3)]
    numbers = [number for number in range(12) for _ in range(3)]
    prompts = [[(number, 30)] for number in range(36)]
    _, choices = guarded_run(SessionAffinity(), columns_of(rows, prompts, numbers), 4)
    places = np.array([choices[number] for number in range(36)]).reshape(12, 3)
    assert (places == places[:, :1]).all()
    assert len(set(places[:, 0])) > 1


def test_affinity_spreads_sessions_and_moves_few_to_a_further_replica():
    sessions_of_two = {"count": 8_000, "session": lambda number: number // 2}
    before = np.array(asked(SessionAffinity(), [Seen()] * 8, **sessions_of_two))
    after = np.array(asked(SessionAffinity(), [Seen()] * 9, **sessions_of_two))
    assert (before[::2] == before[1::2]).all()
    assert_frequencies(before[::2], [1] * 8)
    moved = after != before
    assert set(after[moved]) == {8}
    assert stats.binomtest(int(moved[::2].sum()), 4_000, 1 / 9).pvalue > 1e-4


def test_without_sessions_affinity_goes_by_the_request():
    assert asked(SessionAffinity(), [Seen()] * 6, 500) == asked(
        SessionAffinity(), [Seen()] * 6, 500, session=lambda number: number
    )


@pytest.mark.parametrize(
    ("loads", "cached", "choice"),
    [
        pytest.param((0, 5, 3), (0, 80, 0), 1, id="best match"),
        pytest.param((0, 5, 3), (32, 48, 64), 2, id="best of several"),
        pytest.param((1, 0, 3), (0, 0, 30), 1, id="match not above the threshold"),
        pytest.param((1, 0, 3), (0, 0, 31), 2, id="match just above the threshold"),
        pytest.param((9, 5, 7), (64, 64, 64), 1, id="equal matches: the least busy"),
        pytest.param((64, 0, 9), (99, 0, 0), 0, id="just balanced in difference"),
        pytest.param((65, 0, 9), (99, 0, 0), 1, id="unbalanced"),
        pytest.param((300, 200, 250), (99, 0, 0), 0, id="just balanced in proportion"),
        pytest.param((301, 200, 250), (99, 0, 0), 1, id="out of proportion"),
    ],
)
def test_prefix_aware_follows_the_rule(loads, cached, choice):
    replicas = [Seen(load, 0, held) for load, held in zip(loads, cached, strict=True)]
    assert asked(PrefixAware(), replicas) == [choice]


@settings(max_examples=15)
@given(requests=tables, replicas=st.integers(1, 4))
def test_without_a_prefix_cache_prefix_aware_is_least_requests(requests, replicas):
    by_prefix, by_load = (
        guarded_run(policy, requests, replicas)[1] for policy in (PrefixAware(), LeastRequests())
    )
    assert by_prefix == by_load


def test_prefix_aware_finds_more_in_caches_that_are_too_small_for_all_prefixes():
    """Eight system prompts of 64 tokens; a replica's cache holds the blocks of four of them."""
    rng = stream(0, "prefixes")
    rows = [(150 * number, 80, 4, 0) for number in range(400)]
    prompts = [[(int(rng.integers(8)), 64), (100 + number, 16)] for number in range(400)]
    hits = {}
    for policy in (PrefixAware(match_fraction=0.5), RoundRobin(), LeastRequests()):
        found, _ = guarded_run(policy, columns_of(rows, prompts), 4, CACHING)
        hits[policy.kind] = found["requests"]["cached_tokens"].sum() / 400
    assert hits["prefix_aware"] > 1.5 * hits["round_robin"], hits
    assert hits["prefix_aware"] > 1.5 * hits["least_requests"], hits
    assert hits["prefix_aware"] > 0.9 * 64, hits


def test_a_late_view_sends_all_to_the_same_replica_until_it_sees_them():
    """With a delay of 100 ns, the requests of the first 100 ns see two empty replicas."""
    rows = [(at_ns, 5, 90, 0) for at_ns in (0, 30, 60, 99, 100, 129, 130)]
    _, choices = guarded_run(LeastRequests(view_delay_s=100e-9), request_table(rows), 2)
    assert list(choices.values()) == [0, 0, 0, 0, 1, 1, 1]
