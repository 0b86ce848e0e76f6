"""What every router owes the engine; each file of the package is tested unasked."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine import routers
from kvsim.engine.config import EngineConfig
from kvsim.engine.request import RequestView
from kvsim.engine.routers import ReplicaView
from kvsim.engine.routers.least_requests import LeastRequests
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.policy import policies_in
from tests.engine.harness import LinearCost, request_table, run

ROUTERS = policies_in(routers)
every_router = pytest.mark.parametrize("kind", ROUTERS, ids=lambda kind: kind.__name__)
SMALL = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=96, num_gpu_blocks=20)

tables = st.lists(
    st.tuples(
        st.integers(0, 3_000),  # arrival, ns
        st.integers(1, 110),  # prompt: some are longer than the context
        st.integers(1, 60),
        st.sampled_from([0, 0, 5, 40]),
    ),
    min_size=1,
    max_size=60,
).map(lambda rows: request_table(sorted(rows, key=lambda row: row[0])))


def names_of(view):
    return [name for name, item in vars(view).items() if isinstance(item, property)]


class Guard:
    """Shows the properties of a view as they are now, and nothing else; can't be changed."""

    __slots__ = ("_shown",)

    def __init__(self, seen, view):
        shown = {name: getattr(seen, name) for name in names_of(view)}
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
        return self

    def choose(self, request, replicas):
        assert not self.shares_queue, "asked although nothing is to be chosen"
        guards = [Guard(replica, ReplicaView) for replica in replicas]
        choice = self.router.choose(Guard(request, RequestView), guards)
        assert choice in range(len(replicas))
        assert request.number not in self.choices
        self.choices[request.number] = choice
        return choice


def guarded_run(kind, requests, replicas):
    choices = {}
    trace = run(
        requests, SMALL, LinearCost(7, 1, 1), replicas=replicas, routing=Guarded(kind(), choices)
    )
    return trace.tables, choices


def test_the_package_has_these_routers_and_a_guard_hides_the_answer():
    kinds = {kind.model_fields["kind"].default for kind in ROUTERS}
    assert kinds >= {"least_requests", "round_robin", "shared_queue"}
    assert names_of(ReplicaView) == ["requests", "prompt_tokens"]
    assert "output_tokens" not in names_of(RequestView)
    assert "prompt_tokens" in names_of(RequestView)


@every_router
@settings(max_examples=25)
@given(requests=tables, replicas=st.integers(1, 4))
def test_it_serves_whatever_comes_under_all_laws(kind, requests, replicas):
    found, choices = guarded_run(kind, requests, replicas)
    rows = {name: column.tolist() for name, column in found["requests"].items()}
    assert sorted(rows["request"]) == list(range(len(requests)))
    for number, replica, prompt, answer in zip(
        rows["request"], rows["replica"], rows["prompt_tokens"], rows["output_tokens"], strict=True
    ):
        if prompt < SMALL.max_model_len:
            limit = requests.max_tokens[number] or SMALL.max_model_len
            room = min(limit, SMALL.max_model_len - prompt)
            assert answer == min(requests.output_tokens[number], room)
            assert replica in range(replicas)
        else:
            assert (answer, replica) == (0, -1)
        assert choices.get(number, replica) == replica


@every_router
@settings(max_examples=10)
@given(requests=tables, replicas=st.integers(1, 4))
def test_it_decides_alike_every_time(kind, requests, replicas):
    (first, choices), (second, again) = (guarded_run(kind, requests, replicas) for _ in range(2))
    assert list(choices.items()) == list(again.items())
    for table, columns in first.items():
        for name, column in columns.items():
            np.testing.assert_array_equal(column, second[table][name], f"{table}.{name}")


@every_router
def test_it_uses_all_replicas_when_there_is_enough_to_do(kind):
    requests = request_table([(5 * number, 40, 20, 0) for number in range(100)])
    found, _ = guarded_run(kind, requests, 4)
    assert set(found["requests"]["replica"].tolist()) == {0, 1, 2, 3}


def test_round_robin_takes_turns():
    _, choices = guarded_run(RoundRobin, request_table([(0, 5, 5, 0)] * 8), 3)
    assert list(choices.values()) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_least_requests_sees_those_that_arrived_in_the_same_instant():
    """The first two go to different replicas; the third to where the shorter one has ended."""
    rows = [(0, 5, 50, 0), (0, 5, 1, 0), (500, 5, 5, 0), (500, 5, 5, 0)]
    _, choices = guarded_run(LeastRequests, request_table(rows), 2)
    assert choices == {0: 0, 1: 1, 2: 1, 3: 0}
